"""Both sides of the audit as digests, computed by tasks.

A task reads files of the recording or part of a partition, and keeps what the audit needs: positions and
digests. Rows stay in the task's Python process: passing them through Java costs ten times as much as reading
them. Which of `bwtui.verify.engines` runs the tasks makes no difference to the report.

Both sides are hashed by MD5 or SipHash (`bwtui.verify.digests`). DuckDB's `hash` costs a tenth of its
MD5, but multiplies word by word: rows that differ only in the last bytes of two words often have the same
hash.
"""

import contextlib
import json
import os
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bwtui.audit import core
from bwtui.audit.canonical_values import Schemas, UndecodableMessage, differing, of_json, parse_row, says
from bwtui.audit.core import PARTS
from bwtui.audit.partitioner import murmur2_of
from bwtui.compiled import speedups
from bwtui.file_errors import file_failed
from bwtui.kafka.client import Config
from bwtui.kafka.columns import SplitReadOptions, read_split
from bwtui.kafka.scan import PinnedTopics, Split, split
from bwtui.model.sql import parquet
from bwtui.recording.payloads import SENT_HEADERS
from bwtui.recording.sealed import SealedFile
from bwtui.seal.task import rows_at_a_time
from bwtui.spark.task_progress import watching

# Keep the digests of both sides of an audit in Parquet files.
#
# This also applies to digests computed by threads of this process: DuckDB loads files faster than memory, in
# which every text is stored in full, and they take no memory.

Side = Literal["expected", "actual"]
SIDES: tuple[Side, Side] = ("expected", "actual")
#: Columns of the recording's side in addition to `bwtui.audit.core.INPUTS`.
_BESIDE = '"schema" varchar, "table" varchar, session varchar, key_schema_id integer, value_schema_id integer'
#: Maximum rows of an output file of a task; finished files show its progress.
_FILE = 250_000


class DigestFiles:
    """Keeps the output of tasks, each with its own part of one side; a file's name ends with its row
    count.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for side in SIDES:
            (folder / side).mkdir()

    def add(self, side: Side, number: int, batches: Iterable[pa.RecordBatch]) -> None:
        """Write the batches of a task; a task that is repeated replaces its files. Raises StateFailed."""
        target = self._folder / side
        for path in target.glob(f"{number:06}-*"):
            path.unlink()
        pending: list[pa.RecordBatch] = []
        count = 0
        for batch in batches:
            pending.append(batch)
            if sum(one.num_rows for one in pending) >= _FILE:
                _write(target / f"{number:06}-{count:04}", pending)
                pending, count = [], count + 1
        if pending:
            _write(target / f"{number:06}-{count:04}", pending)

    def rows(self) -> int:
        """Return the number of rows in finished files."""
        return sum(int(path.stem.rpartition("-")[2]) for side in SIDES for path in self._files(side))

    def show(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Create the audit's inputs from the files: ``expected_in`` and ``actual_in``."""
        for side in SIDES:
            if files := list(self._files(side)):
                connection.execute(f"create view {side}_in as select * from {parquet(files)}")
            else:
                _make_empty(connection, side)

    def _files(self, side: Side) -> Iterator[Path]:
        return (self._folder / side).glob("*.parquet")


def _write(path: Path, batches: list[pa.RecordBatch]) -> None:
    table = pa.Table.from_batches(batches)
    part = path.with_suffix(".part")
    # Looking for duplicates among distinct numbers costs half as much as writing them.
    words = [column.name for column in table.schema if pa.types.is_string(column.type)]
    try:
        pq.write_table(table, part, compression="lz4", write_statistics=False, use_dictionary=words)
        part.rename(path.with_name(f"{path.name}-{table.num_rows}.parquet"))
    except OSError as error:
        # Arrow's own message names the file a second time.
        plain = OSError(error.errno, os.strerror(error.errno)) if error.errno else error
        raise file_failed(
            f"digests can't be written into {path.parent}", plain, name=str(path.parent)
        ) from error


def _make_empty(connection: duckdb.DuckDBPyConnection, side: Side) -> None:
    beside = f", {_BESIDE}" if side == "expected" else ""
    connection.execute(f"create table {side}_in ({core.INPUTS[f'{side}_in']}{beside})")


# Digest each key, value and header list on both sides of an audit to a number of 63 bits.
#
# The digest is DuckDB's MD5, or, in a quarter of the time, SipHash-2-4 (Aumasson and Bernstein, 2012) of the
# C extension, with a random key for each audit. Equal values have equal digests; two different ones have the
# same with a probability of 1 in 2^63, whatever their producer. One audit uses only one of the two: tasks on
# other machines may lack the extension.

#: In this order.
_PARTS = ("key", "value", "headers")


@dataclass(frozen=True, slots=True)
class Digest:
    """The digest function of one audit."""

    #: SipHash's key, 16 bytes; None: MD5.
    key: bytes | None = None

    def __repr__(self) -> str:
        return "Digest(MD5)" if self.key is None else "Digest(SipHash-2-4)"

    def columns(self, headers: str) -> str:
        """Return the columns that a query selects for `put_in`; ``headers`` is SQL for the headers' text."""
        if self.key is not None:
            return f"key, value, {headers} as headers"
        texts = zip(_PARTS, ("key", "value", headers), strict=True)
        return ", ".join(f"(md5_number({text}) >> 65)::bigint as {part}_digest" for part, text in texts)

    def put_in(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch with digests in place of the parts; headers may be missing.

        The digests are its last columns. Digests that a query has computed are there already.
        """
        if self.key is None:
            return batch
        for part in _PARTS:
            has_it = part in batch.schema.names
            digests = self._of(batch.column(part)) if has_it else pa.nulls(batch.num_rows, pa.int64())
            batch = (batch.drop_columns([part]) if has_it else batch).append_column(f"{part}_digest", digests)
        return batch

    def _of(self, cells: pa.Array) -> pa.Array:
        if cells.null_count == len(cells):
            return pa.nulls(len(cells), pa.int64())
        cells = cells.cast(pa.binary())
        _, offsets, data = cells.buffers()
        digests = speedups.digests(offsets, data or b"", cells.offset, len(cells), self.key)
        numbers = pa.Array.from_buffers(pa.int64(), len(cells), [None, pa.py_buffer(digests)])
        return pc.if_else(cells.is_valid(), numbers, None) if cells.null_count else numbers


def drawn(*, is_here: bool) -> Digest:
    """Return the digest function for an audit; ``is_here``: all of its tasks run in this process."""
    return Digest(secrets.token_bytes(16) if is_here and speedups is not None else None)


# Compare messages with the row that PostgreSQL sent, by a second decoder.
#
# Decoding and comparing costs some 30 µs a message, five times as much as the rest of the audit. So a sample
# spread over each table is compared, unless all messages are requested.

#: Number of messages in a sample, divided among the tables in proportion to their messages; and the minimum
#: for each table, since an encoder's error may affect a single table.
SOME, SOME_OF_EACH = 10_000, 250
COLUMNS = ("position", "part", "key", "value", "key_json", "after", "unchanged", "op")


@dataclass(frozen=True, slots=True)
class DecodeCheck:
    """Compares every message, or one of every n messages of each table."""

    #: The schemas that the recording contains, by ID.
    texts: Mapping[int, str]
    is_json: bool
    #: Table → n, if one of every n of its messages is compared.
    every: Mapping[str, int]

    def wrong(self, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the messages (with `COLUMNS`) that differ from what PostgreSQL sent."""
        schemas = Schemas(self.texts)
        return [row for row in rows if _is_wrong(row, schemas, self.is_json)]


def one_of(files: Iterable[SealedFile]) -> dict[str, int]:
    """Return table → n, if one of every n of its messages is compared."""
    rows: Counter[str] = Counter()
    for file in files:
        rows[file.table] += file.rows
    total = max(1, rows.total())
    return {table: max(1, count // max(SOME_OF_EACH, SOME * count // total)) for table, count in rows.items()}


def _is_wrong(row: dict[str, Any], schemas: Schemas, is_json: bool) -> bool:
    if row["value"] is None and row["op"] in ("insert", "snapshot", "backfill"):
        return True
    try:
        if row["value"] is not None and _value(row, schemas, is_json):
            return True
        # A table without a key, or a key with a large value that was not sent.
        if row["key_json"] is None:
            return False
        return row["key"] is None or bool(_key(row, schemas, is_json))
    except UndecodableMessage:
        return True


def _value(row: dict[str, Any], schemas: Schemas, is_json: bool) -> list[str]:
    texts, unsent = parse_row(row["after"]), row["unchanged"] or ()
    if is_json:
        return _json_differs(row["value"], texts, unsent)
    schema, decoded = schemas.decode(row["value"])
    return differing(schema, decoded, texts, unsent)


def _key(row: dict[str, Any], schemas: Schemas, is_json: bool) -> list[str]:
    texts = parse_row(row["key_json"])
    if is_json:
        return _json_differs(row["key"], texts, ())
    schema, decoded = schemas.decode(row["key"])
    escaped = decoded.get("__escaped") or {}
    names = [name for name in decoded if name != "__escaped"]
    # A key's schema lacks the original names, but its fields are in the order of the key's columns.
    if len(names) != len(texts):
        return names
    return [
        column
        for name, (column, text) in zip(names, texts.items(), strict=True)
        if (
            escaped[name] != text
            if name in escaped
            else not says(decoded[name], text, schema.columns[name][1])
        )
    ]


def _json_differs(data: bytes, texts: Mapping[str, str | None], unsent: Sequence[str]) -> list[str]:
    try:
        decoded = json.loads(data, parse_int=str, parse_float=str, parse_constant=str)
    except ValueError as error:
        raise UndecodableMessage("it is not valid JSON") from error
    return [
        name
        for name in {*decoded, *texts} - set(unsent)
        if not _json_says(decoded.get(name), texts.get(name))
    ]


def _json_says(value: Any, text: str | None) -> bool:
    if isinstance(value, str):
        value = of_json(value).removesuffix("\0")
    if isinstance(value, bool):
        return text == ("t" if value else "f")
    if value is None or text is None or value == text:
        return bool(value == text)
    # JSON writes negative zero with a decimal point, and money without currency sign and commas.
    if text.lstrip("-").startswith("$"):
        return bool(value == text.replace("$", "").replace(",", ""))
    return (value, text) == ("-0.0", "-0")


T = TypeVar("T")

#: Called with the number of rows read, and the total.
OnCount = Callable[[int, int], None]

#: The headers of a record, written like `SENT_HEADERS`.
_FOUND_HEADERS = """
case when len(headers) > 0 then array_to_string(
  list_transform(headers, lambda h: h.key || '=' || coalesce(hex(h.value), 'null')), ';') end
"""
_EXPECTED = """
select position * {parts} + part as id, pass, is_repeat, lsn, ordinal, part, op, xid,
       epoch_us(commit_time) as commit_us, epoch_us(received) as received_us,
       topic, "partition", "offset", state, without as no_message_reason,
       "schema", "table", session, key_schema_id, value_schema_id,
       {digests}
  from rows
"""
_ACTUAL = """
select topic, "partition", "offset", offset_end, kind, "timestamp" as timestamp_ms,
       {digests}
  from rows
"""
_KAFKA = ("kind", "topic", "partition", "offset", "offset_end", "timestamp", "key", "value")

_BATCH = 100_000
_BATCH_BYTES = 32 << 20
#: Files of a recording are grouped into tasks of up to this number of rows.
_TASK = 250_000
_MEMORY = "512MB"


class DecodeResult(NamedTuple):
    """The result of comparing messages with PostgreSQL: their number, and the IDs of those that differ."""

    messages: int
    miscoded: list[int]


@dataclass(frozen=True, slots=True)
class DigestJob:
    """The tasks that compute both sides' digests; each can run anywhere, in any order."""

    root: Path
    #: Files of the recording, or a piece of a partition.
    tasks: Sequence[list[SealedFile] | Split]
    sides: DigestFiles
    comparison: DecodeCheck
    options: SplitReadOptions
    digest: Digest

    @property
    def with_headers(self) -> bool:
        """Whether headers are digested, too."""
        return "headers" in self.options.columns

    def run(
        self, number: int, config: Config, check: Callable[[], None] = lambda: None
    ) -> Iterator[DecodeResult]:
        """Run a task; yield what was compared with PostgreSQL. ``check`` may raise to stop it."""
        task = self.tasks[number]
        if isinstance(task, Split):
            batches = read_split(config, task, self.options, check)
            self.sides.add("actual", number, _actual(batches, self.digest, with_headers=self.with_headers))
            return
        with _database() as connection:
            digests = _expected(connection, self.root, task, self.digest, with_headers=self.with_headers)
            self.sides.add("expected", number, _checked(digests, check))
            for every, some in _sampled(task, self.comparison.every):
                yield from _checked(
                    _compared(connection, _rows_of(self.root, some), every, self.comparison), check
                )


class DigestEngine(Protocol):
    """Runs the tasks of a job."""

    @property
    def cores(self) -> int:
        """Number of tasks that run at the same time."""

    @property
    def is_here(self) -> bool:
        """Whether all run in this process."""

    def run(self, job: DigestJob, config: Config) -> Iterable[DecodeResult]:
        """Run all tasks. Raises ConnectionFailed, RefusedError, StateFailed, and any other error of a
        task.
        """


def make_digests(
    engine: DigestEngine,
    root: Path,
    files: Sequence[SealedFile],
    config: Config,
    pinned: PinnedTopics,
    sides: DigestFiles,
    comparison: DecodeCheck,
    on_count: OnCount | None = None,
    *,
    with_headers: bool,
) -> DecodeResult:
    """Compute the digests of the messages that were sent, and of Kafka's records and holes.

    Meanwhile ``comparison`` decodes the messages that it selects; return its results. Both sides are one job,
    so that no core waits for the end of one side before it begins the other. ``with_headers``: headers are
    digested, too. Raises ConnectionFailed, DamagedRecording, StateFailed, and the engine's errors.
    """
    columns = (*_KAFKA, "headers") if with_headers else _KAFKA
    tasks: list[list[SealedFile] | Split] = [*_gathered(files), *split(pinned.offsets, engine.cores)]
    digest = drawn(is_here=engine.is_here)
    job = DigestJob(
        root, tasks, sides, comparison, SplitReadOptions(columns, "read_committed", aborted=True), digest
    )
    with _counting(sides, sum(file.rows for file in files) + pinned.messages, on_count):
        every = list(engine.run(job, config))
    return DecodeResult(sum(one.messages for one in every), [id_ for one in every for id_ in one.miscoded])


# -- tasks ---------------------------------------------------------------------------------------------------


def _gathered(files: Sequence[SealedFile]) -> list[list[SealedFile]]:
    """Group small files; the largest tasks come first."""
    gathered: list[tuple[int, list[SealedFile]]] = []
    for file in sorted(files, key=lambda one: one.rows, reverse=True):
        if gathered and gathered[-1][0] + file.rows <= _TASK:
            rows, batch = gathered.pop()
            gathered.append((rows + file.rows, [*batch, file]))
        else:
            gathered.append((file.rows, [file]))
    return [batch for _, batch in gathered]


def _sampled(files: Sequence[SealedFile], every: Mapping[str, int]) -> Iterator[tuple[int, list[SealedFile]]]:
    """Yield n, and the files of which one of every n rows is compared; n differs by table."""
    by_share: dict[int, list[SealedFile]] = {}
    for file in files:
        by_share.setdefault(every[file.table], []).append(file)
    yield from by_share.items()


@contextlib.contextmanager
def _database() -> Iterator[duckdb.DuckDBPyConnection]:
    # Streaming queries do not spill, and DuckDB would otherwise create a folder in the current one.
    with duckdb.connect(config={"threads": 1, "memory_limit": _MEMORY, "temp_directory": ""}) as connection:
        yield connection


def _rows_of(root: Path, files: Sequence[SealedFile]) -> str:
    return parquet(root / file.path for file in files)


def _expected(
    connection: duckdb.DuckDBPyConnection,
    root: Path,
    files: Sequence[SealedFile],
    digest: Digest,
    *,
    with_headers: bool,
) -> Iterator[pa.RecordBatch]:
    headers = SENT_HEADERS if with_headers else "null::varchar"
    columns = digest.columns(headers)
    if digest.key is None:
        # No value leaves DuckDB except the key, from which the partitioner's hash is computed.
        columns = f"key, {columns}"
    query = _EXPECTED.format(parts=PARTS, digests=columns)
    sql = f"with rows as (select * from {_rows_of(root, files)}) {query}"
    rows = _BATCH if digest.key is None else rows_at_a_time((root / file.path for file in files), _BATCH)
    for batch in connection.sql(sql).to_arrow_reader(rows):
        hashed = batch.append_column("key_hash", murmur2_of(batch.column("key").cast(pa.binary())))
        yield digest.put_in(hashed.drop_columns(["key"]) if digest.key is None else hashed)


def _checked(items: Iterable[T], check: Callable[[], None]) -> Iterator[T]:
    for one in items:
        check()
        yield one


def _actual(
    batches: Iterable[pa.RecordBatch], digest: Digest, *, with_headers: bool
) -> Iterator[pa.RecordBatch]:
    if digest.key is not None and not with_headers:
        yield from (digest.put_in(batch.rename_columns({"timestamp": "timestamp_ms"})) for batch in batches)
        return
    with _database() as connection:
        each = (pa.Table.from_batches([batch]) for batch in batches)
        tables = _merged_batches(batches) if digest.key is None else each
        yield from (digest.put_in(_queried(connection, table, digest)) for table in tables)


def _merged_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Merge small batches: planning a query for each costs as much as hashing its rows."""
    pending: list[pa.RecordBatch] = []
    for batch in batches:
        pending.append(batch)
        if (
            sum(one.num_rows for one in pending) >= _BATCH
            or sum(one.nbytes for one in pending) >= _BATCH_BYTES
        ):
            yield pa.Table.from_batches(pending)
            pending = []
    if pending:
        yield pa.Table.from_batches(pending)


def _queried(connection: duckdb.DuckDBPyConnection, table: pa.Table, digest: Digest) -> pa.RecordBatch:
    connection.register("rows", table)
    headers = _FOUND_HEADERS if "headers" in table.schema.names else "null::varchar"
    sql = _ACTUAL.format(digests=digest.columns(headers))
    result = connection.sql(sql).to_arrow_table().combine_chunks()
    connection.unregister("rows")
    return result.to_batches()[0]


def _compared(
    connection: duckdb.DuckDBPyConnection, source: str, every: int, comparison: DecodeCheck
) -> Iterator[DecodeResult]:
    # Selected by a hash of the position, so that no run of similar rows is skipped.
    chosen = f"topic is not null and hash(position) % {every} = 0"
    rows = connection.sql(f"select {', '.join(COLUMNS)} from {source} where {chosen}")
    for batch in rows.to_arrow_reader(_BATCH // 20):
        messages = batch.to_pylist()
        wrong = comparison.wrong(messages)
        yield DecodeResult(len(messages), [row["position"] * PARTS + row["part"] for row in wrong])


@contextlib.contextmanager
def _counting(sides: DigestFiles, total: int, on_count: OnCount | None) -> Iterator[None]:
    """Call ``on_count`` with the finished rows and ``total``, while the block runs and once after."""
    if on_count is None:
        yield
        return

    def look() -> None:
        if done := sides.rows():
            on_count(min(done, total), total)

    with watching(look):
        yield
    on_count(total, total)
