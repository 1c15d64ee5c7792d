"""Rows that are put into the stream, exported as SQL: the tables are the same if they were there or not."""

import io
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from bwtui.recording.change import Change
from bwtui.recording.export.sql import SqlWriter
from bwtui.recording.reading.reader import open_recording
from tests.database import session
from tests.integration.test_export_sql import _SCHEMA, contents, copy, folder, recorded, run_all

__all__ = ["copy", "folder"]

pytestmark = pytest.mark.services


def exported(changes: list[Change], *, create: bool) -> str:
    file = io.BytesIO()
    writer = SqlWriter(file, "r", lambda table: True, create=create)
    for change in changes:
        writer.write(change)
    writer.finish()
    return file.getvalue().decode()


@pytest.mark.parametrize("create", [True, False])
@pytest.mark.parametrize("again", [True, False])
def test_rows_that_are_there_and_rows_that_are_not(
    database: str, copy: str, folder: Path, create: bool, again: bool
) -> None:
    """``again``: the snapshot's rows come once more behind it; else those of keyed tables come alone."""
    path, tables = recorded(database, folder)
    with closing(open_recording(path)) as recording:
        changes = list(recording.changes())
    rows = [change for change in changes if change.operation == "snapshot"]
    assert rows == changes[: len(rows)]
    put = [replace(change, operation="backfill", pass_number=2) for change in rows]
    alone = [row for row in rows if not row.key_columns] + [row for row in put if row.key_columns]
    stream = changes[len(rows) :]
    text = exported([*rows, *put, *stream] if again else [*alone, *stream], create=create)
    with session(copy) as target:
        if not create:
            run_all(target, _SCHEMA)
        run_all(target, text)
    assert contents(copy, tables) == contents(database, tables)
    assert "backfilled rows" in text
