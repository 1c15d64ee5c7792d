"""PostgreSQL's logical replication messages and COPY rows: bytes in, messages and fields out, no I/O."""
