"""What a killed snapshot left behind: rows in Kafka that were deleted before the next snapshot began.

A snapshot that was cut off has sent rows. The next one starts over, at a later consistent point. A row that
was deleted in between is in neither the new snapshot nor the stream, so nothing would ever take it out of the
topic. So the first attempt writes down where each topic ended before it sent anything; the next one finds
every key that was sent since then and that its own snapshot has not sent again, and sends tombstones.

A topic may hold another producer's rows. So every row of a snapshot carries its run's id in the header
``bwtui.session``, the ids of unfinished runs are remembered, and a key counts as left over only if its last
record carries one of them.
"""

import sqlite3
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import islice
from pathlib import Path

from bwtui.model.delivery import Span
from bwtui.relay.context import RelayContext
from bwtui.relay.routes.route import Route
from bwtui.sink.base import Message
from bwtui.sink.destination import KeyRecord, Offsets

_BATCH = 10_000
#: Of the keys on disk so much is kept in memory, in KiB: they come in no order that their pages have.
_CACHE = 32 << 10
_DELETE = "delete from left_over where key = ?"


class Leftovers:
    """Finds and removes the leftovers of one topic; memory stays bounded, the keys are kept on disk."""

    def __init__(
        self, context: RelayContext, pulse: Callable[[float], None], end_offsets: Callable[[str], Offsets]
    ) -> None:
        """``pulse(seconds)`` waits, takes deliveries, and raises to stop the relay.

        ``end_offsets`` is `Readback.end_offsets`, but waits while the broker is away.
        """
        self._destination = context.destination
        self._report = context.report
        self._recorder = context.recorder
        self._pulse = pulse
        self._end_offsets = end_offsets

    def remove(
        self, route: Route, before: Offsets, begun: Offsets, sessions: Collection[bytes], message: Message
    ) -> None:
        """Send tombstones for keys that ``sessions`` wrote last in ``[before, begun)``, and nobody since.

        ``before`` is where the topic ended before the first attempt, ``begun`` where it ended before this
        one; ``message`` is a tombstone in all but its key. All of them are durable then. Raises
        ConnectionFailed.
        """
        table, topic = route.relation.qualified_name, route.topic
        if all(before.get(number, 0) >= end for number, end in begun.items()):
            return
        account = self._report.account
        self._report.detail = f"looking in topic {topic} for rows of the snapshot that was cut off"
        with tempfile.TemporaryDirectory(prefix="bwtui-") as folder:
            database = sqlite3.connect(Path(folder) / "keys.sqlite")
            database.execute("pragma synchronous = off")
            database.execute("pragma journal_mode = off")
            database.execute(f"pragma cache_size = -{_CACHE}")
            database.execute("create table left_over (key blob primary key) without rowid")
            try:
                with account.during("readback"):
                    self._collect(database, topic, before, begun, sessions)
                count = self._send(database, route, message)
            finally:
                database.close()
        if count:
            self._report.table(table).note(f"{count} rows of a snapshot that was cut off were removed")

    def _collect(
        self,
        database: sqlite3.Connection,
        topic: str,
        before: Offsets,
        begun: Offsets,
        sessions: Collection[bytes],
    ) -> None:
        for records in _many(self._records(topic, before, begun)):
            # Of each key its last record counts.
            last = {record.key: record.session in sessions and not record.is_tombstone for record in records}
            _each(database, "insert or ignore into left_over values (?)", (k for k in last if last[k]))
            _each(database, _DELETE, (key for key in last if not last[key]))
        for records in _many(self._records(topic, begun, self._end_offsets(topic))):
            _each(database, _DELETE, {record.key for record in records})

    def _records(self, topic: str, start: Offsets, end: Offsets) -> Iterator[KeyRecord]:
        """Read a part of ``topic``, and note at each pause whether anything came since the one before."""
        count = seen = 0

        def wait() -> None:
            nonlocal seen
            if count > seen:
                self._report.account.answered()
            seen = count
            self._pulse(0)

        for record in self._destination.readback.keys(topic, start, end, wait):
            count += 1
            yield record

    def _send(self, database: sqlite3.Connection, route: Route, message: Message) -> int:
        count = 0
        rows = database.execute("select key from left_over")
        while batch := rows.fetchmany(_BATCH):
            span = Span()
            messages = [message._replace(key=key) for (key,) in batch]
            receipt = self._recorder.write_cleanup(route, messages) if self._recorder is not None else None
            self._destination.sink.send(route.topic, messages, span, receipt)
            with self._report.account.during("settling"):
                while span.pending:
                    self._pulse(0.05)
            if self._recorder is not None and receipt is not None:
                self._recorder.settled([receipt])
            count += len(batch)
        return count


def _many(records: Iterator[KeyRecord]) -> Iterator[list[KeyRecord]]:
    return iter(lambda: list(islice(records, _BATCH)), [])


def _each(database: sqlite3.Connection, sql: str, keys: Iterable[bytes]) -> None:
    """Run a statement for each key, in the order of their pages: it costs half of what one by one does."""
    database.executemany(sql, ((key,) for key in sorted(keys)))
