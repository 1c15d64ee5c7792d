"""Recorded messages are sent again, as a Spark job or, where it is small, by the command itself."""
