"""What a relay tells of its publications does not push other errors out of sight."""

import pytest

from bwtui.relay.routes import new_tables
from bwtui.relay.routes.new_tables import NewTables
from bwtui.relay.run_state import RunState
from bwtui.settings import RelaySettings
from bwtui.source.connection import Connection
from bwtui.source.publication_coverage import Shortfall


def test_many_notices_are_some_and_a_count(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [Shortfall(f"table t{number}", None, "is not there", "add it") for number in range(500)]
    monkeypatch.setattr(new_tables, "shortfalls", lambda *_: found)
    report = RunState()
    for _ in range(2):
        NewTables(RelaySettings(new_tables="announce"), report).look(Connection.__new__(Connection))
    told = report.errors()
    assert [entry.message for entry in told[:2]] == ["table t0 is not there", "table t1 is not there"]
    assert len(told) == 21
    assert told[-1].message == "480 more such notices about the publication"


def test_a_hint_with_every_table_is_left_to_doctor(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [Shortfall("publication p", None, "takes in every table", "create " * 1_000)]
    monkeypatch.setattr(new_tables, "shortfalls", lambda *_: found)
    report = RunState()
    NewTables(RelaySettings(new_tables="announce"), report).look(Connection.__new__(Connection))
    (entry,) = report.errors()
    assert entry.hint == "'bwtui doctor' with the relay's options says what to run"
