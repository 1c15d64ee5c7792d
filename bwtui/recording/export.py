"""Exports a recording: chooses changes, and hands them to the writer of a format; memory holds one batch."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, Literal, Protocol, get_args

from bwtui.recording.change import Change
from bwtui.recording.query import Query
from bwtui.recording.view import OnProgress, RecordingView

Format = Literal["parquet", "jsonl", "sql"]
FORMATS: tuple[Format, ...] = get_args(Format)
_PROGRESS_EVERY = 1024


@dataclass(frozen=True, slots=True)
class Selection:
    """Which changes are meant: all conditions must hold; ranges include both ends, times are commit times."""

    query: Query | None = None
    #: Of ``schema.table``, wholly; ``public`` may be left out.
    table: re.Pattern[str] | None = None
    from_lsn: int | None = None
    to_lsn: int | None = None
    from_time: int | None = None
    to_time: int | None = None
    with_repeats: bool = False

    def takes(self, change: Change) -> bool:
        """Whether ``change`` is meant."""
        return (
            (self.with_repeats or not change.is_repeat)
            and (self.from_lsn is None or change.lsn >= self.from_lsn)
            and (self.to_lsn is None or change.lsn <= self.to_lsn)
            and (self.from_time is None or change.commit_time >= self.from_time)
            and (self.to_time is None or change.commit_time <= self.to_time)
            and (self.table is None or any(map(self.takes_table, change.tables)))
            and (self.query is None or self.query.matches(change))
        )

    def takes_table(self, qualified: str) -> bool:
        """Whether the table called ``schema.table`` is meant."""
        if self.table is None:
            return True
        bare = qualified.removeprefix("public.")
        return self.table.fullmatch(qualified) is not None or self.table.fullmatch(bare) is not None


class Writer(Protocol):
    """Writes changes in one format."""

    def write(self, change: Change) -> None:
        """Write one change."""

    def finish(self) -> None:
        """Write what is left, and the end."""

    def abandon(self) -> None:
        """Let go of the file, which is about to be thrown away."""


def export(view: RecordingView, selection: Selection, writer: Writer, told: OnProgress | None = None) -> int:
    """Give the selected changes of ``view`` to ``writer`` and return how many they are.

    Raises DamagedRecording.
    """
    count = 0
    try:
        for change in _read(view, selection, told):
            if selection.takes(change):
                writer.write(change)
                count += 1
        writer.finish()
    except BaseException:
        writer.abandon()
        raise
    return count


def _read(view: RecordingView, selection: Selection, told: OnProgress | None) -> Iterator[Change]:
    # Whatever comes before that position commits before it; behind it, a later pass may begin lower again.
    start = 0 if selection.from_lsn is None else view.at_lsn(selection.from_lsn)
    for change in view.changes(start):
        if told is not None and change.position % _PROGRESS_EVERY == 0:
            told(change.position, view.length)
        yield change
    if told is not None:
        told(view.length, view.length)


def make_writer(
    form: Format, view: RecordingView, file: BinaryIO, selection: Selection, *, create: bool = False
) -> Writer:
    """Return the writer of ``form``; ``create`` adds CREATE TABLE to SQL."""
    if form == "jsonl":
        from bwtui.recording.export_jsonl import JsonWriter

        return JsonWriter(file)
    if form == "sql":
        from bwtui.recording.export_sql import SqlWriter

        return SqlWriter(file, view.name, selection.takes_table, create=create)
    from bwtui.recording.export_parquet import ParquetWriter

    return ParquetWriter(file)
