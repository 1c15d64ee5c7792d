"""The audit: does Kafka hold what a recording says was sent? docs/audit.md defines what it finds.

`bwtui.audit.core` decides, in DuckDB, over two tables of digests; it knows neither Kafka nor Spark nor the
relay. Nothing here shares code with what encoded the messages: an audit that does can't see its bugs.
"""
