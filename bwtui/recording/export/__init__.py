"""A recording's changes as JSON lines, Parquet or SQL."""
