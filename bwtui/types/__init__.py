"""PostgreSQL's types on their way to Avro, one file a family; ``registry`` finds the codec of an oid."""
