"""The audit: does Kafka hold what a recording says was sent? docs/audit.md defines its classes.

`bwtui.audit.core` decides in DuckDB, from two tables of digests, independently of Kafka, Spark and the relay.
Nothing here shares code with the encoder of the messages: an audit that did could not find its bugs.
"""
