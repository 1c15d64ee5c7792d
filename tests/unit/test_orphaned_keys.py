"""Keys that Kafka has and a promoted standby lacks are listed, and re-sent with --heal, despite kills."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from bwtui.encode.registry import LocalRegistry
from bwtui.errors import RefusedError
from bwtui.kafka.key_reader import RecentRecord, RecentRecords
from bwtui.model.backfill import BackfillRequest
from bwtui.relay.history import promotion
from bwtui.relay.history.backfill_store import FOLDER, BackfillStore
from bwtui.relay.history.promotion import Divergence, Divergences, OrphanedKeys, Submit
from bwtui.relay.state.run_state import RunState
from bwtui.settings import RelaySettings

ONE = Divergence("shop", 100, 200, 2, {"shop.orders": {"0": 7}}, {"shop.orders": "public.orders"})
KEY = {"table": "public.orders", "key": {"id": 1}}
SETTINGS = RelaySettings(name="shop", slot="shop", broker="127.0.0.1:1", heal=True, headers=True)


class Killed(BaseException):
    """Replaces a kill signal."""


class Tails:
    """Topics that hold one key."""

    def __init__(self, *_: Any) -> None:
        pass

    def sent_since(self, topic: str, ends: Mapping[int, int], lsn: int) -> RecentRecords:
        return RecentRecords({b"key": RecentRecord(0, 3, 150, "insert", is_tombstone=False)})

    def close(self) -> None:
        pass


@pytest.fixture(autouse=True)
def one_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(promotion, "RecentRecordReader", Tails)


def named_by(folder: Path, submit: Submit) -> RunState:
    """Name all unnamed keys, as the relay's thread does, and return the resulting report."""
    report = RunState()
    made = OrphanedKeys(SETTINGS, report, folder, submit, LocalRegistry(), lambda reason, since: None)
    made._run()
    return report


def test_a_relay_that_is_killed_before_keys_are_taken_back_takes_them_back_later(tmp_path: Path) -> None:
    kept = Divergences(tmp_path, "shop")
    kept.keep(ONE)
    asked: list[BackfillRequest] = []

    def killed(request: BackfillRequest) -> str:
        raise Killed

    def taken(request: BackfillRequest) -> str:
        asked.append(request)
        return "1"

    with pytest.raises(Killed):
        named_by(tmp_path, killed)
    assert kept.unnamed() == [ONE]
    told = named_by(tmp_path, taken)
    assert [request.table for request in asked] == ["public.orders"]
    assert any("affected keys:" in error.message for error in told.errors())
    assert not kept.unnamed()
    assert not named_by(tmp_path, taken).errors()
    assert len(asked) == 1, "what is done is not done again"


def test_a_list_that_can_not_be_written_leaves_the_former_one(tmp_path: Path) -> None:
    kept = Divergences(tmp_path, "shop")
    kept.keep(ONE)
    path = kept.name(ONE, [KEY, KEY])
    with pytest.raises(TypeError):
        kept.name(ONE, [KEY, {"table": object()}])
    assert [json.loads(line) for line in path.read_text().splitlines()] == [KEY, KEY]


def test_a_relay_that_is_killed_after_keys_are_taken_back_needs_no_repair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request of the killed relay has not ended, and blocks a second one until then."""
    Divergences(tmp_path, "shop").keep(ONE)
    monkeypatch.setattr(promotion, "_AGAIN_SECONDS", 0.01)
    monkeypatch.setattr(promotion, "_values", lambda *_: {"id": 1})

    def killed(request: BackfillRequest) -> str:
        BackfillStore(tmp_path / FOLDER).submit(request)
        raise Killed

    with pytest.raises(Killed):
        named_by(tmp_path, killed)
    store = BackfillStore(tmp_path / FOLDER)

    def submitted(request: BackfillRequest) -> str:
        try:
            return store.submit(request)
        except RefusedError:
            (task,) = (found for one in store.statuses() if (found := store.task(one.id)) is not None)
            task.state = "done"
            store.save(task)
            raise

    (notice,) = named_by(tmp_path, submitted).errors()
    assert "affected keys:" in notice.message
    assert notice.hint is not None
    assert "no action needed" in notice.hint
    assert not Divergences(tmp_path, "shop").unnamed()
