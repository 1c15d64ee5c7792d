"""Checks periodically whether topics and schemas still are those that rows were sent to and with.

A topic that is deleted, and recreated by the next client that requests it, accepts the next row as if nothing
had happened; so does one whose records retention has deleted, or that has more partitions than before.
Nothing else detects this: Kafka acknowledges, and the topic's former records are missing.

A registry that is restored, or replaced by an empty one, assigns the same ids to different schemas: readers
would then misread rows under those ids, or fail to read them. So the relay ends, and registers its schemas
again when it is restarted. Ids of earlier runs are compared at a start: their tables are not proven if one
identifies a different schema. See docs/faults.md.
"""

import hashlib
import itertools
import json
import logging
import shlex
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from bwtui.durable_files import write_durably
from bwtui.encode.registry import LocalRegistry, SchemaRegistry
from bwtui.errors import BwtuiError, RefusedError, ServiceRefused
from bwtui.model.events import event
from bwtui.relay.history.coverage_ledger import TOPICS, Coverage
from bwtui.relay.state.run_state import RunState, proof_of
from bwtui.sink.destination import Limits, PresentTopic, SinkService, TopicLimits

_log = logging.getLogger(__name__)
#: Number of checks before an id counts as missing: a registry that has just started may not have loaded all.
_MISSING_LOOKS = 2
#: Maximum number of affected tables that the error names.
_NAMED = 20


class SchemaWatch:
    """Compares the schemas of ids in use with those seen at the first check."""

    def __init__(
        self, registry: SchemaRegistry | LocalRegistry, report: RunState, coverage: Coverage
    ) -> None:
        self._registry = registry
        self._report = report
        self._coverage = coverage
        #: Digests of the registry's own text, which may differ from the registered text.
        self._first: dict[int, str] = {}
        #: The same of earlier runs, until they are compared.
        self._former = coverage.schema_digests()
        #: Digests that are not recorded yet.
        self._read: dict[int, str] = {}
        self._missing: dict[int, int] = {}

    def look(self, *, new_ones: bool = False) -> None:
        """Compare once; ``new_ones``: only ids that were not checked yet.

        Raises ServiceRefused, naming the tables, if ids identify other schemas, and ConnectionFailed.
        """
        if not isinstance(self._registry, SchemaRegistry):
            return
        self._check_former()
        # An id that was missing once is checked again at the next check.
        used = [(table, number) for table, number in self._in_use() if number not in self._former]
        numbers = {number for _, number in used}
        self._first = {number: first for number, first in self._first.items() if number in numbers}
        if new_ones:
            used = [(table, number) for table, number in used if number not in self._first]
        wrong = {number: problem for number in {n for _, n in used} if (problem := self._wrong(number))}
        if self._read:
            self._coverage.record_digests(self._read)
            self._read = {}
        if wrong:
            raise _refused([(table, number, wrong[number]) for table, number in used if number in wrong])

    def _check_former(self) -> None:
        """Mark the tables of ids of earlier runs that no longer identify their schemas."""
        for number, digest in list(self._former.items()):
            try:
                problem = self._problem(number, digest)
            except BwtuiError as error:
                # Ids in use are checked in any case; the next check begins with the others.
                self._former[number] = self._former.pop(number)
                _log.info("schema id %d was not checked: %s", number, error, extra=event("topics_unseen"))
                return
            if problem:
                is_reused = number not in self._missing
                self._coverage.lose_schema(number, problem, is_reused=is_reused)
            if problem or number not in self._missing:
                del self._former[number]

    def _wrong(self, number: int) -> str:
        """Return what is wrong with an id, or ""."""
        return self._problem(number, self._first.get(number, ""))

    def _problem(self, number: int, digest: str) -> str:
        assert isinstance(self._registry, SchemaRegistry)
        text = self._registry.text_now(number)
        if text is not None:
            self._missing.pop(number, None)
            now = hashlib.sha256(_form(text).encode()).hexdigest()[:32]
            if digest and digest != now:
                return "now identifies a different schema"
            if not digest:
                self._first[number] = self._read[number] = now
            return ""
        self._missing[number] = self._missing.get(number, 0) + 1
        return "is no longer in the registry" if self._missing[number] >= _MISSING_LOOKS else ""

    def _in_use(self) -> list[tuple[str, int]]:
        return [
            (name, number)
            for name, counters in self._report.tables.items()
            for number in (counters.key_schema_id, counters.value_schema_id)
            if number is not None
        ]


def _form(text: str) -> str:
    """Return a schema in canonical form, whichever node of a registry wrote it."""
    try:
        parsed: Any = json.loads(text)
    except ValueError:
        return text
    return json.dumps(parsed, sort_keys=True)


def _refused(wrong: list[tuple[str, int, str]]) -> ServiceRefused:
    table, number, problem = wrong[0]
    tables = list(dict.fromkeys(name for name, _, _ in wrong))
    more_tables = f" and {len(tables) - 1} other tables" if len(tables) > 1 else ""
    more = f" … and {len(tables) - _NAMED} more" if len(tables) > _NAMED else ""
    return ServiceRefused(
        f"schema id {number} of table {table}{more_tables} {problem}: consumers would misread the rows",
        "restore the registry with its former ids; or start the relay again, which registers "
        "its schemas again, and send the rows again, because consumers can't decode the "
        f"earlier ones: bwtui snapshot {shlex.join(tables[:_NAMED])}{more}",
    )


#: The file name in the state folder.
FILE = "topics.json"
_LOOK_SECONDS = 5.0
#: Interval while a topic is missing, or while a run that ends on its own waits for a check.
_SOON_SECONDS = 1.0
#: One check in this number reads all schemas again.
_RARELY = 6
_END_SECONDS = 5.0
_CLOSES = (
    "no action needed: the relay compares the table with its topic, and sends what differs, with "
    "tombstones for keys in the wrong partition; 'bwtui status' lists the tables that are not proven"
)
#: Number of checks before a topic counts as deleted: a broker that has just started may not know it yet.
_GONE_LOOKS = 2


@dataclass(frozen=True, slots=True)
class _RecordedTopic:
    """The recorded state of a topic that rows were sent to."""

    #: Kafka's topic id, which a recreated topic does not share; "" if it is unknown.
    id: str
    #: 0 if the topic is missing.
    partitions: int
    #: Number of records deleted from its beginning; None if unknown.
    lost: int | None = 0


class TopicWatch:
    """Watches topics during a block, in its own thread, which no other thread waits for."""

    def __init__(
        self, service: SinkService, report: RunState, path: Path, schemas: SchemaWatch, coverage: Coverage
    ) -> None:
        """``path``: the file that keeps the state of topics from run to run.

        ``coverage`` is notified if a table is no longer proven. Raises StateFailed.
        """
        self._service = service
        self._coverage = coverage
        #: Checks run in the watch's thread, new topics come from the relay's.
        self._lock = threading.Lock()
        self._schemas = schemas
        #: The error due to which nothing more may be sent.
        self.refusal: ServiceRefused | None = None
        self._report = report
        self._path = path
        self._cluster, self._recorded = _read(path, coverage)
        self._is_new_run = True
        #: Former topic ids, which a lagging broker may still report.
        self._former: set[str] = set()
        self._missing_checks: dict[str, int] = {}
        #: Topics that this run has sent to.
        self._sent_topics: set[str] = set()
        self._is_over = self._is_awaited = self._has_looked = False
        #: Set to check at once, or to end.
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="topics", daemon=True)

    def __enter__(self) -> "TopicWatch":
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._is_over = True
        self._wake.set()
        # Do not wait for an unanswered request to Kafka: the client is closed with the service.
        self._thread.join(_END_SECONDS)

    def begin_run(self, cluster: str) -> None:
        """Set the id of the Kafka cluster that this run sends to. Raises OSError."""
        with self._lock:
            self._is_new_run = False
            self._take_cluster(cluster)

    def has_looked(self) -> bool:
        """Return whether topics were checked since the first call; missing topics are checked twice."""
        if not self._is_awaited:
            self._is_awaited = True
            self._wake.set()
        return self._has_looked

    def forget(self) -> None:
        """Forget the recorded topics: a new snapshot fills them, whatever they are. Raises OSError."""
        with self._lock:
            self._recorded = {}
            self._remember()

    def first_used(self, limits: Limits) -> set[str]:
        """Return the topics that existed before this relay, in any run, was about to send to them."""
        return {
            topic
            for topic, limits_of in limits.items()
            if isinstance(limits_of, TopicLimits) and not limits_of.is_new and topic not in self._recorded
        }

    def take(self, limits: Limits) -> None:
        """Record topics right before the first row is sent to them. Raises OSError, ConnectionFailed."""
        tables = {counters.topic: name for name, counters in self._report.tables.items()}
        there = {
            topic: PresentTopic(limits_of.id, limits_of.partitions, 0 if limits_of.is_new else None)
            for topic, limits_of in limits.items()
            if isinstance(limits_of, TopicLimits) and limits_of.id and topic in tables
        }
        recorded = self._recorded
        new = [
            topic
            for topic, now in there.items()
            if now.lost is None and (topic not in recorded or recorded[topic].id != now.id)
        ]
        # Records that these topics lost before now are not rows that the relay sent.
        for topic, present in self._service.present_topics(new, with_beginnings=True).items():
            if present is not None and present.id == there[topic].id:
                there[topic] = replace(there[topic], lost=present.lost)
        with self._lock:
            before = dict(self._recorded)
            for topic, now in there.items():
                self._is_there(topic, now, tables[topic])
            if self._recorded != before:
                self._remember()

    def look(self, *, with_beginnings: bool = True) -> None:
        """Check once; ``with_beginnings``: also check for records deleted by retention.

        Raises ConnectionFailed, and OSError if the result can't be stored.
        """
        if self._is_new_run:
            self.begin_run(self._service.cluster_now())
        tables = {
            counters.topic: name
            for name, counters in self._report.tables.items()
            if counters.topic and (counters.messages or counters.topic in self._recorded)
        }
        try:
            present = self._service.present_topics(tables, with_beginnings=with_beginnings)
        except BwtuiError:
            self._report.missing_topics = ()
            raise
        self._report.missing_topics = tuple(
            sorted(
                topic
                for topic, now in present.items()
                if now is None and self._report.table(tables[topic]).messages
            )
        )
        with self._lock:
            before = dict(self._recorded)
            # The state of topics that are not in this check is unknown.
            self._missing_checks = {
                topic: checks for topic, checks in self._missing_checks.items() if topic in present
            }
            for topic, now in present.items():
                if now is None:
                    self._is_gone(topic, tables[topic])
                else:
                    self._missing_checks.pop(topic, None)
                    self._is_there(topic, now, tables[topic])
            if self._recorded != before:
                self._remember()

    def ensure(self, topics: Mapping[str, bool]) -> None:
        """Create the topics in ``topics`` that are missing; the value says whether a topic is keyed.

        A broker that creates topics on demand would let their rows expire. Raises BwtuiError, OSError.
        """
        self.take(self._service.ensure_topics(topics))

    def _take_cluster(self, cluster: str) -> None:
        """Start from scratch if this is a different Kafka cluster: nothing is known of its topics."""
        if cluster and cluster != self._cluster:
            if self._cluster and self._recorded:
                text = "the Kafka cluster is different: %s, previously %s"
                _log.warning(text, cluster, self._cluster, extra=event("kafka_changed"))
                self._report.error(
                    "notice",
                    RefusedError(
                        f"the Kafka cluster ({cluster}) is not the one that rows were sent to before "
                        f"({self._cluster})",
                        "run 'bwtui verify --database' to compare its topics with the tables",
                    ),
                )
                self._coverage.mark_all("goes to a different Kafka cluster, whose topic may lack rows")
            self._cluster, self._recorded = cluster, {}
            self._remember()

    def _remember(self) -> None:
        topics = {topic: asdict(recorded) for topic, recorded in sorted(self._recorded.items())}
        write_durably(self._path, json.dumps({"cluster": self._cluster, "topics": topics}, indent=1))

    def check(self) -> None:
        """Raise ServiceRefused if nothing more may be sent."""
        if self.refusal is not None:
            raise self.refusal

    def _watch(self) -> None:
        for turn in itertools.count():
            is_awaited = self._is_awaited
            why = self._try("topics", self.look)
            is_missing = any(checks < _GONE_LOOKS for checks in self._missing_checks.values())
            if why:
                self._coverage.unseen(TOPICS, why)
            else:
                self._coverage.seen(TOPICS)
                self._has_looked = is_awaited and not is_missing
            try:
                self._try("schemas", partial(self._schemas.look, new_ones=turn % _RARELY != 0))
            except ServiceRefused as error:
                self.refusal = error
                return
            is_soon = bool(why) or is_missing or (self._is_awaited and not self._has_looked)
            self._wake.wait(_SOON_SECONDS if is_soon else _LOOK_SECONDS)
            self._wake.clear()
            if self._is_over:
                return

    @staticmethod
    def _try(subject: str, check: Callable[[], None]) -> str:
        """Call ``check``; return why it failed, or ""."""
        try:
            check()
        except ServiceRefused:
            raise
        except (BwtuiError, OSError) as error:
            # The code that needs an unavailable service reports it.
            _log.info("the %s were not checked: %s", subject, error, extra=event("topics_unseen"))
            return " ".join(str(error).split())
        except Exception as error:
            # An unexpected exception must not end the watch.
            _log.warning("the %s were not checked", subject, exc_info=True, extra=event("topics_unseen"))
            return type(error).__name__
        return ""

    def _is_gone(self, topic: str, table: str) -> None:
        recorded = self._recorded.get(topic)
        self._missing_checks[topic] = self._missing_checks.get(topic, 0) + 1
        if recorded is None or not recorded.id or self._missing_checks[topic] < _GONE_LOOKS:
            return
        self._former.add(recorded.id)
        self._recorded[topic] = replace(recorded, id="", partitions=0, lost=None)
        # What was wrong with the deleted topic is over: the relay creates a new one.
        self._coverage.gap(table, "")
        reason = f"lacks its topic: {topic} was deleted, with every row in it"
        self._coverage.mark(table, reason, TOPICS, has_extra=False)
        self._report_gap(table, f"topic {topic} was deleted with all its records")

    def _is_there(self, topic: str, now: PresentTopic, table: str) -> None:
        recorded = self._recorded.get(topic)
        if now.id in self._former:
            return
        if recorded is None:
            recorded = _RecordedTopic(now.id, now.partitions, now.lost)
        elif recorded.id and now.id and recorded.id != now.id:
            self._former.add(recorded.id)
            # A running producer keeps using its cached partition count for a while, and then updates it.
            partitions = recorded.partitions if topic in self._sent_topics else now.partitions
            recorded = replace(recorded, lost=now.lost, partitions=partitions)
            self._service.refresh(topic)
            reason = f"has a topic that was deleted and created again, without its earlier records: {topic}"
            self._coverage.mark(table, reason, TOPICS, has_extra=False)
            self._report_gap(
                table,
                f"topic {topic} was deleted and created again, and lacks the records that were in it",
            )
        counters = self._report.table(table)
        # Before a table's first row in this run it is unknown whether it has a key.
        is_keyed = bool(counters.key_columns) or (not counters.messages and counters.value_schema_id is None)
        # A topic that had no partitions before contains no earlier rows.
        if is_keyed and recorded.partitions not in (0, now.partitions):
            # First: a producer with the former count would move keys after the comparison has passed them.
            self._service.refresh(topic)
            self._coverage.mark(
                table,
                f"may have rows of one key in several partitions: topic {topic} has {now.partitions} "
                f"now, previously {recorded.partitions}",
                TOPICS,
            )
            self._report_gap(
                table,
                f"topic {topic} has {now.partitions} partitions, previously {recorded.partitions}: later "
                "rows of a key may be in a different partition than earlier ones, so consumers may "
                "read them out of order",
            )
        if now.lost is not None:
            self._has_lost(topic, now, recorded, table)
            recorded = replace(recorded, lost=now.lost)
        self._sent_topics.add(topic)
        self._recorded[topic] = replace(recorded, id=now.id or recorded.id, partitions=now.partitions)

    def _has_lost(self, topic: str, now: PresentTopic, recorded: _RecordedTopic, table: str) -> None:
        """Report records deleted from the beginning of ``topic`` since the last check, if any."""
        assert now.lost is not None
        more = 0 if recorded.lost is None else now.lost - recorded.lost
        is_keyed = self._report.table(table).key_columns or self._coverage.is_keyed(table)
        if not (is_keyed and now.deletes):
            self._coverage.gap(table, "")
        message = f"topic {topic} lost {more:,} records from its beginning"
        if more <= 0:
            return
        if not is_keyed:
            if not recorded.lost:
                hint = (
                    "no action needed if old records may expire; otherwise increase its retention, and "
                    f"run '{_snapshot(table)}'"
                )
                self._report.error("notice", RefusedError(message, hint), table)
        elif not now.deletes:
            self._coverage.mark(table, f"may lack rows: {message}", TOPICS)
            self._report_gap(table, message)
        else:
            reason = (
                f"lacks rows: topic {topic} has cleanup.policy=delete, so Kafka also deletes records of rows "
                "that are still in the table"
            )
            command = self._service.compact_command(topic)
            if self._coverage.gap(table, reason, command):
                hint = f"run '{command}': the relay then compares the table and sends what differs"
                self._report_change(table, message, hint)

    def _report_gap(self, table: str, message: str) -> None:
        """Report what the relay repairs on its own: it is over once a comparison has proven the table."""
        self._report_change(table, message, _CLOSES, proof_of(table))

    def _report_change(self, table: str, message: str, hint: str, dependency: str = "") -> None:
        _log.warning("%s", message, extra=event("topic_changed", table=table, hint=hint))
        self._report.error("topic", RefusedError(message, hint), table, dependency)


def _snapshot(table: str) -> str:
    return f"bwtui snapshot {shlex.quote(table)}"


def _read(path: Path, coverage: Coverage) -> tuple[str, dict[str, _RecordedTopic]]:
    """Return the stored topics, the cluster's id first; if they can't be read, no table is proven."""
    try:
        stored = json.loads(path.read_text())
        for recorded in stored["topics"].values():
            # Earlier versions recorded only whether a loss was reported.
            recorded.pop("is_cut", None)
        return str(stored["cluster"]), {
            topic: _RecordedTopic(**recorded) for topic, recorded in stored["topics"].items()
        }
    except FileNotFoundError:
        if not coverage.is_empty:
            coverage.mark_all(f"may have a recreated topic: {path} is missing")
    except (OSError, ValueError, TypeError, AttributeError, KeyError) as error:
        _log.warning("%s can't be read: %s", path, error, extra=event("memory_unreadable"))
        coverage.mark_all(f"may have a recreated topic: {path} can't be read")
    return "", {}
