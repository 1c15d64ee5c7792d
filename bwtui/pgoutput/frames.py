"""The CopyData frames that carry pgoutput's messages.

PostgreSQL's documentation: "Streaming Replication Protocol", XLogData and primary keepalive.
"""

#: Offset of the payload of an XLogData frame, after the tag, WAL start, WAL end and send time.
PAYLOAD_OFFSET = 25
#: Offset of a message's body, after its tag; messages about rows begin with the relation's oid.
BODY_OFFSET = PAYLOAD_OFFSET + 1
XLOG_DATA = 0x77  # 'w'
#: Microseconds between the Unix epoch and PostgreSQL's (2000-01-01).
POSTGRES_EPOCH_US = 946_684_800_000_000
