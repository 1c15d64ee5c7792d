"""Exactly-once delivery: store the stream's position in Kafka and skip changes that Kafka already holds."""
