"""Verify that Kafka holds what a recording says was sent, from the folder to the report.

::

    report = verify_recording(Path("recordings/shop"), {"bootstrap.servers": "kafka:9092"})
    report.exit_code    # 0 clean, 1 anomalies, 3 indeterminate
"""

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import duckdb

from bwtui.audit import core
from bwtui.audit.decoding import AskRegistry, Schemas
from bwtui.audit.report import SAMPLES, AuditSummary, collect
from bwtui.errors import StateFailed, UsageError
from bwtui.kafka.client import Config
from bwtui.kafka.offsets import PinnedTopics, TopicState
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
from bwtui.verify.byte_reader import KafkaByteReader, RowReader
from bwtui.verify.decode_check import DecodeCheck, one_of
from bwtui.verify.digest_files import DigestFiles
from bwtui.verify.digests import DecodeResult, DigestEngine, OnCount, make_digests
from bwtui.verify.engines.choice import DigestEngines
from bwtui.verify.fields import add_fields
from bwtui.verify.journal_facts import JournalFacts

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
    ids, sessions = _known_ids(connection), _sessions(connection, facts)
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


def _known_ids(connection: duckdb.DuckDBPyConnection) -> dict[str, frozenset[int]]:
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
