"""Recorded messages are sent again, as a Spark job."""
