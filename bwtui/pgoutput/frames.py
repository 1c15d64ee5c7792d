"""The CopyData frames that carry pgoutput's messages.

PostgreSQL's documentation: "Streaming Replication Protocol", XLogData and primary keepalive.
"""

#: Where the payload of an XLogData frame begins: the tag, WAL start, WAL end and send time.
PAYLOAD_OFFSET = 25
#: Where a message's body begins, after its tag: with the relation's oid in a message about a row.
BODY_OFFSET = PAYLOAD_OFFSET + 1
XLOG_DATA = 0x77  # 'w'
#: Microseconds between the Unix epoch and PostgreSQL's (2000-01-01).
POSTGRES_EPOCH_US = 946_684_800_000_000
