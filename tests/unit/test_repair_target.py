"""The relay and the tables that a repair selects."""

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bwtui.cli.inputs import repair_target
from bwtui.errors import RefusedError, UsageError
from bwtui.relay.backfill.chunk_snapshot import chunk_snapshot_path
from bwtui.relay.history.slot_checkpoint import SlotCheckpointStore
from bwtui.relay.process.lock import RelayLock
from bwtui.settings import RelaySettings
from bwtui.state_folder import state_folder

_OWN = RelaySettings(slot="shop", topic_prefix="shop")


@pytest.mark.parametrize(
    ("patterns", "meant"),
    [
        ((), ("public\\.a", "sales\\.b")),
        (("a",), ("public\\.a",)),
        ((r"public\.a",), ("public\\.a",)),
        ((r"sales\..*", "other"), ("sales\\.b",)),
        (("b",), ("(?!)",)),
    ],
)
def test_of_a_report_only_the_tables_that_are_chosen_are_meant(
    patterns: tuple[str, ...], meant: tuple[str, ...]
) -> None:
    assert repair_target._report_tables({"tables": ["public.a", "sales.b"]}, patterns) == meant


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"question": "recording"}, r"is a report on a recording, not on tables"),
        ({"question": "recordings"}, r"is not a report on tables"),
        ({"tables": 5, "source": None}, r"is incomplete: its tables is not a list of table names"),
        ({"tables": ["public.a", 5]}, r"its tables is not a list of table names"),
        ({"source": "shop"}, r"its source is not an object with server, database and slot"),
        ({"source": {"slot": 5}}, r"its source is not an object"),
        ({"window": []}, r"its window is not an object with a time"),
        ({"window": {"now_ms": float("nan")}}, r"its window is not an object"),
        ({"source": None, "window": None}, ""),
    ],
)
def test_a_report_that_was_edited_is_told_by_what_is_wrong_in_it(
    tmp_path: Path, changed: dict[str, object], says: str
) -> None:
    path = tmp_path / "report.json"
    whole = {"verdict": "clean", "question": "database", "tables": ["public.a"], "window": {"now_ms": 1}}
    path.write_text(json.dumps(whole | changed))
    with pytest.raises(UsageError, match=says) if says else contextlib.nullcontext():
        repair_target._read(path)


def test_the_age_of_a_report_without_a_time_is_not_told() -> None:
    assert repair_target._age_note({"window": {}}).startswith(
        "of the report, only its list of tables is used"
    )
    hour_ago = {"window": {"now_ms": (time.time() - 3_600) * 1_000}}
    assert repair_target._age_note(hour_ago).startswith("the report is 1 h 00 m old; only its list")


def test_what_the_relay_has_otherwise_is_refused() -> None:
    for same in (RelaySettings(), RelaySettings(topic_prefix="shop", publication="bwtui_shop")):
        repair_target._refuse_different_settings("shop", same, _OWN)
    with pytest.raises(RefusedError, match=r"different -p/--topic-prefix: shop, not other"):
        repair_target._refuse_different_settings("shop", RelaySettings(topic_prefix="other"), _OWN)
    with pytest.raises(RefusedError, match=r"different --publication: bwtui_shop, not mine"):
        repair_target._refuse_different_settings("shop", RelaySettings(publication="mine"), _OWN)


_SOURCE = {"system_identifier": "7", "database": "shop"}


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Hold the lock of a relay called till, which does not answer, and return its folder."""
    monkeypatch.setenv("BWTUI_STATE_HOME", str(tmp_path))
    lock = RelayLock.acquire("till")
    yield state_folder("till")
    lock.release()


def remember(folder: Path, database: str, slot: str) -> Path:
    memory = SlotCheckpointStore(folder, "7", database, slot)
    memory.remember(100)
    return memory.path


def refuse_local_relays(slot: str = "shop") -> None:
    settings = RelaySettings(slot=slot)
    repair_target.refuse_local_relays(
        repair_target.RepairTarget("", settings, settings, "k", _SOURCE), ["items"]
    )


def test_beside_a_relay_of_ours_that_does_not_answer_nothing_is_sent(running: Path) -> None:
    """A relay's name does not show its slot, but its folder does."""
    remember(running, "shop", "shop")
    with pytest.raises(RefusedError, match="relay till runs on this machine and does not answer"):
        refuse_local_relays()


def test_a_first_snapshot_and_a_memory_that_can_not_be_read_are_of_the_slot(running: Path) -> None:
    chunk_snapshot_path(running, ("7", "shop", "shop")).write_text("{}")
    with pytest.raises(RefusedError, match="relay till"):
        refuse_local_relays()
    chunk_snapshot_path(running, ("7", "shop", "shop")).unlink()
    remember(running, "shop", "shop").write_text("{")
    with pytest.raises(RefusedError, match="relay till"):
        refuse_local_relays()


def test_a_relay_of_another_slot_or_database_is_passed_by(running: Path) -> None:
    remember(running, "shop", "other")
    remember(running, "archive", "shop")
    refuse_local_relays()
    with pytest.raises(RefusedError, match="relay till"):
        refuse_local_relays("till")
