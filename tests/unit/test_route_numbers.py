"""Route numbers in a recording: one per description, and unlimited though a segment has few."""

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from bwtui.recording.blocks import BlockKind, SegmentFile
from bwtui.recording.check import check
from bwtui.recording.folder import segments
from bwtui.recording.reader import open_recording
from tests.recorded_stream import Stream
from tests.recorded_stream import table as recorded_table
from tests.scripted_relay import ScriptedRelay, table

COLUMNS = ["id", "code", "body"]


def routes(folder: Path) -> list[list[dict[str, Any]]]:
    """Return the contents of each segment's ROUTE blocks."""
    found = []
    for segment in segments(folder):
        with segment.path.open("rb") as file:
            blocks = SegmentFile(file, segment.path.name).blocks()
            found.append([json.loads(block.payload) for block in blocks if block.kind == BlockKind.ROUTE])
    return found


def insert(relay: ScriptedRelay, relation: Any, key: str, *, announced: bool) -> None:
    relay.begin()
    if announced:
        relay.announce(relation, key)
    relay.insert(relation, [b"1", b"2", b"3"])
    relay.commit()
    relay.play()


def test_reconnects_and_announcements_that_change_nothing_use_up_no_number(tmp_path: Path) -> None:
    relay = ScriptedRelay(tmp_path)
    relation = table(7, "t", COLUMNS)
    for number in range(50):
        if number % 5 == 0:
            relay.connect()
        insert(relay, relation, "id", announced=True)
    relay.close()
    assert [len(found) for found in routes(relay.folder)] == [1]
    assert check(relay.folder).verdict == "clean"


def test_a_relation_that_is_announced_again_asks_the_catalog_alone(tmp_path: Path) -> None:
    relay = ScriptedRelay(tmp_path)
    relation = table(7, "t", COLUMNS)
    for _ in range(3):
        insert(relay, relation, "id", announced=True)
    assert relay.registry.asked == 2, "the subjects of key and value"
    insert(relay, relation, "code", announced=True)
    assert relay.registry.asked == 4, "under FULL the key may have changed though the RELATION is the same"
    keys = [message[0] for _, message in relay.sink.delivered]
    assert len(set(keys[:3])) == 1 and keys[3] not in keys[:3]
    relay.close()


def test_a_key_that_changes_and_comes_back_is_read_back(tmp_path: Path) -> None:
    relay = ScriptedRelay(tmp_path)
    relation = table(7, "t", COLUMNS)
    wanted = ["id", "code", "id", "code", "code", "id"]
    for key in wanted:
        insert(relay, relation, key, announced=True)
        # There is no message: only the newest route shows the key.
        relay.begin()
        relay.truncate(relation)
        relay.commit()
        relay.play()
    relay.close()
    assert {found["route"] for (one,) in [routes(relay.folder)] for found in one} == {0, 1}
    assert check(relay.folder).verdict == "clean"
    with closing(open_recording(relay.folder)) as recording:
        found = [change.key_columns for change in recording.changes()]
    assert found == [(key,) for key in wanted for _ in range(2)]


def test_a_segment_without_numbers_left_is_followed_by_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bwtui.relay.rows.journal_recorder.ROUTES", 7)
    stream = Stream(tmp_path / "recording")
    stream.begin_pass()
    for number in range(40):
        relation = recorded_table(100 + number % 20, f"t{number % 20}")
        stream.change("insert", relation, number, b"body")
        if number % 3:
            stream.change("dropped", relation, number, b"body")
        if number % 4 == 0:
            stream.commit()
        stream.flush()
        stream.deliver()
    stream.stop()
    found = routes(stream.folder)
    assert len(found) >= 6
    assert all([one["route"] for one in numbers] == list(range(len(numbers))) for numbers in found)
    assert max(map(len, found)) <= 7
    assert check(stream.folder).verdict == "clean"
    with closing(open_recording(stream.folder)) as recording:
        changes = list(recording.changes())
    assert [(c.table, c.operation) for c in changes] == [
        (one.tables[0], one.operation) for one in stream.changes
    ]
    assert all(m.topic == c.relation.name for c in changes for m in c.messages)


def test_a_table_that_was_forgotten_is_described_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bwtui.relay.routes.route._ROUTES_KEPT", 2)
    relay = ScriptedRelay(tmp_path)
    first = table(7, "first", COLUMNS)
    insert(relay, first, "id", announced=True)
    for number in range(12):
        insert(relay, table(100 + number, f"t{number}", COLUMNS), "id", announced=True)
    assert relay._streaming is not None and 7 not in relay._streaming.rows.routes
    # PostgreSQL has announced it already, and announces it only once.
    insert(relay, first, "id", announced=False)
    relay.begin()
    relay.truncate(table(100, "t0", COLUMNS), first)
    relay.commit()
    relay.play()
    relay.close()
    assert check(relay.folder).verdict == "clean"
    with closing(open_recording(relay.folder)) as recording:
        changes = list(recording.changes())
    assert [c.tables for c in changes[-2:]] == [("public.first",), ("public.t0", "public.first")]
