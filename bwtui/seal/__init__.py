"""Seal: convert a recording's journal to Parquet, as a Spark job."""
