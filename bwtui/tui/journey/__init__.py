"""The journey of a key: its changes, their way to Kafka, and what is there, as far as it is known."""
