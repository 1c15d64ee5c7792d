"""Kafka as relay, Spark's jobs and screens share it: errors, settings, offsets, records between offsets."""
