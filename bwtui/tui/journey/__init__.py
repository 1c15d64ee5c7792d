"""The journey of a key, without widgets: its changes, their way to Kafka, and the records in its topic."""
