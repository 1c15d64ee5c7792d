"""Find records that topics lost, that another producer sent, or that a killed run sent late.

The ends of topics are in a small file in the relay's state folder (`TopicEnds`). A run that ends with no
message in flight stores that the ends are settled: later records are another producer's. After a kill they
are not settled, and only records beyond those that the run can have sent are another producer's
(`RunBounds`). A topic that ends earlier than before has lost acknowledged records: its log was restored from
a backup, or a broker lost what was not on its disk.

A second file has where each topic ended when its count began; the counts themselves are in another
(`bwtui.sink.destination`). Neither waits for the disk, so both are valid only until the machine is
restarted.

Late records were sent by a worker or relay that was killed, and written after newer rows (`LateRecords`). A
produce request stays in a broker's socket buffer when its sender dies, and the broker writes it whenever it
reads the buffer. Only a transactional producer can be fenced: a broker gives an idempotent producer without
transactions a new producer id at each start (KIP-360), and librdkafka sends nothing outside a transaction
once transactional.id is set. So the relay counts late records. No other client writes to the relay's topics,
so a topic grows by the number of messages that this run hands over. If it grows by more, the relay re-sends
the keys that were written more than once since the stream began.

A small file records that a run has messages in flight. Only a start that finds this file looks for late
records, up to the number that the killed run can have sent. Additional records are from another producer, and
the table is not proven any more.

Transactions add a marker to each of their partitions, and a coordinator may write one twice. So with
--exactly-once the offsets only decide whether the records are read and counted.
"""

import json
import logging
import secrets
import shlex
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from bwtui.blocking import StopRequested
from bwtui.durable_files import private_parent, write_atomically, write_durably
from bwtui.errors import BwtuiError, ConnectionFailed, RefusedError
from bwtui.file_errors import file_failed, remove
from bwtui.model.events import event
from bwtui.relay.history.coverage_ledger import ENDS, Coverage
from bwtui.relay.state.run_state import RunState
from bwtui.sink.destination import UNKNOWN_END, Destination, MessageCounts, Offsets, TopicEnd, stored_counts
from bwtui.sink.topics import each, in_batches, keys_on_disk

_log = logging.getLogger(__name__)
#: Changes at each start of the machine; a file that Linux alone has.
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class RunBound(NamedTuple):
    """A run has sent at most ``most`` records to a topic since it ended at ``end``."""

    end: TopicEnd
    most: int


class RunBounds:
    """The bounds of one relay's runs."""

    def __init__(self, path: Path, counts: MessageCounts, *, in_transactions: bool) -> None:
        """``path``: the file of the ends; that of the counts is next to it.

        ``in_transactions``: records are counted, since the markers of transactions are not this run's.
        """
        self._path = path
        self._in_transactions = in_transactions
        self._counts_path = path.with_suffix(".counts")
        self._counts = counts
        self._run = secrets.randbits(62)
        self._kept: dict[str, RunBound] = {}

    def previous(self) -> dict[str, RunBound] | None:
        """Return the bounds of the previous run by topic; None if they are unknown."""
        try:
            data = json.loads(self._path.read_text(encoding="utf-8"))
            run, *counts = stored_counts(self._counts_path)
            if (run, _boot(), self._in_transactions) != (data["run"], data["boot"], data["in_transactions"]):
                return None
            return {
                topic: RunBound(TopicEnd.from_json(id, offsets), counts[place - 1] - base)
                for topic, (place, base, id, offsets) in data["topics"].items()
            }
        except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError):
            return None

    def keep(self, bases: Mapping[str, RunBound]) -> None:
        """Store where counting begins: the ends of topics, and in ``most`` the number to subtract."""
        if bases == self._kept or not _BOOT_ID.exists():
            return
        try:
            boot = _boot()
            places = self._counts.keep(self._counts_path, self._run, bases)
            if not bases.keys() <= places.keys():
                self.forget()
                return
            topics = {topic: (places[topic], base.most, *base.end) for topic, base in bases.items()}
            private_parent(self._path)
            kind = {"boot": boot, "run": self._run, "in_transactions": self._in_transactions}
            write_atomically(self._path, json.dumps({**kind, "topics": topics}))
            self._kept = dict(bases)
        except OSError as error:
            _log.info("%s can't be written: %s", self._path, error, extra=event("topics_unseen"))
            self.forget()

    def forget(self) -> None:
        """Remove the bounds, because the run may have records that it does not count."""
        self._kept = {}
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            _log.info("%s can't be removed: %s", self._path, error, extra=event("topics_unseen"))


def _boot() -> str:
    return _BOOT_ID.read_text(encoding="ascii").strip()


#: Maximum number of records to read at a start: some seconds.
MOST_READ = 5_000_000


def mark_lost(coverage: Coverage, table: str, topic: str, before: TopicEnd, now: TopicEnd) -> bool:
    """Mark ``table`` if its topic ends earlier than ``before``; return whether it does.

    An end never decreases unless acknowledged records are lost, since Kafka reports no end before a new
    leader knows it (KIP-207). A recreated topic is a matter of `bwtui.relay.watch.topic_watch`.
    """
    if before.id != now.id:
        return False
    ends = now.offsets
    lost = sum(
        end - ends[number]
        for number, end in before.offsets.items()
        if UNKNOWN_END < ends.get(number, UNKNOWN_END) < end
    )
    if lost:
        coverage.mark(
            table,
            f"lost {lost:,} records of topic {topic}, which ends earlier than before: a broker was restored "
            "from a backup, or lost records that were not on its disk",
            ENDS,
        )
    return lost > 0


def uncompared(before: TopicEnd, now: TopicEnd | None) -> TopicEnd:
    """Return the partitions of ``before`` whose end is unknown ``now``."""
    if now is None:
        return before
    is_same, ends = before.id == now.id, now.offsets
    offsets = {number: end for number, end in before.offsets.items() if ends.get(number, UNKNOWN_END) < 0}
    return TopicEnd(before.id, offsets if is_same else {})


class TopicEnds:
    """The ends of one relay's topics, kept from run to run."""

    def __init__(
        self, destination: Destination, report: RunState, path: Path, coverage: Coverage, bounds: RunBounds
    ) -> None:
        self._bounds = bounds
        #: Whether the previous run had no message in flight.
        self.is_settled = False
        #: Where topics ended when this run compared them.
        self.checked: dict[str, TopicEnd] = {}
        #: The ends of the previous run that could not be compared: topics or leaders are unknown yet.
        self.uncompared: dict[str, TopicEnd] = {}
        #: The maximum number of records of the previous run that may still arrive, by topic; None if unknown.
        self.awaited: dict[str, int] | None = None
        self._destination = destination
        self._report = report
        self._path = path
        self._coverage = coverage
        #: The content of the file, once the ends of the previous run were compared.
        self._now: dict[str, TopicEnd] | None = None
        #: Set once settled ends are stored, which nothing may replace.
        self._is_stored = False
        self._lock = threading.Lock()

    def files(self) -> dict[str, tuple[str, ...]]:
        """Return the file if there is one; it is about all tables."""
        return {self._path.name: ()} if self._now else {}

    def store(self) -> None:
        """Store where topics end; no message may be in flight. Raises ConnectionFailed and StateFailed."""
        if self._now is None:
            # This run has not compared the ends that the previous run stored.
            return
        tables = self._tables()
        ends = self._destination.service.ends(tables)
        with self._lock:
            for topic in self._now.keys() & ends.keys():
                mark_lost(self._coverage, tables[topic], topic, self._now[topic], ends[topic])
            self._is_stored = True
            self._write(ends, is_settled=True)

    def keep(self, ends: dict[str, TopicEnd]) -> None:
        """Store the ends of topics while messages are in flight, for a start after a kill.

        Any thread may call. Raises StateFailed.
        """
        with self._lock:
            if self._now is None or self._is_stored:
                return
            now = self._now | ends
            if now != self._now:
                self._write(now, is_settled=False)

    def forget(self) -> None:
        """Remove the stored ends, because a snapshot is about to be sent. Raises StateFailed."""
        remove(self._path)
        self._now = {}
        self._bounds.forget()

    def check(self, on_wait: Callable[[], None]) -> None:
        """Mark tables whose topics lost records, or have records that the previous run did not send.

        ``on_wait`` may raise to stop the check. Raises ConnectionFailed and StateFailed.
        """
        tables, (stored, is_settled) = self._tables(), self._stored()
        self.is_settled = is_settled or not stored
        stored = {topic: end for topic, end in stored.items() if topic in tables}
        # Nothing of a run that ended in order can still arrive, if it was transactional.
        is_over = is_settled and self._destination.recall.exactly_once() is not None
        bounds = {} if is_over else self._bounds.previous()
        known = {topic: bound for topic, bound in (bounds or {}).items() if topic in tables}
        self.checked = self._destination.service.ends(stored.keys() | known.keys())
        records = {
            topic: self._records(topic, bound, on_wait)
            for topic, bound in known.items()
            if topic in self.checked
        }
        for topic in stored.keys() & self.checked.keys():
            mark_lost(self._coverage, tables[topic], topic, stored[topic], self.checked[topic])
        if bounds is not None:
            self.awaited = {topic: max(0, known[topic].most - count) for topic, count in records.items()}
        if is_settled:
            for topic in stored.keys() & self.checked.keys():
                more = self._records(topic, RunBound(stored[topic], 0), on_wait)
                self._mark(tables[topic], topic, more, "were written while the relay was stopped")
        else:
            for topic, count in records.items():
                more = count - known[topic].most
                self._mark(tables[topic], topic, more, "this relay did not send")
        self.uncompared = {
            topic: rest
            for topic, end in stored.items()
            if (rest := uncompared(end, self.checked.get(topic))).offsets
        }
        if is_settled or bounds is not None:
            self._coverage.seen(ENDS)
        # The relay is about to send. The file stays, so that its loss is noticed.
        whole = {topic: end for topic, end in self.checked.items() if UNKNOWN_END not in end.offsets.values()}
        self._write(stored | whole, is_settled=False)

    def _mark(self, table: str, topic: str, more: int, how: str) -> None:
        if more > 0:
            self._coverage.mark(
                table,
                f"has {more:,} records in topic {topic} that {how}: another producer or relay wrote to it",
                ENDS,
                has_extra=True,
            )

    def _records(self, topic: str, bound: RunBound, on_wait: Callable[[], None]) -> int:
        """Return how many records a topic got since ``bound``, or its maximum if that is unknown."""
        now = self.checked[topic]
        before = bound.end.offsets if bound.end.id in ("", now.id) else {}
        # A partition without a leader, now or before, is not judged.
        grown = {number: end for number, end in now.offsets.items() if end > before.get(number, 0) >= 0}
        start = {number: before.get(number, 0) for number in grown}
        offsets = sum(end - start[number] for number, end in grown.items())
        if not offsets or self._destination.recall.exactly_once() is None:
            return offsets
        # Some of the offsets are end markers of transactions, which Kafka may write late.
        if bound.most and offsets > MOST_READ:
            return bound.most
        try:
            return self._destination.readback.count(topic, start, grown, on_wait)
        except ConnectionFailed as error:
            if not bound.most:
                raise
            # After a kill the start must not need a right that only this check needs.
            _log.info("the check for other producers failed: %s", error, extra=event("topics_unseen"))
            return bound.most

    def _tables(self) -> dict[str, str]:
        return {counters.topic: name for name, counters in self._report.tables.items() if counters.topic}

    def _write(self, ends: dict[str, TopicEnd], *, is_settled: bool) -> None:
        try:
            private_parent(self._path)
            write_durably(self._path, json.dumps({"is_settled": is_settled, "topics": ends}))
        except OSError as error:
            raise file_failed(f"{self._path} can't be written", error) from error
        self._now = ends

    def _stored(self) -> tuple[dict[str, TopicEnd], bool]:
        """Return the stored ends, and whether the run that stored them had no message in flight."""
        try:
            data: dict[str, Any] = json.loads(self._path.read_text(encoding="utf-8"))
            if "is_settled" not in data:
                # An earlier version stored settled ends only, and no ids.
                data = {"is_settled": True, "topics": {topic: ("", ends) for topic, ends in data.items()}}
            ends = {topic: TopicEnd.from_json(*end) for topic, end in data["topics"].items()}
            return ends, bool(data["is_settled"])
        except FileNotFoundError:
            return {}, False
        except OSError as error:
            raise file_failed(f"{self._path} can't be read", error) from error
        except (ValueError, KeyError, TypeError, AttributeError):
            self._coverage.mark_all(
                "may have records that another producer wrote while the relay was stopped: "
                f"{self._path} is damaged"
            )
            return {}, False


_FIRST_SECONDS, _LOOK_SECONDS = 1.0, 5.0
#: Polling interval while no late records are expected.
RARE_SECONDS = 15.0
_END_SECONDS = 5.0
#: TCP retransmits the data of a dead process for about this long (net.ipv4.tcp_retries2).
WATCH_SECONDS = 900.0
#: Records of another producer that are found later than this after the first ones are not of one write.
_ONCE_SECONDS = 20.0
#: A topic that has late records more often than this has another producer.
_MOST_SCANS = 5
#: With --exactly-once: the maximum numbers of offsets that a poll reads if markers may explain them, first
#: under load, then without; and if markers can't explain them.
_FEW_OFFSETS, _IDLE_OFFSETS, _MOST_OFFSETS = 100_000, 1_000_000, 5_000_000
#: The number of markers of one topic that brokers may have written twice.
_REPEATED_MARKERS = 8
_COUNT = "insert into keys values (?, 1) on conflict do update set records = records + 1"
#: A record of a different run counts twice: its row may have been deleted before this run began.
_COUNT_LATE = "insert into keys values (?, 2) on conflict do update set records = records + 2"


@dataclass(slots=True)
class _WatchedTopic:
    """A topic as it was when the stream began, and what polls have found since."""

    table: str
    begun: TopicEnd
    #: Its end at the last poll.
    polled_end: TopicEnd
    #: Messages that this run had handed over at that time.
    handed_over: int
    #: Messages that this run had handed over at the last poll, and whether none of them was in flight.
    polled: int = 0
    polled_transactions: int = 0
    is_settled: bool = False
    #: Whether this was so at two polls, and nothing was handed over between them.
    was_settled: bool = False
    #: Number of additional records at the last poll, and when the topic was last scanned.
    seen: int = 0
    scanned: int = 0
    scans: int = 0
    #: The maximum number of records of a killed run that may still arrive.
    awaited: int = 0
    #: With --exactly-once: the transactions at the beginning, and from where on the topic was not read, with
    #: the minimum number of this run's messages before it.
    transactions: int = 0
    unread: Offsets = field(default_factory=dict)
    arrived: int = 0
    #: Time at which records of another producer were first found, by ``time.monotonic``.
    foreign_at: float | None = None


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
        bounds: RunBounds,
        ends: TopicEnds | None,
        *,
        is_fenced: bool,
    ) -> None:
        """Note durably in ``path`` that messages may be in flight. Raises StateFailed.

        ``session`` is this run's session id. ``send_again``: see
        `bwtui.relay.history.promotion.OrphanedKeys.send_again`. ``coverage`` records the tables whose
        topics have another producer or lost records; ``ends`` keeps the ends of topics for the next start.
        ``is_fenced``: messages are sent in transactions, so Kafka refuses late records.
        """
        self._coverage = coverage
        self._bounds = bounds
        self._ends = ends
        self._is_fenced = is_fenced
        self._path = path
        self._until = 0.0 if is_fenced else self._expected_until()
        #: For each topic the maximum number of late records; None if it is unknown.
        self._awaited: Mapping[str, int] | None = None
        self._checked: dict[str, TopicEnd] = {}
        #: Ends of the previous run that were not compared yet, and whether it had no message in flight then.
        self._uncompared: dict[str, TopicEnd] = {}
        self._is_settled = False
        if not is_fenced:
            self._write("")
        self._lock = threading.Lock()
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
        """Expect any number of late records: a process was killed while it had messages in flight."""
        if not self._is_fenced:
            self._until = time.time() + WATCH_SECONDS
            self._awaited = None
            self._bounds.forget()

    def resume(self, ends: TopicEnds) -> None:
        """Continue from where the check of the previous run's records ended."""
        self._awaited, self._checked = ends.awaited, ends.checked
        self._uncompared, self._is_settled = dict(ends.uncompared), ends.is_settled
        if self._awaited is None and not ends.is_settled:
            # A killed run with --exactly-once leaves no file, and Kafka ends its transaction later.
            self.expect()

    @property
    def _is_unbounded(self) -> bool:
        return self.is_expected and self._awaited is None

    def expect_beside(self, topic: str, records: int) -> None:
        """Count records that a repair is about to send to ``topic`` directly; only one thread may call it."""
        if (one := self._topics.get(topic)) is not None:
            one.handed_over -= records
            one.arrived -= records
            # They may arrive after the next poll.
            one.is_settled = False
            self._keep()

    def settle(self) -> None:
        """Note that none of this run's own messages is in flight. Raises StateFailed."""
        if self._is_fenced:
            return
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
        self._noted[topic] = self._watched(table, topic, TopicEnd("", ends))

    def begin(self) -> None:
        """Note the topics' ends before the first row is sent. Raises ConnectionFailed."""
        tables = {counters.topic: name for name, counters in self._report.tables.items() if counters.topic}
        ends, checked, self._checked = self._destination.service.ends(tables), self._checked, {}
        for topic, end in checked.items():
            # Nothing of this run was sent since.
            if topic in ends and ends[topic].id == end.id:
                ends[topic] = end
        topics = {topic: self._watched(tables[topic], topic, end) for topic, end in ends.items()}
        for topic, one in topics.items():
            self._compare(topic, one)
        self._topics = topics | self._noted
        self._noted = {}
        self._has_begun = True
        self._keep()

    def _watched(self, table: str, topic: str, end: TopicEnd) -> _WatchedTopic:
        one = _WatchedTopic(table, end, end, 0)
        recall = self._destination.recall
        one.polled_transactions = recall.transactions(topic)
        self._count_from(one, end, recall.handed_over(topic))
        if self.is_expected or self._is_fenced:
            one.awaited = (self._awaited or {}).get(topic, 0)
        if self._is_fenced:
            # They arrive before the killed run's producer is fenced, so before the next poll.
            one.handed_over -= one.awaited
            one.arrived -= one.awaited
        return one

    def _compare(self, topic: str, one: _WatchedTopic) -> None:
        """Compare a topic, to which nothing was sent yet, with what the previous run stored of it.

        A broker that was just started or restored knows neither all topics nor all leaders yet. Partitions
        without a leader are compared once they have one.
        """
        before, now = self._uncompared.get(topic), one.begun
        if before is None or not now.id:
            return
        mark_lost(self._coverage, one.table, topic, before, now)
        rest = uncompared(before, now)
        one.polled_end = TopicEnd(now.id, now.offsets | rest.offsets)
        if self._is_settled and before.id == now.id:
            # Otherwise records between the two ends may be the previous run's.
            known = {number: min(end, now.offsets.get(number, end)) for number, end in before.offsets.items()}
            one.begun = TopicEnd(now.id, now.offsets | known | rest.offsets)
            one.unread = one.begun.offsets
        self._uncompared.pop(topic)
        if rest.offsets:
            self._uncompared[topic] = rest

    @staticmethod
    def _count_from(one: _WatchedTopic, end: TopicEnd, handed_over: int) -> None:
        """Count records from ``end`` on, before which there are ``handed_over`` messages of this run."""
        one.begun, one.handed_over = end, handed_over
        one.unread, one.arrived = end.offsets, handed_over
        one.transactions = one.polled_transactions
        one.seen = one.scanned = 0

    def take(
        self, topics: Iterable[str], *, created: Collection[str] = (), first_used: Collection[str] = ()
    ) -> None:
        """Note the ends of topics that are added while the relay streams, before their first row is sent.

        The relay has just ``created`` some of them. Marks the tables of those in ``first_used`` that have
        records: the relay did not send them. Raises ConnectionFailed, StateFailed.
        """
        tables = {counters.topic: name for name, counters in self._report.tables.items()}
        new = [topic for topic in topics if topic in tables and topic not in self._topics]
        if new and self._has_begun:
            ends = self._destination.service.ends(new)
            for topic in ends.keys() & set(created):
                # Most of its partitions have no leader yet, and their ends would only be known later.
                ends[topic] = TopicEnd(ends[topic].id, dict.fromkeys(ends[topic].offsets, 0))
            self._mark_filled({topic: tables[topic] for topic in new if topic in first_used}, ends)
            # Don't modify the dictionary in place: the polling thread iterates over it.
            added = {
                topic: self._watched(tables[topic], topic, ends.get(topic, TopicEnd("", {}))) for topic in new
            }
            for topic, one in added.items():
                self._compare(topic, one)
            self._topics = self._topics | added
            self._keep()

    def _mark_filled(self, tables: Mapping[str, str], ends: Mapping[str, TopicEnd]) -> None:
        """Mark the tables of topics that have records. Raises ConnectionFailed, StateFailed."""
        for topic, present in self._destination.service.present_topics(tables, with_beginnings=True).items():
            if present is None or topic not in ends:
                continue
            offsets = ends[topic].offsets.values()
            if UNKNOWN_END in offsets or sum(offsets) > (present.lost or 0):
                reason = f"had records in topic {topic} before it joined"
                self._coverage.mark(tables[topic], reason, has_extra=True)

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
        whole = {topic: end for topic, end in ends.items() if UNKNOWN_END not in end.offsets.values()}
        for topic, end in whole.items():
            one = topics[topic]
            late = self._late(topic, one, end)
            self._uncompared.pop(topic, None)
            if self._is_fenced:
                try:
                    self._look_at_transactions(topic, one, end, late)
                except ConnectionFailed as error:
                    # Others may be readable.
                    _log.info("topic %s was not read: %s", topic, error, extra=event("topics_unseen"))
                continue
            most = max(one.scanned, one.awaited if self.is_expected else 0)
            if late > most and not self._is_unbounded:
                # The count is never too high, so a producer that continues is reported, too.
                one.seen = one.scanned = late
                self._mark_foreign(topic, one, late - most)
            elif late > one.seen:
                # More records may follow: scan the topic once it stops growing.
                one.seen = late
            elif one.seen > one.scanned and one.scans < _MOST_SCANS:
                self._scan(topic, one, end.offsets)
        self._keep()
        if self._ends is not None:
            self._ends.keep(whole)
        if len(whole) == len(ends):
            self._coverage.seen(ENDS)
        else:
            leaderless = ", ".join(sorted(ends.keys() - whole.keys()))
            self._coverage.unseen(ENDS, f"partitions have no leader, of topics {leaderless}")

    def _mark_foreign(self, topic: str, one: _WatchedTopic, records: int) -> None:
        now = time.monotonic()
        # Two relays that each re-send what differs would never end.
        continues = one.foreign_at is not None and now - one.foreign_at >= _ONCE_SECONDS
        if one.foreign_at is None:
            one.foreign_at = now
        self._coverage.mark(
            one.table,
            f"has {records:,} records in topic {topic} that this relay did not send: another producer or "
            f"relay {'keeps writing' if continues else 'writes'} to it",
            ENDS,
            by_hand=continues,
            advice=f"stop the other producer of topic {topic}" if continues else "",
            # A later session re-sends messages that were in flight when a session ended, and some may have
            # arrived.
            has_extra=True if self._report.sessions < 2 else None,
        )

    def _look_at_transactions(self, topic: str, one: _WatchedTopic, end: TopicEnd, late: int) -> None:
        """Read and count the records of a topic that has more offsets than messages and transactions.

        ``late`` is that difference, at least. Transactions add one marker each if there is one partition.
        With several, the number of markers is unknown, and a large range of offsets is read only if markers
        can't explain the difference, or if nothing else is going on.
        """
        transactions = one.polled_transactions - one.transactions
        markers = transactions * (len(end.offsets) - 1) + _REPEATED_MARKERS
        unread, foreign = _grown(one.unread, end.offsets), 0
        most = _MOST_OFFSETS if late > markers else _IDLE_OFFSETS if one.was_settled else _FEW_OFFSETS
        if late > 0 and unread <= most:
            counted = self._count(topic, one, end)
            # A repair may have announced records meanwhile.
            arrived = one.arrived + counted
            # Messages in flight can only make this number smaller.
            foreign = arrived - one.polled
            self._count_from(one, end, min(arrived, one.polled))
        elif late > markers or one.was_settled:
            foreign = late - markers
            self._count_from(one, end, one.polled)
        else:
            # The messages that have arrived, at least.
            arrived = late + one.polled - markers
            if arrived > one.arrived:
                one.unread, one.arrived = end.offsets, arrived
        if foreign > 0:
            self._mark_foreign(topic, one, foreign)

    def _count(self, topic: str, one: _WatchedTopic, end: TopicEnd) -> int:
        return self._destination.readback.count(topic, one.unread, end.offsets, self._look_at_stop)

    def _keep(self) -> None:
        """Store the bounds of this run, so that the next start can judge what it finds after a kill."""
        with self._lock:
            if not self._is_unbounded:
                self._bounds.keep({topic: self._bound(one) for topic, one in self._topics.items()})

    def _bound(self, one: _WatchedTopic) -> RunBound:
        if self._is_fenced:
            return RunBound(TopicEnd(one.begun.id, one.unread), one.arrived)
        most = max(one.scanned, one.awaited if self.is_expected else 0)
        return RunBound(one.begun, one.handed_over - most)

    def _late(self, topic: str, one: _WatchedTopic, end: TopicEnd) -> int:
        """Return by how many records a topic has grown beyond the messages of this run, at least."""
        # Read after the ends: messages in flight can only make these numbers larger, never smaller.
        handed_over = self._destination.recall.handed_over(topic)
        one.polled_transactions = self._destination.recall.transactions(topic)
        is_shorter = mark_lost(self._coverage, one.table, topic, one.polled_end, end)
        one.polled_end = end
        if is_shorter or (end.id and one.begun.id and end.id != one.begun.id):
            # It lost records, or was deleted and created again. A comparison proves what it has by now.
            # What was handed over since the last check may still arrive, whatever was in flight meanwhile.
            self._count_from(one, end, min(handed_over - self._report.in_flight, one.polled))
        else:
            one.begun = TopicEnd(end.id or one.begun.id, _known(one.begun.offsets, end.offsets))
            one.unread = _known(one.unread, end.offsets)
        late = _grown(one.begun.offsets, end.offsets) - (handed_over - one.handed_over)
        late -= one.polled_transactions - one.transactions
        is_settled = not self._report.in_flight
        one.was_settled = one.is_settled and is_settled and handed_over == one.polled
        if late < 0 and one.was_settled and not self._is_fenced:
            # These messages never arrived, and may not hide others.
            one.handed_over -= late
            late = 0
        one.polled, one.is_settled = handed_over, is_settled
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
        stop, pause, failures = self._stop, _FIRST_SECONDS, 0
        while not stop.wait(pause):
            pause = _LOOK_SECONDS if self.is_expected else RARE_SECONDS
            try:
                self.look()
                failures = 0
            except StopRequested:
                return
            except Exception as error:
                # One error must not end the polling. Kafka may return without some records, so check soon.
                failures += 1
                pause, is_unexpected = (
                    min(failures * _FIRST_SECONDS, _LOOK_SECONDS),
                    not isinstance(error, BwtuiError),
                )
                level = logging.WARNING if is_unexpected else logging.INFO
                text, extra = "the check for late records failed: %s", event("topics_unseen")
                _log.log(level, text, error, exc_info=is_unexpected, extra=extra)
                if failures > 1:
                    self._coverage.unseen(ENDS, " ".join(str(error).split()))

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


def _known(begun: Offsets, end: Offsets) -> Offsets:
    """Return ``begun``, in which partitions without a leader begin at ``end``."""
    return begun | {number: offset for number, offset in end.items() if begun.get(number) == UNKNOWN_END}


def _grown(begun: Offsets, end: Offsets) -> int:
    """Return the number of offsets between ``begun`` and ``end``."""
    return sum(offset - begun.get(number, 0) for number, offset in end.items())


def _repair(table: str) -> str:
    return f"'bwtui repair --table {shlex.quote(table)}'"
