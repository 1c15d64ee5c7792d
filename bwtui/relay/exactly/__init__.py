"""Exactly once: where the stream stands in Kafka, and what of it is in already."""
