"""bwtui beside Debezium, on the same services and rows: ``python -m benchmarks.debezium``."""
