"""Kafka code that relay, Spark's jobs and screens share: errors, settings, offsets, scans of records."""
