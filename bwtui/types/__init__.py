"""PostgreSQL's types and their Avro encoding, one file per family; ``registry`` finds a codec by oid."""
