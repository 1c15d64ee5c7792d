"""The record headers of --headers, which identify a message's change. Integers are big-endian and unsigned.

``bwtui.lsn`` (8 bytes: the commit's final LSN, or the snapshot's consistent point), ``bwtui.ordinal`` (4, and
8 from 2³² on: among the row changes of the transaction, or the rows of the table's snapshot), ``bwtui.op``
(snapshot, insert, update or delete), ``bwtui.xid`` (4; 0 in a snapshot), ``bwtui.session`` (8 random bytes,
one value a run).

With --exactly-once a message also has ``bwtui.part`` (4 bytes) if its transaction is split over several Kafka
transactions and earlier ones were committed: the number of these.
"""

LSN, ORDINAL, OPERATION, XID = "bwtui.lsn", "bwtui.ordinal", "bwtui.op", "bwtui.xid"

#: The header that rows of a snapshot always carry (see bwtui.relay.snapshot.initial_setup).
SESSION = "bwtui.session"

#: The header of a message whose PostgreSQL transaction began in an earlier Kafka transaction.
PART = "bwtui.part"

Headers = list[tuple[str, bytes]]


def make_headers(lsn: int, ordinal: int, operation: str, xid: int, session: bytes, part: int = 0) -> Headers:
    """Return the headers of one message."""
    headers = [
        (LSN, lsn.to_bytes(8, "big")),
        (ORDINAL, ordinal.to_bytes(4 if ordinal < 1 << 32 else 8, "big")),
        (OPERATION, operation.encode()),
        (XID, xid.to_bytes(4, "big")),
        (SESSION, session),
    ]
    if part:
        headers.append((PART, part.to_bytes(4, "big")))
    return headers
