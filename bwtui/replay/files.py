"""The messages of a recording, which the sending tasks read directly from the sealed files.

Every Spark task reads all files with DuckDB, in the order of the recording, and keeps the rows of its lanes.
This is cheaper than it seems: reading a message takes half a microsecond, while having Java read, sort and
transfer it takes thirty (docs/adr/0023-seal-replay-and-audit-outside-the-jvm.md).
"""

import contextlib
import copy
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import numpy as np
import pyarrow as pa

from bwtui.errors import RefusedError
from bwtui.model.sql import parquet, quoted
from bwtui.recording.manifest import SealedFile
from bwtui.recording.sealed import SealedRecording
from bwtui.recording.selection import ChangeSelection
from bwtui.replay.message_counts import NOT_REFUSED, MessageCount, conditions, files_of, sendable
from bwtui.replay.placement import HEADER_COLUMNS, PartitionSurvey, RowPlacement, lane_counts, surveys
from bwtui.replay.rows import Ints, ReplayRoute
from bwtui.seal.row_groups import rows_at_a_time
from bwtui.signals.duckdb_session import session
from bwtui.spark.scratch import scratch

_RECORDED = "if(state = 'acknowledged', \"partition\", null) as recorded"
#: Milliseconds as the relay sent them; epoch_ms would round them.
_STAMP = "epoch_us(commit_time) // 1000"
_SURVEYED = ("position", "topic", "key", "key_schema_id", _RECORDED)
_SENT = (
    *("position", "part", "topic", "key", "value", "key_schema_id", "value_schema_id", _RECORDED),
    f"{_STAMP} as stamp",
    "epoch_us(received) as received",
)
_COUNT = """
select topic, key_schema_id kid, value_schema_id vid, state = 'refused' refused, {left_out} left_out,
       {recorded}, count(*) messages, sum(size) bytes, max(size) largest, count(*) - count(key) without_key,
       min({stamp}) "first", max({stamp}) "last",
       min(epoch_us(received)) first_received, bool_or(header_form <> 'none') headers
  from (select *, coalesce(octet_length(key), 0) + coalesce(octet_length(value), 0) as size from {files})
 where {where} group by all"""
#: A key with messages in two partitions.
_SPREAD = """
select key from (select key, {recorded} from {files} where {where} and topic = {topic} and key is not null)
 group by key having min(recorded) <> max(recorded) limit 1"""
#: The requested messages that are also selected.
_AMONG = "select position, part from {files} semi join asked using ({names}) where {where}"
_RECEIVED = "select epoch_us(received) received from {files} where {where} limit 1"
#: Number of progress steps while counting.
_STEPS = 20


@dataclass(frozen=True, slots=True)
class FileSelection:
    """Files with absolute paths, and the condition on their rows; what a task needs to read them."""

    files: tuple[SealedFile, ...]
    where: str

    def read(self, file: SealedFile, columns: Sequence[str], start: int = 0) -> Iterator[pa.RecordBatch]:
        """Yield the selected rows of a file from a position on, in order. Raises RefusedError."""
        query = f"select {', '.join(columns)} from {_from([file])} where {self.where}"
        query += f" and position >= {start}" if start > file.first_position else ""
        try:
            # One thread, which keeps the order; the task's core is busy anyway.
            with duckdb.connect(config={"threads": 1}) as connection:
                relation = connection.sql(query)
                # Before DuckDB 2.0 it has a different name.
                reader = getattr(relation, "to_arrow_reader", None) or relation.fetch_record_batch
                yield from reader(rows_at_a_time([Path(file.path)]))
        except (duckdb.IOException, FileNotFoundError, PermissionError) as error:
            raise RefusedError(
                f"{Path(file.path).name} of the recording can't be read",
                "check its permissions; on a cluster, every worker needs the recording under the same path",
            ) from error

    def to_send(self, placing: RowPlacement) -> Iterator[pa.RecordBatch]:
        """Yield the rows not yet sent according to ``placing``, in the order of the recording."""
        columns = (*_SENT, *(HEADER_COLUMNS if placing.with_headers else ()))
        return self.in_order(columns, placing.begin)

    def in_order(self, columns: Sequence[str], start: int) -> Iterator[pa.RecordBatch]:
        """Yield the selected rows of all files from a position on, in the order of the recording."""

        def read(chain: list[SealedFile]) -> Iterator[pa.RecordBatch]:
            return (
                batch
                for file in chain
                if file.last_position >= start
                for batch in self.read(file, columns, start)
                if batch.num_rows
            )

        return merged([read(chain) for chain in chains(self.files)])


def chains(files: Sequence[SealedFile]) -> list[list[SealedFile]]:
    """Arrange files in chains: in each chain, a file begins after the end of the one before it."""
    grouped: list[list[SealedFile]] = []
    for file in sorted(files, key=lambda file: (file.first_position, file.last_position)):
        chain = next((chain for chain in grouped if chain[-1].last_position < file.first_position), None)
        if chain is None:
            grouped.append([file])
        else:
            chain.append(file)
    return grouped


def merged(sources: Sequence[Iterator[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
    """Merge sources that are each ordered by position."""
    heads = [(batch, source) for source in sources for batch in [next(source, None)] if batch is not None]
    while len(heads) > 1:
        # Rows after the smallest last position may have to follow rows that were not read yet.
        bound = min(batch["position"][-1].as_py() for batch, _ in heads)
        ready, remaining = [], []
        for batch, source in heads:
            count = int(np.searchsorted(batch["position"].to_numpy(), bound, "right"))
            ready.append(batch.slice(0, count))
            following: pa.RecordBatch | None = batch.slice(count)
            if count == batch.num_rows:
                following = next(source, None)
            if following is not None:
                remaining.append((following, source))
        heads = remaining
        together = pa.concat_batches([batch for batch in ready if batch.num_rows])
        yield together.take(pa.array(np.argsort(together["position"].to_numpy(), kind="stable")))
    for batch, source in heads:
        yield batch
        yield from source


def _shares(files: Sequence[SealedFile]) -> Iterator[list[SealedFile]]:
    """Yield files in groups with about the same number of rows."""
    least = sum(file.rows for file in files) / _STEPS
    group: list[SealedFile] = []
    for file in files:
        group.append(file)
        if sum(one.rows for one in group) >= least:
            yield group
            group = []
    if group:
        yield group


def _from(files: Sequence[SealedFile]) -> str:
    return parquet(file.path for file in files)


@contextlib.contextmanager
def _duckdb() -> Iterator[duckdb.DuckDBPyConnection]:
    """Open DuckDB, with a folder for data that exceeds its memory."""
    with (
        scratch("bwtui-replay-") as folder,
        session(temp_directory=str(folder / "spill")) as connection,
    ):
        yield connection


class FileRows:
    """The selected rows of a sealed recording."""

    def __init__(self, sealed: SealedRecording, selection: ChangeSelection) -> None:
        """Raises UsageError when no file can have any of them."""
        self._selection = selection
        files = tuple(
            replace(file, path=str((sealed.root / file.path).resolve()))
            for file in files_of(sealed, selection)
        )
        #: Passed to the tasks to read the rows.
        self.files = FileSelection(files, f"{conditions(selection)} and {sendable(selection)}")

    def of_topics(self, topics: Sequence[str]) -> "FileRows":
        """Return the rows of some topics."""
        copied = copy.copy(self)
        names = ", ".join(map(quoted, topics))
        copied.files = replace(self.files, where=f"{self.files.where} and topic in ({names})")
        return copied

    def count(self, on_rows: Callable[[int, int], None]) -> MessageCount:
        """Count the selected rows, reading small columns only; ``on_rows`` gets rows done, and all rows."""
        repeats = "false" if self._selection.with_repeats else "is_repeat"
        counts, done, total = MessageCount(), 0, self.count_read
        for files in _shares(self.files.files):
            for row in self._ask(_COUNT, files, left_out=repeats, where=conditions(self._selection)):
                counts.add(row)
            done += sum(file.rows for file in files)
            on_rows(done, total)
        return counts

    def among(self, reported: pa.Table) -> pa.Table:
        """Return position and part of the selected messages, including repeats, that are in ``reported``."""
        where = f"{conditions(self._selection)} and {NOT_REFUSED}"
        with _duckdb() as connection:
            connection.register("asked", reported)
            text = _AMONG.format(
                files=_from(self.files.files), names=", ".join(reported.column_names), where=where
            )
            return connection.sql(text).to_arrow_table()

    @property
    def count_read(self) -> int:
        """Number of rows in the files, which are all read, whether they are selected or not."""
        return sum(file.rows for file in self.files.files)

    def received_at(self, position: int) -> int | None:
        """Return when a message at a position was received, in Unix microseconds."""
        files = [file for file in self.files.files if file.first_position <= position <= file.last_position]
        times = self._ask(_RECEIVED, files, where=f"position = {position}") if files else []
        return int(times[0].received) if times else None

    def is_spread(self, topic: str) -> bool:
        """Return whether any key of a topic was in two partitions."""
        return bool(self._ask(_SPREAD, self.files.files, where=self.files.where, topic=quoted(topic)))

    def _ask(self, text: str, files: Sequence[SealedFile], **parts: str) -> list[Any]:
        with _duckdb() as connection:
            sql = text.format(recorded=_RECORDED, stamp=_STAMP, files=_from(files), **parts)
            answer = connection.sql(sql)
            row = NamedTuple("Row", [(name, Any) for name in answer.columns])  # type: ignore[misc]
            return [row(*values) for values in answer.fetchall()]

    def survey(
        self, routes: Sequence[ReplayRoute], on_rows: Callable[[int, int], None]
    ) -> list[PartitionSurvey]:
        """Return the distribution of each route's messages; ``on_rows`` gets rows done, and all rows."""
        files, counts, done = self.files.files, lane_counts((), routes), 0

        def count(file: SealedFile) -> Ints:
            return lane_counts(self.files.read(file, _SURVEYED), routes)

        # Nearly all of this runs outside Python, so threads help.
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for file, counted in zip(files, pool.map(count, files), strict=True):
                counts += counted
                done += file.rows
                on_rows(done, self.count_read)
        return surveys(counts, routes)
