"""Exactly-once delivery: the stream's position in Kafka, and the row that a transaction is refused for."""
