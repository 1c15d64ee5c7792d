"""``bwtui doctor`` and a publication of the user's own that has some of the tables."""

import dataclasses

import pytest

from bwtui.cli import doctor
from bwtui.settings import RelaySettings
from bwtui.source import publication, publication_coverage
from bwtui.source.catalog import TableInfo
from bwtui.source.connection import Connection
from bwtui.source.doctor.advice import outside_publication
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
