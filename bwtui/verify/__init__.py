"""Compare the two sides of an audit: a recording or a table, and the contents of Kafka."""
