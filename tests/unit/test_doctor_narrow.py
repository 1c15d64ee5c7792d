"""``bwtui doctor`` with a user-managed publication that has only some of the tables."""

import dataclasses
from types import SimpleNamespace

import pytest

from bwtui.cli import doctor
from bwtui.errors import BwtuiError, RefusedError
from bwtui.settings import RelaySettings
from bwtui.source import connection, preflight, publication, publication_coverage
from bwtui.source.catalog import TableInfo
from bwtui.source.connection import Connection
from bwtui.source.doctor import outside_publication
from bwtui.source.preflight import Check
from bwtui.source.publication_coverage import Shortfall

CONNECTION = Connection.__new__(Connection)
OWN = RelaySettings(publication="shop")


def lacking(name: str, says: str = "is not in the publication") -> Shortfall:
    table = TableInfo(1, "public", name, "d", True, True, False, None)
    outside = says == "is not in the publication"
    return Shortfall(f"table public.{name}", table, says, "run: …", captured=False, outside=outside)


def results(monkeypatch: pytest.MonkeyPatch, settings: RelaySettings, *found: Shortfall) -> dict[str, str]:
    """Return the result of each check, by its name."""
    monkeypatch.setattr(publication_coverage, "shortfalls", lambda *_: iter(found))
    monkeypatch.setattr(publication, "existing", lambda *_: ("shop",))
    return {
        one.name: f"FAIL {one.error.message}" if one.error else f"ok {one.message}"
        for one in doctor._captured(CONNECTION, settings)
    }


def test_a_table_outside_the_users_own_publication_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [lacking(f"t{number}") for number in range(7)]
    assert results(monkeypatch, OWN, *found) == {"tables are captured": "ok all of publication shop"}
    (note,) = outside_publication(OWN, found)
    assert note.name == "tables outside the publication"
    assert note.message == (
        "publication shop does not contain 7: public.t0, public.t1, public.t2, public.t3, public.t4 "
        "and 2 more"
    )
    assert "--table" in note.hint
    # The reader is in doctor already.
    assert "bwtui doctor" not in note.hint


@pytest.mark.parametrize(
    "settings", [RelaySettings(), dataclasses.replace(OWN, tables=("t0",))], ids=["bwtui's", "--table"]
)
def test_a_table_that_was_requested_still_fails(
    monkeypatch: pytest.MonkeyPatch, settings: RelaySettings
) -> None:
    expected = {"table public.t0": "FAIL is not in the publication"}
    assert results(monkeypatch, settings, lacking("t0")) == expected
    assert not list(outside_publication(settings, [lacking("t0")]))


def test_a_listed_table_without_its_inserts_still_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    found = lacking("t0", "is published without its inserts")
    assert results(monkeypatch, OWN, found, lacking("t1")) == {
        "table public.t0": "FAIL is published without its inserts"
    }


@pytest.mark.parametrize("is_relays", [True, False])
def test_a_slot_that_is_not_a_relays_is_not_to_be_dropped(
    monkeypatch: pytest.MonkeyPatch, is_relays: bool
) -> None:
    """It has no publication, and the hint for a missing publication would drop a standby's slot."""

    def refuse(message: str, hint: str) -> str:
        raise RefusedError(message, hint)

    checks = (
        Check("slot", lambda: "will be resumed" if is_relays else refuse("slot f1 is a physical slot", "-s")),
        Check("publications", lambda: refuse("slot f1 exists, but …", "run 'bwtui slots drop f1'")),
    )
    monkeypatch.setattr(preflight, "server_checks", lambda *_: checks)
    info = SimpleNamespace(user="cdc", host="db", port=5432, dbname="shop")
    server = SimpleNamespace(info=info, close=lambda: None)
    monkeypatch.setattr(connection, "connect", lambda _: server)
    results = {one.name: one for one in doctor._postgres(RelaySettings())}
    assert results["tables are captured"].message == "not checked, see publications"
    assert results["slot is free"].skipped is not is_relays
    publications = results["publications"]
    assert publications.skipped is not is_relays
    assert publications.message == ("" if is_relays else "not checked, see slot")
    assert any("slots drop" in one.error.hint for one in results.values() if one.error) is is_relays


@pytest.mark.parametrize(
    ("as_json", "marked"), [(True, 'checks with "result": "failed"'), (False, "lines marked FAIL")]
)
def test_the_final_hint_names_the_marks_of_the_output(
    as_json: bool, marked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = doctor.PrerequisiteResult("slot", error=RefusedError("no slot", "make one"))
    monkeypatch.setattr(doctor, "_results", lambda *_: [failed])
    with pytest.raises(BwtuiError) as ended:
        doctor._report(RelaySettings(), None, as_json)
    assert ended.value.hint == f"fix the {marked}, from the top, and run this again"
