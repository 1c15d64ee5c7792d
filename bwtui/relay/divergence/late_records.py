"""Find late records: sent by a worker or relay that was killed, and written after newer rows.

A produce request stays in a broker's socket buffer when its sender dies, and the broker writes it whenever it
reads the buffer. Only a transactional producer can be fenced: a broker gives an idempotent producer without
transactions a new producer id at each start (KIP-360), and librdkafka sends nothing outside a transaction
once transactional.id is set. So the relay counts late records. No other client writes to the relay's topics,
so a topic grows by the number of messages that this run hands over. If it grows by more, the relay re-sends
the keys that were written more than once since the stream began.

A small file records that a run has messages in flight. Only a start that finds this file looks for late
records. At any other time, additional records are from another producer, and the table is not proven any
more.
"""

import logging
import shlex
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from bwtui.blocking import StopRequested
from bwtui.durable_files import private_parent, write_durably
from bwtui.errors import BwtuiError, RefusedError
from bwtui.file_errors import file_failed
from bwtui.model.events import event
from bwtui.relay.coverage.ledger import ENDS, Coverage
from bwtui.relay.divergence.keys_on_disk import each, in_batches, keys_on_disk
from bwtui.relay.run_state import RunState
from bwtui.sink.destination import Destination, Offsets, TopicEnd

_log = logging.getLogger(__name__)
_FIRST_SECONDS, _LOOK_SECONDS = 1.0, 5.0
#: Polling interval while no late records are expected.
RARE_SECONDS = 15.0
_END_SECONDS = 5.0
#: TCP retransmits the data of a dead process for about this long (net.ipv4.tcp_retries2).
WATCH_SECONDS = 900.0
#: A topic that has late records more often than this has another producer.
_MOST_SCANS = 5
_COUNT = "insert into keys values (?, 1) on conflict do update set records = records + 1"
#: A record of a different run counts twice: its row may have been deleted before this run began.
_COUNT_LATE = "insert into keys values (?, 2) on conflict do update set records = records + 2"


@dataclass(slots=True)
class _WatchedTopic:
    """A topic as it was when the stream began, and what polls have found since."""

    table: str
    begun: TopicEnd
    #: Messages that this run had handed over at that time.
    handed_over: int
    #: Messages that this run had handed over at the last poll, and whether none of them was in flight.
    polled: int = 0
    is_settled: bool = False
    #: Number of additional records at the last poll, and when the topic was last scanned.
    seen: int = 0
    scanned: int = 0
    scans: int = 0


class LateRecords:
    """Polls the ends of topics within a ``with`` block, in its own thread."""

    def __init__(
        self,
        destination: Destination,
        report: RunState,
        session: bytes,
        send_again: Callable[[str, Iterable[bytes]], int],
        path: Path,
        coverage: Coverage,
    ) -> None:
        """Note durably in ``path`` that messages may be in flight. Raises StateFailed.

        ``session`` is this run's session id. ``send_again``: see
        `bwtui.relay.divergence.orphaned_keys.OrphanedKeys.send_again`. ``coverage`` records the tables whose
        topics have another producer.
        """
        self._coverage = coverage
        self._path = path
        self._until = self._expected_until()
        self._write("")
        self._destination = destination
        self._sessions = (None, session)
        self._report = report
        self._send_again = send_again
        self._topics: dict[str, _WatchedTopic] = {}
        self._noted: dict[str, _WatchedTopic] = {}
        self._has_begun = False
        self._stop = threading.Event()

    @property
    def is_expected(self) -> bool:
        """Whether late records may arrive."""
        return time.time() < self._until

    def expect(self) -> None:
        """Expect late records from now on: a process was killed while it had messages in flight."""
        self._until = time.time() + WATCH_SECONDS

    def expect_beside(self, topic: str, records: int) -> None:
        """Count records that a repair is about to send to ``topic`` directly; only one thread may call it."""
        if (one := self._topics.get(topic)) is not None:
            one.handed_over -= records
            # They may arrive after the next poll.
            one.is_settled = False

    def settle(self) -> None:
        """Note that none of this run's own messages is in flight. Raises StateFailed."""
        if self.is_expected:
            self._write(repr(self._until))
        else:
            self._path.unlink(missing_ok=True)

    def _expected_until(self) -> float:
        try:
            text = self._path.read_text(encoding="utf-8")
            return float(text) if text else time.time() + WATCH_SECONDS
        except FileNotFoundError:
            return 0.0
        except (OSError, ValueError):
            return time.time() + WATCH_SECONDS

    def _write(self, text: str) -> None:
        try:
            private_parent(self._path)
            write_durably(self._path, text)
        except OSError as error:
            raise file_failed(f"{self._path} can't be written", error) from error

    def note(self, table: str, topic: str, ends: Offsets) -> None:
        """Note where the topic of ``table`` ended when it was read back; `begin` does so for all others."""
        handed_over = self._destination.recall.handed_over(topic)
        self._noted[topic] = _WatchedTopic(table, TopicEnd("", ends), handed_over)

    def begin(self) -> None:
        """Note the topics' ends before the first row is sent. Raises ConnectionFailed."""
        tables = {counters.topic: name for name, counters in self._report.tables.items() if counters.topic}
        recall, ends = self._destination.recall, self._destination.service.ends(tables)
        self._topics = {
            topic: _WatchedTopic(tables[topic], end, recall.handed_over(topic)) for topic, end in ends.items()
        } | self._noted
        self._noted = {}
        self._has_begun = True

    def take(self, topics: Iterable[str]) -> None:
        """Note the ends of topics that are added while the relay streams, before their first row is sent.

        Raises ConnectionFailed.
        """
        tables = {counters.topic: name for name, counters in self._report.tables.items()}
        new = [topic for topic in topics if topic in tables and topic not in self._topics]
        if new and self._has_begun:
            ends, handed_over = self._destination.service.ends(new), self._destination.recall.handed_over
            # Don't modify the dictionary in place: the polling thread iterates over it.
            self._topics = self._topics | {
                topic: _WatchedTopic(tables[topic], ends.get(topic, TopicEnd("", {})), handed_over(topic))
                for topic in new
            }

    def __enter__(self) -> "LateRecords":
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="late records", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._stop.set()
        # No other thread asks for the ends of topics after this.
        self._thread.join(_END_SECONDS)

    def look(self) -> None:
        """Compare the ends of topics with the number of messages sent, once. Raises BwtuiError."""
        topics, ends = self._topics, self._destination.service.ends(self._topics)
        for topic, end in ends.items():
            one = topics[topic]
            late = self._late(topic, one, end)
            if late > one.scanned and not self.is_expected:
                # The count is never too high, so a producer that continues is reported, too.
                more = late - one.scanned
                one.seen = one.scanned = late
                self._coverage.mark(
                    one.table,
                    f"has {more:,} records in topic {topic} that this relay did not send: another "
                    "producer or relay writes to it",
                    ENDS,
                    # A later session re-sends messages that were in flight when a session ended, and some may
                    # have arrived.
                    has_extra=True if self._report.sessions < 2 else None,
                )
            elif late > one.seen:
                # More records may follow: scan the topic once it stops growing.
                one.seen = late
            elif one.seen > one.scanned and one.scans < _MOST_SCANS:
                self._scan(topic, one, end.offsets)
        self._coverage.seen(ENDS)

    def _late(self, topic: str, one: _WatchedTopic, end: TopicEnd) -> int:
        """Return by how many records a topic has grown beyond the messages of this run, at least."""
        # Read after the ends: messages in flight can only make this number larger, never smaller.
        handed_over = self._destination.recall.handed_over(topic)
        if end.id and one.begun.id and end.id != one.begun.id:
            # It was deleted and created again. A comparison proves what it has by now.
            one.begun, one.handed_over = end, handed_over - self._report.in_flight
            one.seen = one.scanned = 0
        elif not one.begun.id:
            one.begun = TopicEnd(end.id, one.begun.offsets)
        begun = one.begun.offsets
        late = sum(n - begun.get(number, 0) for number, n in end.offsets.items())
        late -= handed_over - one.handed_over
        if late < 0 and one.is_settled and handed_over == one.polled:
            # These messages never arrived, and may not hide others.
            one.handed_over -= late
            late = 0
        one.polled, one.is_settled = handed_over, not self._report.in_flight
        return late

    def _is_keyed(self, table: str) -> bool:
        return bool(self._report.table(table).key_columns) or self._coverage.is_keyed(table)

    def _mark_unknown(self, topic: str, one: _WatchedTopic, unknown: int) -> None:
        if unknown:
            says = (
                f"has {unknown:,} keys in topic {topic} that can't be looked up: another producer wrote them"
            )
            self._coverage.mark(one.table, says, ENDS)

    def _watch(self) -> None:
        stop, pause = self._stop, _FIRST_SECONDS
        while not stop.wait(pause):
            pause = _LOOK_SECONDS if self.is_expected else RARE_SECONDS
            try:
                self.look()
            except StopRequested:
                return
            except BwtuiError as error:
                _log.info("the check for late records failed: %s", error, extra=event("topics_unseen"))
            except Exception:
                # One error must not end the polling.
                _log.warning("the check for late records failed", exc_info=True, extra=event("topics_unseen"))

    def _scan(self, topic: str, one: _WatchedTopic, ends: Offsets) -> None:
        """Re-send the keys that were written more than once since the stream began."""
        if not self._is_keyed(one.table):
            # Rows without a key that were in flight are sent twice in any case.
            one.scanned = one.seen
            return
        records, handed_over = 0, self._destination.recall.handed_over
        with keys_on_disk("keys (key blob primary key, records int)") as database:
            read = self._destination.readback.keys(topic, one.begun.offsets, ends, self._look_at_stop)
            for batch in in_batches(read):
                records += len(batch)
                each(database, _COUNT, (it.key for it in batch if it.session in self._sessions))
                each(database, _COUNT_LATE, (it.key for it in batch if it.session not in self._sessions))
            repeated_sql = "select key from keys where records > 1"
            # End markers of transactions are not records, but count as offsets.
            is_late = records > handed_over(topic) - one.handed_over
            ((count,),) = database.execute(f"select count(*) from ({repeated_sql})")
            if is_late:
                keys = (key for (key,) in database.execute(repeated_sql))
                unknown = self._send_again(one.table, keys) if count else 0
                self._tell(topic, one, count, unknown)
                self._mark_unknown(topic, one, unknown)
        one.scanned = one.seen
        one.scans += is_late

    def _look_at_stop(self) -> None:
        if self._stop.is_set():
            raise StopRequested

    def _tell(self, topic: str, one: _WatchedTopic, count: int, unknown: int) -> None:
        more = one.seen - one.scanned
        text = (
            f"topic {topic} has {more:,} records that this run did not send: late requests of a killed "
            "relay or worker, or records of another producer"
        )
        if unknown:
            hint = f"{unknown:,} of {count:,} keys can't be looked up: run {_repair(one.table)}"
        elif count:
            hint = f"no action needed: the relay re-sends the current rows of {count:,} keys"
        else:
            hint = "no action needed: no key has an older row after a newer one"
        if one.scans + 1 == _MOST_SCANS:
            hint = f"find the producer that keeps writing to the topic, then run {_repair(one.table)}"
        _log.warning("%s", text, extra=event("topic_changed", table=one.table, hint=hint))
        self._report.error("topic", RefusedError(text, hint), one.table)


def _repair(table: str) -> str:
    return f"'bwtui repair --table {shlex.quote(table)}'"
