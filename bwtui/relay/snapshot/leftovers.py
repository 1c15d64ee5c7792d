"""Remove what a killed snapshot left: rows in Kafka that were deleted before the next snapshot began.

A snapshot that was cut off has sent rows. The next one starts over, at a later consistent point. A row that
was deleted in between is in neither the new snapshot nor the stream, so nothing would ever remove it from the
topic. So the first attempt stores where each topic ended before it sent anything. The next attempt finds
every key that was sent since then and that its own snapshot has not sent again, and sends tombstones. A
request of the first attempt may be written as late as during the next one, after that one's row.

A topic may hold another producer's rows. So every row of a snapshot carries its run's id in the header
``bwtui.session``, the ids of unfinished runs are stored, and a key counts as left over only if its last
record carries one of them.
"""

import sqlite3
from collections.abc import Callable, Collection, Iterator

from bwtui.errors import RefusedError
from bwtui.model.delivery import DeliverySpan
from bwtui.relay.context import RelayContext
from bwtui.relay.divergence.keys_on_disk import BATCH, each, in_batches, keys_on_disk
from bwtui.relay.routes.route import TableRoute
from bwtui.sink.base import Message
from bwtui.sink.destination import KeyRecord, Offsets

_DELETE = "delete from left_over where key = ?"


class Leftovers:
    """Finds and removes the leftovers of one topic; memory stays bounded, since the keys are kept on disk."""

    def __init__(
        self, context: RelayContext, pulse: Callable[[float], None], end_offsets: Callable[[str], Offsets]
    ) -> None:
        """``pulse(seconds)`` waits, handles deliveries, and raises to stop the relay.

        ``end_offsets`` is `TopicScanner.end_offsets`, but waits while the broker is unavailable.
        """
        self._destination = context.destination
        self._report = context.report
        self._recorder = context.recorder
        self._orphaned_keys, self._late = context.orphaned_keys, context.late
        self._pulse = pulse
        self._end_offsets = end_offsets

    def remove(
        self,
        route: TableRoute,
        before: Offsets,
        begun: Offsets,
        sessions: Collection[bytes],
        message: Message,
    ) -> None:
        """Send tombstones for keys that ``sessions`` wrote last in ``[before, begun)``, with no record since.

        A request of an earlier attempt may be written during this one, so its records after ``begun`` are not
        this attempt's: such a key gets a tombstone, too, or is sent again if this attempt has its row.

        ``before`` is where the topic ended before the first attempt, ``begun`` where it ended before this
        one; ``message`` is a tombstone without its key. All tombstones are durable when this returns. Raises
        ConnectionFailed.
        """
        table, topic = route.relation.qualified_name, route.topic
        account = self._report.account
        self._report.detail = f"searching topic {topic} for rows of an interrupted snapshot"
        with keys_on_disk("left_over (key blob primary key)") as database:
            database.execute("create table late (key blob primary key) without rowid")
            with account.during("readback"):
                end = self._end_offsets(topic)
                if self._late is not None:
                    self._late.note(table, topic, end)
                self._collect(database, topic, before, (begun, end), sessions)
            count = self._send(database, route, message)
            self._send_again(database, table)
        if count:
            self._report.table(table).note(f"{count} rows of an interrupted snapshot were removed")

    def _collect(
        self,
        database: sqlite3.Connection,
        topic: str,
        before: Offsets,
        attempt: tuple[Offsets, Offsets],
        sessions: Collection[bytes],
    ) -> None:
        """Collect the leftovers, and the late records; this attempt's records are within ``attempt``."""
        for records in in_batches(self._records(topic, before, attempt[0])):
            # The last record of each key counts.
            last = {record.key: record.session in sessions and not record.is_tombstone for record in records}
            each(database, "insert or ignore into left_over values (?)", (k for k in last if last[k]))
            each(database, _DELETE, (key for key in last if not last[key]))
        for records in in_batches(self._records(topic, *attempt)):
            late = {record.key: record.session in sessions and not record.is_tombstone for record in records}
            each(database, "delete from late where key = ?", (key for key in late if not late[key]))
            each(database, "insert or ignore into late values (?)", (key for key in late if late[key]))
            each(database, _DELETE, _sent(records, sessions))
        ((is_late,),) = database.execute("select exists (select 1 from late)")
        if not is_late:
            return
        database.execute("insert or ignore into left_over select key from late")
        for records in in_batches(self._records(topic, *attempt)):
            each(database, _DELETE, _sent(records, sessions))
        database.execute("delete from late where key in (select key from left_over)")

    def _send_again(self, database: sqlite3.Connection, table: str) -> None:
        """Re-send keys if this snapshot's row is followed by a row of an earlier snapshot."""
        ((count,),) = database.execute("select count(*) from late")
        if not count or self._orphaned_keys is None:
            return
        unknown = self._orphaned_keys.send_again(
            table, (key for (key,) in database.execute("select key from late"))
        )
        text = f"{count} rows of an interrupted snapshot were written after newer ones"
        hint = "no action needed: the relay sends these keys again"
        if unknown:
            hint = f"{unknown} keys can't be looked up in the table: run 'bwtui repair --table {table}'"
        self._report.error("topic", RefusedError(text, hint), table)

    def _records(self, topic: str, start: Offsets, end: Offsets) -> Iterator[KeyRecord]:
        """Read a part of ``topic``, and report at each pause if records arrived since the previous one."""
        count = reported = 0

        def wait() -> None:
            nonlocal reported
            if count > reported:
                self._report.account.answered()
            reported = count
            self._pulse(0)

        for record in self._destination.readback.keys(topic, start, end, wait):
            count += 1
            yield record

    def _send(self, database: sqlite3.Connection, route: TableRoute, message: Message) -> int:
        count = 0
        rows = database.execute("select key from left_over")
        while batch := rows.fetchmany(BATCH):
            span = DeliverySpan()
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


def _sent(records: list[KeyRecord], sessions: Collection[bytes]) -> set[bytes]:
    """Return the keys of ``records`` that none of ``sessions`` has written."""
    return {record.key for record in records if record.session not in sessions}
