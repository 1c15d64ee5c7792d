"""What a killed snapshot left behind: rows in Kafka that were deleted before the next snapshot began.

A snapshot that was cut off has sent rows. The next one starts over, at a later consistent point. A row that
was deleted in between is in neither the new snapshot nor the stream, so nothing would ever take it out of the
topic. So the first attempt writes down where each topic ended before it sent anything; the next one finds
every key that was sent since then and that its own snapshot has not sent again, and sends tombstones.

Only what was written since this relay's own attempt is looked at: a topic's older content may be another's.
"""

import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path

from bwtui.relay.ack import Span
from bwtui.relay.report import Report
from bwtui.sink.base import Marks, Message, Sink

_BATCH = 10_000


class Leftovers:
    """Finds and removes the leftovers of one topic; memory stays bounded, the keys are kept on disk."""

    def __init__(self, sink: Sink, report: Report, pulse: Callable[[float], None]) -> None:
        """``pulse(seconds)`` waits, takes deliveries, and raises to stop the relay."""
        self._sink = sink
        self._report = report
        self._pulse = pulse

    def remove(self, table: str, topic: str, before: Marks, begun: Marks, timestamp: int) -> int:
        """Send tombstones for keys of ``[before, begun)`` that do not come again behind ``begun``.

        ``before`` is where the topic ended before the first attempt, ``begun`` where it ended before this
        one. Returns how many tombstones were sent; all of them are durable then. Raises ConnectionFailed.
        """
        if all(before.get(number, 0) >= end for number, end in begun.items()):
            return 0
        self._report.detail = f"looking in topic {topic} for rows of the snapshot that was cut off"
        with tempfile.TemporaryDirectory(prefix="bwtui-") as folder:
            database = sqlite3.connect(Path(folder) / "keys.sqlite")
            database.execute("pragma synchronous = off")
            database.execute("pragma journal_mode = off")
            database.execute("create table left_over (key blob primary key) without rowid")
            try:
                self._collect(database, topic, before, begun)
                count = self._send(database, topic, timestamp)
            finally:
                database.close()
        if count:
            self._report.table(table).note(f"{count} rows of a snapshot that was cut off were removed")
        return count

    def _collect(self, database: sqlite3.Connection, topic: str, before: Marks, begun: Marks) -> None:
        for key, is_tombstone in self._sink.keys(topic, before, begun, lambda: self._pulse(0)):
            sql = (
                "delete from left_over where key = ?"
                if is_tombstone
                else "insert or ignore into left_over values (?)"
            )
            database.execute(sql, (key,))
        now = self._sink.marks(topic)
        for key, _ in self._sink.keys(topic, begun, now, lambda: self._pulse(0)):
            database.execute("delete from left_over where key = ?", (key,))

    def _send(self, database: sqlite3.Connection, topic: str, timestamp: int) -> int:
        count = 0
        rows = database.execute("select key from left_over")
        while batch := rows.fetchmany(_BATCH):
            span = Span()
            self._sink.send(topic, [Message(key, None, timestamp) for (key,) in batch], span)
            while span.pending:
                self._pulse(0.05)
            count += len(batch)
        return count
