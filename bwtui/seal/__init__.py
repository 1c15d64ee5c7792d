"""A recording's journal becomes Parquet, as a Spark job."""
