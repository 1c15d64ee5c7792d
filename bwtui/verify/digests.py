"""Both sides of the audit as digests, computed by tasks.

A task reads files of the recording or part of a partition, and keeps what the audit needs: positions and
digests. Rows stay in the task's Python process: passing them through Java costs ten times as much as reading
them. Which of `bwtui.verify.engines` runs the tasks makes no difference to the report.

Both sides are hashed by MD5 or SipHash (`bwtui.verify.cell_digests`). DuckDB's `hash` costs a tenth of its
MD5, but multiplies word by word: rows that differ only in the last bytes of two words often have the same
hash.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

import duckdb
import pyarrow as pa

from bwtui.audit.core import PARTS
from bwtui.audit.partitioner import murmur2_of
from bwtui.kafka.client import Config
from bwtui.kafka.offsets import PinnedTopics
from bwtui.kafka.split_reader import SplitReadOptions, read_split
from bwtui.kafka.splits import Split, split
from bwtui.model.sql import parquet
from bwtui.recording.format.sent_headers import SENT_HEADERS
from bwtui.recording.manifest import SealedFile
from bwtui.seal.row_groups import rows_at_a_time
from bwtui.spark.task_progress import watching
from bwtui.verify.cell_digests import Digest, drawn
from bwtui.verify.decode_check import COLUMNS, DecodeCheck
from bwtui.verify.digest_files import DigestFiles

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
    wanted: SplitReadOptions
    digest: Digest

    @property
    def with_headers(self) -> bool:
        """Whether headers are digested, too."""
        return "headers" in self.wanted.columns

    def run(
        self, number: int, config: Config, check: Callable[[], None] = lambda: None
    ) -> Iterator[DecodeResult]:
        """Run a task; yield what was compared with PostgreSQL. ``check`` may raise to stop it."""
        task = self.tasks[number]
        if isinstance(task, Split):
            batches = read_split(config, task, self.wanted, check)
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
