"""A repair never plans a tombstone for bytes of a key that the relay itself may write."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from bwtui.audit.canonical_values import Schemas
from bwtui.errors import Indeterminate
from bwtui.relay.healing import heal
from bwtui.relay.healing.heal import HealComparison, HealStateStore
from bwtui.repair.plan import Planner, TablePlan
from bwtui.repair.relay_repair import spellings
from bwtui.repair.strays import KeyPartitioner
from bwtui.settings import RelaySettings
from bwtui.verify.folding import Doubt, KeyDifference
from bwtui.verify.tables import ComparedTable

_TABLE = ComparedTable("public", "orders", "shop.orders", ("id",), ("id",))
_UNKEYED = ComparedTable("public", "log", "shop.log", ("text",), ())
_KEY = {"type": "record", "name": "orders_key", "fields": [{"name": "id", "type": "long"}]}
#: The same id under schema 7, and bytes that can't be read with that schema.
_AVRO, _JSON = b"\0\0\0\0\x07\x02", b'{"id": 1}'
_CUT = b"\0\0\0\0\x07"
_HOMES = KeyPartitioner(RelaySettings(postgres="", slot="shop"))


def planned(folder: Path, raw: bytes, own: Mapping[str, str]) -> TablePlan:
    """Plan for a topic with an extra key, in bytes that match no row's key."""
    planner = Planner(folder, own.get, Schemas({7: json.dumps(_KEY)}), _HOMES)
    planner.take(_TABLE, (), iter([KeyDifference("extra_key", True, None, raw, None)]))
    return planner.tables[0]


@pytest.mark.parametrize("raw", [_AVRO, _JSON])
def test_while_the_relays_own_bytes_are_not_known_none_get_a_tombstone(tmp_path: Path, raw: bytes) -> None:
    plan = planned(tmp_path, raw, {})
    assert (plan.messages, plan.current_bytes, plan.keys) == (0, 1, None)
    assert not plan.is_trusted
    assert "1 keys" in plan.notes()[0]
    assert "bwtui snapshot public.orders" in plan.notes()[0]


@pytest.mark.parametrize(
    ("raw", "own"), [(_AVRO, "7"), (_JSON, "json"), (_CUT, "7"), (b'{"id": ', "json"), (_CUT, None)]
)
def test_the_relays_own_bytes_get_no_tombstone_though_they_cant_be_decoded(
    tmp_path: Path, raw: bytes, own: str | None
) -> None:
    plan = planned(tmp_path, raw, {} if own is None else {"public.orders": own})
    assert (plan.messages, plan.current_bytes) == (0, 1)


@pytest.mark.parametrize(
    ("raw", "own"),
    [(_AVRO, "8"), (_AVRO, "json"), (_JSON, "7"), (_CUT, "8"), (b'{"id":1}', "json"), (b"?", "7")],
)
def test_bytes_that_the_relay_does_not_write_get_a_tombstone(tmp_path: Path, raw: bytes, own: str) -> None:
    plan = planned(tmp_path, raw, {"public.orders": own})
    assert (plan.raw_tombstones, plan.current_bytes, plan.spelling) == (1, 0, own)


@pytest.mark.parametrize(("raw", "spelling"), [(_AVRO, "7"), (_JSON, "json"), (None, ""), (_CUT, "")])
def test_how_a_topics_keys_are_written_goes_with_them(
    tmp_path: Path, raw: bytes | None, spelling: str
) -> None:
    planner = Planner(tmp_path, lambda _: "9", Schemas({7: json.dumps(_KEY)}), _HOMES)
    planner.take(_TABLE, (), iter([KeyDifference("missing_key", True, ("1",), raw, None)]))
    assert planner.tables[0].spelling == spelling


def test_bytes_that_no_relay_writes_get_a_tombstone_whatever_its_own_are(tmp_path: Path) -> None:
    plan = planned(tmp_path, b'{"id":1}', {})
    assert (plan.raw_tombstones, plan.current_bytes) == (1, 0)


def test_a_relay_knows_its_own_bytes_of_tables_that_it_has_sent_something_of() -> None:
    tables = {
        "avro": {"key_schema_id": 7, "value_schema_id": 8, "messages": 0},
        "json": {"key_schema_id": None, "value_schema_id": None, "messages": 1},
        "not sent": {"key_schema_id": None, "value_schema_id": None, "messages": 0},
        "avro without a key": {"key_schema_id": None, "value_schema_id": 8, "messages": 5},
    }
    assert spellings({"tables": tables}) == {"avro": "7", "json": "json"}


def test_missing_rows_that_no_key_names_are_not_mended_by_what_is_sent(tmp_path: Path) -> None:
    planner = Planner(tmp_path, lambda _: None, Schemas({}), _HOMES)
    doubts = [Doubt("unkeyed", "the table has no key")]
    planner.take(_UNKEYED, doubts, iter([KeyDifference("missing_row", True, None, None, None)]))
    plan = planner.tables[0]
    assert (plan.unnamed, plan.is_trusted) == (1, False)
    assert "'bwtui snapshot -u public.log'" in "; ".join(plan.notes())


def test_a_heal_that_needs_a_table_whole_says_how(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planner = Planner(tmp_path, lambda _: None, Schemas({}), _HOMES, relay="shop")
    missing = KeyDifference("missing_row", True, None, None, None)
    planner.take(_UNKEYED, [Doubt("unkeyed", "the table has no key")], iter([missing]))
    told = {"untrusted": ["public.log"], "tables": [planner.tables[0].to_json()]}
    ended: list[Indeterminate | None] = []
    due = HealStateStore(tmp_path, ("1", "shop", "shop"))
    due.begin("the slot is gone")
    due.record_slot("0/1")
    healing = HealComparison("shop", "bwtui slots drop shop", due, ended.append)
    monkeypatch.setattr(healing._command, "run", lambda *_: (1, told, []))
    monkeypatch.setattr(heal, "name_if_several", lambda name: name)
    healing._work()
    assert due.status is not None
    assert due.status.state == "undecided"
    assert "'bwtui snapshot --relay shop -u public.log'" in due.status.hint
    assert "'bwtui repair --relay shop'" in due.status.hint
    assert [one.hint for one in ended if one is not None] == [due.status.hint]
