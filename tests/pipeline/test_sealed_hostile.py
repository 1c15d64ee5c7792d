"""A sealed recording may contain anything: no path leaves its folder, and no text is run as SQL."""

import contextlib
import json
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

from bwtui.errors import DamagedRecording
from bwtui.model.sql import parquet, quoted
from bwtui.recording.check import check
from bwtui.recording.query_language import ChangeSelection
from bwtui.recording.sealed import MANIFEST, SEALED, open_sealed, with_checksum
from bwtui.replay.rows import FileRows
from tests.pipeline.test_seal import local
from tests.recorded_stream import Stream, table

#: A table name, and so a topic name, that ends a literal in SQL.
NAME = "it's"
HOSTILE: tuple[Any, ...] = (
    None, True, -2, 1 << 64, 1.5, "", "1", [], {}, "../../etc/passwd", "/etc/passwd", "changes/../../x",
    "changes/*.parquet", "x'); drop table e; --", "\0", "\ud800", [[]], {"a": 1}, [1], "changes\\x",
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sealed recording, in a folder whose name looks like a pattern and like SQL."""
    stream = Stream(tmp_path_factory.mktemp("hostile") / "r[1]'*")
    stream.begin_pass()
    for key in range(3):
        stream.change("insert", table(1, NAME), key, b"body")
        stream.commit()
    stream.stop()
    local(stream.folder)
    return stream.folder


def places(content: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each value in a manifest."""
    if path:
        yield path
    pairs = content.items() if isinstance(content, dict) else ()
    for name, inner in pairs if not isinstance(content, list) else enumerate(content[:1]):
        yield from places(inner, (*path, name))


def changed(content: Any, path: tuple[Any, ...], value: Any) -> Any:
    copy = json.loads(json.dumps(content))
    inner = copy
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = value
    return copy


def test_every_field_of_a_manifest_may_be_anything(folder: Path) -> None:
    manifest = folder / SEALED / MANIFEST
    whole = manifest.read_bytes()
    content = json.loads(whole)
    del content["sha256"]
    refused = 0
    try:
        for path in places(content):
            # The values of the source are only compared and shown, so they may have any form.
            if path[0] in ("changes", "rows") or (path[:1] == ("source",) and len(path) > 1):
                continue
            for value in HOSTILE:
                with contextlib.suppress(UnicodeEncodeError):
                    manifest.write_text(with_checksum(changed(content, path, value)))
                try:
                    opened = open_sealed(folder, check_files=False)
                except DamagedRecording:
                    refused += 1
                    assert check(folder).verdict == "damaged"
                    continue
                root = opened.root.resolve()
                assert all(root in found.resolve().parents for found in opened.paths()), (path, value)
    finally:
        manifest.write_bytes(whole)
    assert refused > 200
    assert check(folder).verdict == "clean"


def test_a_topic_and_a_folder_are_no_sql(folder: Path) -> None:
    rows = FileRows(open_sealed(folder), ChangeSelection())
    assert rows.count(lambda *_: None).topics[NAME].messages == 3
    assert not rows.is_spread(NAME)
    assert rows.of_topics([NAME]).files.where.endswith("topic in ('it''s')")
    assert rows.received_at(0) is not None


@pytest.mark.parametrize("name", ["it's", 'a"b', "[x]", "a*", "x'); select 1; --", "ü", "a?b"])
def test_any_name_is_quoted(tmp_path: Path, name: str) -> None:
    path = tmp_path / name / "x.parquet"
    path.parent.mkdir()
    with duckdb.connect() as connection:
        connection.execute(f"copy (select {quoted(name)} as said) to {quoted(str(tmp_path / 'y.parquet'))}")
        (tmp_path / "y.parquet").rename(path)
        assert connection.execute(f"select said from {parquet([path])}").fetchall() == [(name,)]


def test_nobody_else_may_read_it(folder: Path) -> None:
    for path in (folder, *folder.rglob("*")):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), path
