"""Verify that Kafka holds what a recording says was sent, from the folder to the report.

::

    report = verify_recording(Path("recordings/shop"), {"bootstrap.servers": "kafka:9092"})
    report.exit_code    # 0 clean, 1 anomalies, 3 indeterminate
"""

import contextlib
import json
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import pyarrow as pa

from bwtui.audit import core
from bwtui.audit.canonical_values import (
    ESCAPED,
    AskRegistry,
    Schemas,
    UndecodableMessage,
    parse_row,
    schema_id,
    written,
)
from bwtui.audit.core import PARTS, DifferingPair, Inspection, RecordPlace
from bwtui.audit.report import SAMPLES, AuditFinding, AuditSummary, collect
from bwtui.errors import StateFailed, UsageError
from bwtui.kafka.client import Config, headers_of
from bwtui.kafka.scan import PinnedTopics, Split, SplitScan, TopicState
from bwtui.model.headers import LSN, ORDINAL, SESSION
from bwtui.model.sql import exact
from bwtui.recording.sealed import SealedRecording, check_all, open_sealed
from bwtui.seal.sealing import seal
from bwtui.signals.duckdb_session import session
from bwtui.spark.scratch import scratch
from bwtui.verify.audit_inputs import (
    AuditInputs,
    OpenedRecording,
    basis,
    check_cluster,
    facts_of,
    open_recorded,
)
from bwtui.verify.digests import (
    DecodeCheck,
    DecodeResult,
    DigestEngine,
    DigestFiles,
    OnCount,
    make_digests,
    one_of,
)
from bwtui.verify.engines import DigestEngines
from bwtui.verify.journal_facts import JournalFacts

# Read the bytes of differing items again: messages from the recording, and records from Kafka.

#: Maximum distance of offsets that are read in one go.
_NEAR = 2_000
_HEADERS = "bwtui."
#: How long to wait for a log that ends too early.
_PATIENCE_SECONDS = 5.0


class KafkaRecord(NamedTuple):
    """A record's bytes in Kafka, and its headers written by the relay."""

    key: bytes | None
    value: bytes | None
    headers: Mapping[str, bytes]


class RowReader:
    """Decodes keys and values in either format."""

    def __init__(self, output_format: str, schemas: Schemas) -> None:
        self._is_json = output_format == "json"
        self.schemas = schemas

    def row(self, data: bytes | None) -> Mapping[str, Any] | None:
        """Return the row, or None for null. Raises Undecodable."""
        if data is None:
            return None
        if not self._is_json:
            return self.schemas.decode(data)[1]
        try:
            decoded = json.loads(data)
        except ValueError as error:
            raise UndecodableMessage("it is not valid JSON") from error
        if not isinstance(decoded, dict):
            raise UndecodableMessage("it is not a JSON object")
        return decoded


class KafkaByteReader:
    """Reads differing messages from the recording, and records from Kafka.

    It is the `bwtui.audit.core.ByteReader` of an audit. Raises ConnectionFailed if Kafka can't be read.
    """

    def __init__(
        self,
        config: Config,
        topics: Sequence[str],
        files: Sequence[Path],
        rows: RowReader,
        sent_ids: Mapping[str, frozenset[int]],
        sessions: Iterable[str],
        miscoded: Sequence[int] = (),
    ) -> None:
        """Take ``topics`` in the audit's order, and ``sent_ids``, the schema IDs that were sent to each."""
        self._config = config
        self._topics = topics
        self._files = exact(files)
        self._rows = rows
        self._sent_ids = sent_ids
        self._sessions = {bytes.fromhex(one) for one in sessions if one}
        self._miscoded = miscoded

    def miscoded(self) -> Iterable[int]:
        """Return the IDs that `bwtui.verify.digests` found in the tasks."""
        return self._miscoded

    def equal_rows(self, pairs: Sequence[DifferingPair]) -> Iterator[int]:
        """Yield the IDs of messages that decode to the same row as the records at their offsets."""
        messages = self.messages([pair.id for pair in pairs])
        records = self.records([pair.place for pair in pairs])
        for pair in pairs:
            record, message = records.get(pair.place), messages.get(pair.id)
            if record is None or message is None:
                continue
            try:
                same = all(
                    _plain(self._rows.row(expected)) == _plain(self._rows.row(actual))
                    for expected, actual in ((record.key, message[0]), (record.value, message[1]))
                )
            except UndecodableMessage:
                continue
            if same:
                yield pair.id

    def inspect(self, places: Sequence[RecordPlace]) -> Iterator[Inspection]:
        """Yield which records the relay wrote, and which change their headers name."""
        for place, record in self.records(places).items():
            session = record.headers.get(SESSION)
            made_by_relay = session in self._sessions or self._looks_like_ours(
                self._topics[place.topic_id], record
            )
            named = record.headers if made_by_relay else {}
            yield Inspection(
                *place,
                made_by_relay,
                _number(named.get(LSN)),
                _number(named.get(ORDINAL)),
                session is not None and session not in self._sessions,
            )

    def _looks_like_ours(self, topic: str, record: KafkaRecord) -> bool:
        if record.key is None and record.value is None:
            return False
        try:
            for data in (record.key, record.value):
                if self._rows.row(data) is not None and not self._was_sent(topic, schema_id(data)):
                    return False
        except UndecodableMessage:
            return False
        return True

    def _was_sent(self, topic: str, number: int | None) -> bool:
        """Return whether the schema was sent to the topic, or has the name of one that was.

        The latter happens if the table was altered since.
        """
        sent = self._sent_ids.get(topic, frozenset())
        if number is None or number in sent:
            return True
        return _name_of(self._rows.schemas, number) in {
            _name_of(self._rows.schemas, sent_id) for sent_id in sent
        }

    def messages(self, ids: Sequence[int]) -> dict[int, tuple[bytes | None, bytes | None, dict[str, Any]]]:
        """Return key, value, and the row as PostgreSQL sent it, of messages."""
        if not ids:
            return {}
        requested = pa.table(
            {"position": [number // PARTS for number in ids], "part": [number % PARTS for number in ids]}
        )
        # A hash join with the few requested rows does not spill, which would create a folder in the current
        # one.
        with session(temp_directory="") as connection:
            connection.register("wanted", requested)
            rows = connection.execute(
                "select position, part, key, value, key_json, before, after"
                " from read_parquet(?) semi join wanted using (position, part)",
                [self._files],
            ).fetchall()
        return {
            row[0] * PARTS + row[1]: (
                row[2],
                row[3],
                dict(zip(("key", "before", "after"), row[4:], strict=True)),
            )
            for row in rows
        }

    def records(self, places: Sequence[RecordPlace]) -> dict[RecordPlace, KafkaRecord]:
        """Read records again; those that were removed since the scan are left out."""
        records: dict[RecordPlace, KafkaRecord] = {}
        for (topic_id, partition), group in groupby(sorted(places), key=lambda place: place[:2]):
            for low, high, offsets in _runs(place.offset for place in group):
                split = Split(self._topics[topic_id], partition, low, high)
                for batch in SplitScan(self._config, split, "read_uncommitted", _PATIENCE_SECONDS):
                    for message, offset in zip(batch.messages, batch.offsets, strict=True):
                        if offset in offsets:
                            headers = headers_of(message)
                            relay_headers = {
                                k: v for k, v in headers if k.startswith(_HEADERS) and v is not None
                            }
                            record = KafkaRecord(message.key(), message.value(), relay_headers)
                            records[RecordPlace(topic_id, partition, offset)] = record
        return records


def _plain(value: Any) -> Any:
    """Return a value that is equal only for equal values: in Python 1, 1.0 and true are equal, and 0 and
    -0.
    """
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return type(value), repr(value)


def _name_of(schemas: Schemas, number: int) -> str | None:
    """Return the full name of a record schema, or None for other schemas."""
    parsed = schemas.get(number).parsed
    return parsed.get("name") if isinstance(parsed, dict) else None


def _number(data: bytes | None) -> int | None:
    """Return the number in a header; None if it is longer, or not below 2⁶³, as the relay never writes."""
    number = int.from_bytes(data, "big") if data is not None and len(data) <= 8 else None
    return number if number is not None and number < 1 << 63 else None


def _runs(offsets: Iterable[int]) -> Iterator[tuple[int, int, set[int]]]:
    """Group ascending offsets into ranges that are each read in one go."""
    run: list[int] = []
    for offset in offsets:
        if run and offset - run[-1] > _NEAR:
            yield run[0], run[-1] + 1, set(run)
            run = []
        run.append(offset)
    if run:
        yield run[0], run[-1] + 1, set(run)


# Add the key and the differing fields to findings, with values only on request.

#: Replaces a value that is not shown.
MASKED = "…"
_MOST = 1_000
_DIFFERING = ("corrupted", "regressed", "resurrected", "misrouted", "duplicated", "phantom", "foreign")


def add_fields(
    findings: Sequence[AuditFinding],
    bytes_of: KafkaByteReader,
    reader: RowReader,
    topics: Sequence[str],
    *,
    show_values: bool,
) -> None:
    """Read both sides of the first findings."""
    shown = findings[:_MOST]
    ids = {
        id(finding): finding.position * PARTS + (finding.part or 0)
        for finding in shown
        if finding.position is not None
    }
    messages = bytes_of.messages(sorted(set(ids.values())))
    places = {
        id(finding): RecordPlace(topics.index(finding.topic), finding.partition, finding.offset)
        for finding in shown
        if finding.name in _DIFFERING
        and finding.topic is not None
        and finding.partition is not None
        and finding.offset is not None
    }
    records = bytes_of.records(sorted(set(places.values())))
    for finding in shown:
        message = messages.get(ids.get(id(finding), -1))
        record = records.get(places[id(finding)]) if id(finding) in places else None
        _describe(finding, message, record, reader, show_values=show_values)


def _describe(
    finding: AuditFinding,
    message: tuple[bytes | None, bytes | None, dict[str, Any]] | None,
    record: KafkaRecord | None,
    reader: RowReader,
    *,
    show_values: bool,
) -> None:
    def shown(value: Any) -> Any:
        return value if show_values or value is None else MASKED

    if message is not None:
        key = parse_row(message[2]["key"])
        finding.key = {name: shown(value) for name, value in key.items()} or None
    elif record is not None:
        decoded = _row(reader, record.key)
        finding.key = None if decoded is None else {name: shown(value) for name, value in decoded.items()}
    if message is None or record is None or finding.name not in ("corrupted", "regressed", "resurrected"):
        return
    expected, actual = parse_row(message[2]["after"]), _row(reader, record.value)
    if actual is None:
        contents = "a tombstone" if record.value is None else f"{len(record.value)} bytes that can't be read"
        finding.note = f"{finding.note or ''}; Kafka has {contents}".lstrip("; ")
        return
    if message[1] is None:
        finding.note = f"{finding.note or ''}; a tombstone was sent, but Kafka has a row".lstrip("; ")
    sent = _row(reader, message[1])
    finding.fields = [
        {
            "field": name,
            "sent": shown(sent_value),
            "postgresql": shown(expected.get(name)),
            "kafka": shown(kafka_value),
        }
        for name in sorted({*(sent or {}), *actual})
        for sent_value, kafka_value in [((sent or {}).get(name), actual.get(name))]
        if sent_value != kafka_value
    ]


def _row(reader: RowReader, data: bytes | None) -> Mapping[str, Any] | None:
    try:
        row = reader.row(data)
    except UndecodableMessage:
        return None
    if row is None:
        return None
    return {
        name: None if value is None else written(value) or str(value)
        for name, value in row.items()
        if name != ESCAPED or value
    }


#: Called with a short description of each phase.
OnPhase = Callable[[str], None]

_DUCKDB_MEMORY = "1500MB"
#: Maximum number of rows of a recording that is audited in memory.
_IN_MEMORY = 3_000_000


@dataclass(frozen=True, slots=True)
class VerifyOptions:
    """How thoroughly to verify, on which engine, and what the report shows."""

    #: The Spark master; None: this machine, with or without Spark, whichever is faster.
    spark_master: str | None = None
    #: Whether to compare every message with what PostgreSQL sent, not only a sample.
    deep: bool = False
    show_values: bool = False
    samples: int = SAMPLES
    #: The folder for temporary digests; on a cluster all workers must see it.
    work_folder: Path | None = None


def verify_recording(
    recording: Path | OpenedRecording,
    config: Config,
    options: VerifyOptions | None = None,
    ask: AskRegistry = lambda _: None,
    on_phase: OnPhase = lambda _: None,
    on_count: OnCount | None = None,
) -> AuditSummary:
    """Audit a recording, which may already be open, against Kafka.

    ``on_phase`` and ``on_count`` are called with its progress. Raises UsageError, RefusedError,
    ConnectionFailed, DamagedRecording, StateFailed, `core.Broken`.
    """
    options = options or VerifyOptions()
    begin = time.monotonic()
    engines = DigestEngines(options.spark_master, on_phase)
    with _work(options) as work, engines.closing():
        # Errors of a file, a folder or the brokers are reported before Spark starts.
        on_phase("opening the recording and connecting to Kafka")
        recorded = recording if isinstance(recording, OpenedRecording) else open_recorded(recording)
        check_cluster(recorded.facts, config)
        checked = _sealed_already(recorded, config)
        engine = None if checked is None else engines.of(checked.rows)
        notes = []
        # A running relay may have finished another segment meanwhile.
        if checked is None or engine is None or not checked.sealed.is_complete():
            notes.append(_seal(recorded, engines, on_phase))
            sealed = open_sealed(recorded.folder)
            checked = basis(sealed, facts_of(sealed), config)
            engine = engines.of(checked.rows)
        texts = _schemas(checked.sealed)
        on_phase(f"reading the recording and Kafka: {checked.rows:,} rows")
        sides = DigestFiles(work)
        compared = _digests(engine, checked, config, sides, texts, deep=options.deep, on_count=on_count)
        with _database(work, checked.sealed.manifest.rows) as connection:
            sides.show(connection)
            on_phase("matching messages and records")
            with engines.ended_beside():
                report = _judge(connection, checked, config, compared.miscoded, texts, ask, options)
        notes += _notes(compared.messages, sum(checked.sent.values()), checked.facts)
        report.notes = [*notes, *report.notes, *_differing(report.classes)]
        seconds = time.monotonic() - begin - engines.start_seconds
    report.details = _details(recorded.folder, checked, compared.messages) | {
        "engine": engines.name,
        "seconds": {"spark_start": round(engines.start_seconds, 2), "audit": round(seconds, 2)},
    }
    return report


def _digests(
    engine: DigestEngine,
    checked: AuditInputs,
    config: Config,
    sides: DigestFiles,
    texts: Mapping[int, str],
    *,
    deep: bool,
    on_count: OnCount | None,
) -> DecodeResult:
    manifest = checked.sealed.manifest
    changes = [file for file in manifest.files if file.kind == "changes"]
    every = {file.table: 1 for file in changes} if deep else one_of(changes)
    comparison = DecodeCheck(texts, _is_json(manifest.source), every)
    return make_digests(
        engine, checked.sealed.root, changes, config, checked.pinned, sides, comparison, on_count,
        with_headers=checked.has_headers,
    )  # fmt: skip


def _sealed_already(recorded: OpenedRecording, config: Config) -> AuditInputs | None:
    """Return the audit's inputs, or None if part of the recording is not sealed yet."""
    sealed = recorded.whole()
    if sealed is None:
        return None
    check_all(sealed.root, sealed.manifest.files)
    # Read the facts again: a relay may have continued while every byte was checked, and what it re-sends is
    # pinned.
    return basis(sealed, facts_of(sealed), config)


def _judge(
    connection: duckdb.DuckDBPyConnection,
    checked: AuditInputs,
    config: Config,
    wrong: Sequence[int],
    texts: Mapping[int, str],
    ask: AskRegistry,
    options: VerifyOptions,
) -> AuditSummary:
    """Match both sides, and read the bytes of differences."""
    sealed, pinned, facts = checked.sealed, checked.pinned, checked.facts
    reader = RowReader("json" if _is_json(sealed.manifest.source) else "avro", Schemas(texts, ask))
    topics, files = sorted(pinned.topics), sealed.paths("changes")
    ids, sessions = _schema_ids(connection), _sessions(connection, facts)
    bytes_of = KafkaByteReader(config, topics, files, reader, ids, sessions, wrong)
    window = _inputs(connection, pinned, facts)
    core.run(connection, window, bytes_of)
    report = collect(connection, window, options.samples)
    add_fields(report.findings, bytes_of, reader, topics, show_values=options.show_values)
    return report


def _is_json(source: Mapping[str, Any]) -> bool:
    return source.get("output_format") == "json"


# -- the recording -------------------------------------------------------------------------------------------


def _seal(recorded: OpenedRecording, engines: DigestEngines, on_phase: OnPhase) -> str:
    """Seal what is not sealed yet, and return a note about it."""
    on_phase("sealing the recording")
    outcome = seal(recorded.folder, lambda: engines.for_sealing(recorded.unsealed_bytes()))
    return f"{outcome.changes:,} changes of the recording were sealed before the audit"


def _schemas(sealed: SealedRecording) -> dict[int, str]:
    """Return the texts of the schemas that the recording contains, by ID."""
    files = exact(sealed.paths("schemas"))
    if not files:
        return {}
    with session() as connection:
        rows = connection.execute("select id, schema from read_parquet(?)", [files]).fetchall()
    return dict(rows)


# -- what the core reads -------------------------------------------------------------------------------------


def _inputs(
    connection: duckdb.DuckDBPyConnection, pinned: PinnedTopics, facts: JournalFacts
) -> core.AuditWindow:
    """Fill the small inputs, and return the window."""
    for name in ("topics_in", "partitions_in", "passes_in", "gaps_in"):
        connection.execute(f"create table {name} ({core.INPUTS[name]})")
    core.insert(connection, "topics_in", [_topic_row(state) for state in pinned.topics.values()])
    ranges = [(*place, *offsets) for place, offsets in pinned.offsets.items()]
    core.insert(connection, "partitions_in", ranges)
    passes = [
        (
            number,
            confirmed,
            facts.reached.get(number),
            number in facts.exactly_once,
            facts.committed.get(number),
        )
        for number, confirmed in facts.passes.items()
    ]
    core.insert(connection, "passes_in", passes)
    core.insert(connection, "gaps_in", list(enumerate(facts.gaps)))
    row = connection.execute(
        "select min(lsn), max(lsn), min(received_us), max(commit_us) from expected_in"
    ).fetchone()
    first_lsn, last_lsn, first_received, last_commit = row or (0, 0, 0, 0)
    return core.AuditWindow(
        first_lsn,
        last_lsn,
        facts.confirmed,
        first_received,
        last_commit,
        int(time.time() * 1000),
        facts.resumed,
    )


def _topic_row(state: TopicState) -> tuple[Any, ...]:
    settings = state.settings or {}
    return (
        state.name,
        state.partitions,
        state.settings is not None,
        bool(state.compacts),
        bool(state.deletes),
        *(int(settings.get(key, default)) for key, default in _NUMBERS.items()),
        settings.get("message.timestamp.type") == "LogAppendTime",
    )


_NUMBERS = {
    "retention.ms": -1,
    "retention.bytes": -1,
    "min.compaction.lag.ms": 0,
    "delete.retention.ms": 86_400_000,
}


def _schema_ids(connection: duckdb.DuckDBPyConnection) -> dict[str, frozenset[int]]:
    rows = connection.execute(
        "select distinct topic, key_schema_id, value_schema_id from expected_in where topic is not null"
    ).fetchall()
    ids: dict[str, set[int]] = {}
    for topic, *numbers in rows:
        ids.setdefault(topic, set()).update(number for number in numbers if number is not None)
    return {topic: frozenset(numbers) for topic, numbers in ids.items()}


def _sessions(connection: duckdb.DuckDBPyConnection, facts: JournalFacts) -> set[str]:
    rows = connection.execute("select distinct session from expected_in where session is not null").fetchall()
    return facts.sessions | {session for (session,) in rows}


@contextlib.contextmanager
def _work(options: VerifyOptions) -> Iterator[Path]:
    if options.work_folder is None and not (options.spark_master or "local").startswith("local"):
        raise UsageError(
            "on a cluster, the digests need a folder that all workers can access",
            "give one with --work-folder",
        )
    with contextlib.ExitStack() as stack:
        try:
            work = stack.enter_context(scratch("bwtui-verify-", options.work_folder))
        except OSError as error:
            where = options.work_folder or tempfile.gettempdir()
            raise StateFailed(
                f"digests can't be written to {where}: {error.strerror}",
                "give another folder with --work-folder",
            ) from error
        yield work


@contextlib.contextmanager
def _database(work: Path, rows: int) -> Iterator[duckdb.DuckDBPyConnection]:
    # A database in a file compresses its tables, which costs as much as the audit itself.
    database = ":memory:" if rows <= _IN_MEMORY else work / "audit.duckdb"
    with session(database, memory_limit=_DUCKDB_MEMORY, temp_directory=str(work / "spill")) as connection:
        # Columns contain the order of rows.
        connection.execute("set preserve_insertion_order = false")
        yield connection


# -- notes and details ---------------------------------------------------------------------------------------


def _notes(compared: int, messages: int, facts: JournalFacts) -> list[str]:
    notes = []
    if facts.later:
        notes.append("the changes recorded after the sealed segments were not audited")
    if compared < messages:
        notes.append(
            f"{compared:,} of {messages:,} messages were compared with PostgreSQL's rows; --deep compares all"
        )
    if facts.gaps:
        notes.append(f"the recording has {len(facts.gaps)} gaps: messages sent during a gap can't be audited")
    return notes


def _differing(classes: Mapping[str, int]) -> list[str]:
    """Return notes on differing timestamps and headers: not an anomaly, as readers of rows don't see them."""
    labels = {"time_differs": "timestamps", "headers_differ": "headers"}
    return [
        f"{classes[name]:,} records have different {label} than the messages that were sent"
        for name, label in labels.items()
        if classes.get(name)
    ]


def _details(folder: Path, checked: AuditInputs, compared: int) -> dict[str, Any]:
    manifest, pinned = checked.sealed.manifest, checked.pinned
    return {
        "recording": str(folder),
        "recording_id": manifest.recording,
        "source": manifest.source,
        "inputs": {
            **{segment.name: segment.sha256 for segment in manifest.segments},
            **{file.path: file.sha256 for file in manifest.files},
        },
        "cluster": pinned.cluster_id,
        "settings": {name: dict(state.settings or {}) for name, state in pinned.topics.items()},
        "compared_with_postgresql": compared,
        "versions": dict(_versions("bwtui", "duckdb", "pyspark", "fastavro")),
    }


def _versions(*packages: str) -> Iterator[tuple[str, str]]:
    for name in packages:
        # A small audit runs without Spark.
        with contextlib.suppress(PackageNotFoundError):
            yield name, version(name)
