"""Everything that can outgrow one machine: Spark's session, and Kafka as its source and sink.

Nothing here is imported before a command needs it: pyspark alone takes a tenth of a second.
"""
