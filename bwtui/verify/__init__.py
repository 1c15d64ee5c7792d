"""Both sides of an audit brought together: a recording or a table, and what Kafka holds."""
