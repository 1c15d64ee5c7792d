"""Audits in the UI: their reports, child processes, and single Kafka records, without widgets."""
