"""Spark: its session and its Java, and Kafka as a source and a sink that accounts for every offset.

Nothing here is imported before a command needs it: pyspark alone takes a tenth of a second.
"""
