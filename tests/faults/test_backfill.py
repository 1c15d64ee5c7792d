"""Rows of tables put into the stream: none is lost, and none is put behind a newer one."""

import json
from collections.abc import Callable

from bwtui.model.backfill import BackfillRequest, BackfillStatus
from bwtui.relay.backfill.store import Store
from bwtui.relay.backfill.task import Task
from bwtui.state_folder import state_folder
from tests.faults.relays import Relay, execute, wait_for

NewRelay = Callable[..., Relay]


def ask(relay: Relay, **request: object) -> str:
    return Store(state_folder(relay.name) / "backfills").submit(BackfillRequest(**request))  # type: ignore[arg-type]


def status_of(relay: Relay, id: str) -> BackfillStatus:
    path = state_folder(relay.name) / "backfills" / f"{id}.json"
    return Task.from_json(json.loads(path.read_text())).status()


def done(relay: Relay, id: str, seconds: float = 60) -> BackfillStatus:
    wait_for("the rows", lambda: status_of(relay, id).is_over, seconds)
    status = status_of(relay, id)
    assert status.state == "done", status
    return status


def test_a_table_is_sent_again(database: str, new_relay: NewRelay) -> None:
    execute(
        database,
        "create table items (id bigint primary key, name text)",
        "insert into items select n, 'item ' || n from generate_series(1, 25000) n",
    )
    relay = new_relay()
    relay.start()
    relay.wait_streaming()
    relay.stop()
    id = ask(relay, table="public.items")
    relay.start()
    status = done(relay, id)
    assert (status.rows, status.chunks, status.left_out) == (25_000, 3, 0)
    relay.stop()
