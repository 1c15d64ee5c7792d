"""Backfill requests to a relay, and checks of the topics that result.

A sequence sets column ``v`` of a row at every change. The newer of two states of a row therefore has the
larger number, and a row that is inserted again after a DELETE has a larger number than all its earlier
states.
"""

import dataclasses
import json
from collections.abc import Iterable
from typing import Any

from bwtui.model.backfill import BackfillRequest, BackfillStatus
from bwtui.relay.history.backfill_store import BackfillTask
from bwtui.relay.process.control import request
from bwtui.state_folder import state_folder
from tests.faults.records import Record
from tests.faults.relays import Relay, wait_for


def ask(relay: Relay, **asked: Any) -> str:
    """Request a backfill from a running relay; return the request's id."""
    of = dataclasses.asdict(BackfillRequest(**asked))
    return str(wait_for("an answer", lambda: request(relay.name, {"request": "backfill", "of": of})))


def state_of(relay: Relay, id: str) -> BackfillStatus:
    """Return the progress of a request, as its file records it."""
    path = state_folder(relay.name) / "backfills" / f"{id}.json"
    return BackfillTask.from_json(json.loads(path.read_text())).status()


def wait_done(relay: Relay, id: str, seconds: float = 60) -> BackfillStatus:
    """Wait until a request is done; fail the test if the request failed."""
    wait_for("the rows", lambda: state_of(relay, id).is_over, seconds)
    status = state_of(relay, id)
    assert status.state == "done", status
    return status


def wait_begun(relay: Relay, id: str) -> None:
    """Wait until at least one chunk of the request is done."""
    wait_for("some of it", lambda: state_of(relay, id).chunks or state_of(relay, id).is_over)


def assert_never_older(records: Iterable[Record]) -> None:
    """Check that no record follows a newer state of its row; count repeated stream records once."""
    newest: dict[tuple[Any, ...], int] = {}
    deleted: set[tuple[Any, ...]] = set()
    seen = set()
    for record in records:
        key = (record.topic, *record.key)
        if record.operation != "backfill" and record.lsn:
            if record.identity in seen:
                continue
            seen.add(record.identity)
        if record.value is None:
            deleted.add(key)
            continue
        before, now = newest.get(key, 0), record.value["v"]
        assert now > before or (now == before and key not in deleted), (
            f"{key}: {now} stands behind {before}{' and its end' if key in deleted else ''}: {record}"
        )
        deleted.discard(key)
        newest[key] = now
