"""Export a recording: pass the selected changes to a format's writer, holding one batch in memory."""

from collections.abc import Iterator
from typing import BinaryIO, Literal

from bwtui.crash import packages_needed
from bwtui.recording.change import Change
from bwtui.recording.export.facts import NOTHING, ExportFacts
from bwtui.recording.export.writer import Writer
from bwtui.recording.selection import ChangeSelection
from bwtui.recording.view import OnProgress, RecordingView

Format = Literal["parquet", "jsonl", "sql"]
_PROGRESS_EVERY = 1024


def export(
    view: RecordingView, selection: ChangeSelection, writer: Writer, on_progress: OnProgress | None = None
) -> int:
    """Write the selected changes of ``view`` with ``writer`` and return their number.

    Raises DamagedRecording.
    """
    count = 0
    try:
        for change in _read(view, selection, on_progress):
            if selection.takes(change):
                writer.write(change)
                count += 1
        writer.finish()
    except BaseException:
        writer.abandon()
        raise
    return count


def _read(
    view: RecordingView, selection: ChangeSelection, on_progress: OnProgress | None
) -> Iterator[Change]:
    # Earlier positions commit before ``from_lsn``; later ones need a check, since a new pass may restart
    # lower.
    start = 0 if selection.from_lsn is None else view.at_lsn(selection.from_lsn)
    for change in view.changes(start):
        if on_progress is not None and change.position % _PROGRESS_EVERY == 0:
            on_progress(change.position, view.length)
        yield change
    if on_progress is not None:
        on_progress(view.length, view.length)


def make_writer(
    form: Format,
    view: RecordingView,
    file: BinaryIO,
    selection: ChangeSelection,
    *,
    create: bool = False,
    lacks: ExportFacts = NOTHING,
) -> Writer:
    """Return the writer of ``form``; ``create`` adds CREATE TABLE to SQL, ``lacks`` adds comments to it."""
    if form == "jsonl":
        from bwtui.recording.export.jsonl import JsonWriter

        return JsonWriter(file)
    if form == "sql":
        from bwtui.recording.export.sql import SqlWriter

        clears = any(table.cleanups for table in view.counts(view.length).values())
        return SqlWriter(file, view.name, selection.takes_table, create=create, facts=lacks, clears=clears)
    with packages_needed():
        from bwtui.recording.export.parquet import ParquetWriter

    return ParquetWriter(file)
