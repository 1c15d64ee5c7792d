"""Spark: its session and its Java, and Kafka as a source and a sink that account for every offset.

Import these modules only when a command needs them: pyspark alone takes a tenth of a second.
"""
