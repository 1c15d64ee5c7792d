"""Messages about publications do not displace other errors."""

import pytest

from bwtui.relay.routes import publications
from bwtui.relay.routes.publications import NewTables
from bwtui.relay.state.run_state import RunState
from bwtui.settings import RelaySettings
from bwtui.source.catalog import CatalogRelation
from bwtui.source.connection import Connection
from bwtui.source.publication_coverage import Shortfall


def test_many_notices_are_some_and_a_count(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [Shortfall(f"table t{number}", None, "is not there", "add it") for number in range(500)]
    monkeypatch.setattr(publications, "shortfalls", lambda *_: found)
    report = RunState()
    for _ in range(2):
        NewTables(RelaySettings(new_tables="announce"), report).check(Connection.__new__(Connection))
    told = report.errors()
    assert [entry.message for entry in told[:2]] == ["table t0 is not there", "table t1 is not there"]
    assert len(told) == 21
    assert told[-1].message == "480 more such notices about the publication"


def test_a_notice_ends_with_its_shortfall(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [Shortfall("table outside", None, "is not in the publication", "add it")]
    monkeypatch.setattr(publications, "_SECONDS", 0)
    report = RunState()
    checked = NewTables(RelaySettings(new_tables="announce"), report)
    for expected, lasts in ((found, True), ([], False), ([], False), (found, True), ([], False)):
        monkeypatch.setattr(publications, "shortfalls", lambda *_, expected=expected: expected)
        checked.check(Connection.__new__(Connection))
        (entry,) = report.errors()
        assert entry.is_over is not lasts
    assert entry.since is not None


def test_a_notice_beyond_the_listed_ones_is_not_over(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [Shortfall(f"table t{number}", None, "is not there", "add it") for number in range(30)]
    monkeypatch.setattr(publications, "_SECONDS", 0)
    report = RunState()
    checked = NewTables(RelaySettings(new_tables="announce"), report)
    for order in (found, found[::-1], found[5:]):
        monkeypatch.setattr(publications, "shortfalls", lambda *_, order=order: order)
        checked.check(Connection.__new__(Connection))
    over = {entry.message for entry in report.errors() if entry.is_over}
    gone = {f"table t{number} is not there" for number in range(5)}
    assert over == gone | {"10 more such notices about the publication"}


def test_a_hint_with_every_table_is_left_to_doctor(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [Shortfall("publication p", None, "takes in every table", "create " * 1_000)]
    monkeypatch.setattr(publications, "shortfalls", lambda *_: found)
    report = RunState()
    NewTables(RelaySettings(new_tables="announce"), report).check(Connection.__new__(Connection))
    (entry,) = report.errors()
    assert entry.hint == "'bwtui doctor --relay bottledwater' says what to run"


def test_a_dropped_table_is_noted_until_it_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publications, "_SECONDS", 0)
    monkeypatch.setattr(publications, "shortfalls", lambda *_: ())
    report = RunState()
    checked = NewTables(RelaySettings(new_tables="announce"), report)
    report.table("public.a")
    for present, is_noted in ((["public.a"], False), ([], True), ([], True), (["public.a"], False)):
        found = [CatalogRelation(name, "r", []) for name in present]
        monkeypatch.setattr(publications, "find_named", lambda *_, found=found: found)
        checked.check(Connection.__new__(Connection))
        noted = ["it was dropped or renamed: its topic keeps the rows sent so far"]
        assert report.tables["public.a"].notes == (noted if is_noted else [])
