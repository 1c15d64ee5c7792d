"""The transaction that is being read, and the record of it when it ends.

Nothing here is done once per row. The batch already identifies the rows of a transaction: all its messages
have one and the same object as their timestamp.
"""

from bisect import bisect_left

from bwtui.pgoutput.messages import Relation
from bwtui.relay.batch import OutgoingBatch
from bwtui.relay.metrics.transaction_log import (
    LARGE_BYTES,
    LARGE_ROWS,
    TransactionLog,
    TransactionNote,
    TransactionTables,
)
from bwtui.relay.routes.route import TableRoute
from bwtui.relay.row_handler import RowHandler

#: Conditions for finding a transaction's tables by checking each table of the batch: few tables; a small
#: batch, which is the normal case without a backlog; or this many rows of the transaction per table.
_FEW_TABLES, _SMALL_BATCH, _ROWS_A_TABLE = 5, 65, 8


class OpenTransaction:
    """The open transaction of one session; only `so_far` may be called from other threads."""

    def __init__(self, batch: OutgoingBatch, rows: RowHandler, log: TransactionLog) -> None:
        #: True between BEGIN and COMMIT; set by the code that reads them.
        self.is_open = False
        self._batch, self._rows, self._log = batch, rows, log
        self._note = log.note
        #: Bytes of everything before the transaction.
        self._bytes_before = 0
        #: Its messages that were handed over: when the first was received, or 0.0, and counts by table.
        self._received = 0.0
        self._tables: dict[str, int] = {}
        batch.on_hand_over = self._hand_over
        log.so_far = self.so_far

    def close(self) -> None:
        """End with the session: the part of the transaction that was read is read again."""
        self._log.so_far = None

    def commit(self) -> None:
        """Record the transaction, which has ended; called for each one, however small."""
        rows, batch = self._rows, self._batch
        size, self._bytes_before = -self._bytes_before, batch.handed_over + batch.bytes
        if not (count := rows.ordinal):
            # Nothing of it may count for the next transaction.
            self._received, self._tables = 0.0, {}
            return
        size += self._bytes_before
        if self._received or count >= LARGE_ROWS or size >= LARGE_BYTES:
            self._note_large(size)
            return
        routes, stamp = batch.routes, rows.timestamp
        # Not the routes, which reference the code of encoders, and may be replaced soon.
        mine: Relation | list[Relation] | None = None
        if len(routes) == 1:
            mine = routes[0].relation if routes[0].messages[-1][2] is stamp else []
        elif len(routes) < _FEW_TABLES or batch.rows < _SMALL_BATCH or count > _ROWS_A_TABLE * len(routes):
            mine = [route.relation for route in routes if route.messages[-1][2] is stamp]
        self._note((rows.commit_lsn, rows.xid, rows.committed, count, size, batch.received, mine))

    def _note_large(self, size: int) -> None:
        """Record a transaction completely: it has enough rows to be worth the cost."""
        rows, batch = self._rows, self._batch
        self._count(batch.routes)
        received, tables = self._received or batch.received, self._tables
        noted = (rows.commit_lsn, rows.xid, rows.committed, rows.ordinal, size, received, tables)
        self._log.note(noted)
        self._log.note_large(noted)
        self._received, self._tables = 0.0, {}

    def _hand_over(self, routes: list[TableRoute]) -> None:
        """Record the open transaction's part of a batch, before the batch is handed over."""
        # Before its first row the batch has nothing of it.
        if self.is_open and self._rows.ordinal:
            self._received = self._received or self._batch.received
            self._count(routes)

    def _count(self, routes: list[TableRoute]) -> None:
        """Add the transaction's messages in the batch."""
        stamp, tables = self._rows.timestamp, self._tables
        for route in routes:
            messages = route.messages
            if messages[0][2] is stamp:
                number = len(messages)
            elif messages[-1][2] is stamp:
                # They are the last ones, after those of earlier transactions.
                number = len(messages) - bisect_left(messages, True, key=lambda one: one[2] is stamp)
            else:
                continue
            name = route.relation.qualified_name
            tables[name] = tables.get(name, 0) + number

    def so_far(self) -> tuple[TransactionNote, TransactionTables] | None:
        """Return what is known of the transaction that is being read, or None; any thread may call this."""
        if not self.is_open:
            return None
        rows, batch = self._rows, self._batch
        stamp, count = rows.timestamp, rows.ordinal
        size = max(batch.handed_over + batch.bytes - self._bytes_before, 0)
        received = self._received or batch.received
        noted = TransactionNote(rows.commit_lsn, rows.xid, rows.committed, count, size, received)
        tables = TransactionTables.of(dict(self._tables))
        # Another transaction may have begun while this one was collected.
        return (noted, tables) if count and self.is_open and stamp is rows.timestamp else None
