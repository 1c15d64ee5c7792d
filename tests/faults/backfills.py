"""Asking a relay to put rows into its stream, and what topics must look like then.

Each row has a column ``v`` that a sequence gives it at every change. So of two states of a row the newer one
has the larger number, and one that comes back after a DELETE has a larger one than any before.
"""

import dataclasses
import json
from collections.abc import Iterable
from typing import Any

from bwtui.model.backfill import BackfillRequest, BackfillStatus
from bwtui.relay.backfill.task import BackfillTask
from bwtui.relay.process.control import request
from bwtui.state_folder import state_folder
from tests.faults.records import Record
from tests.faults.relays import Relay, wait_for


def ask(relay: Relay, **asked: Any) -> str:
    """Ask a relay that runs; return the request's id."""
    of = dataclasses.asdict(BackfillRequest(**asked))
    return str(wait_for("an answer", lambda: request(relay.name, {"request": "backfill", "of": of})))


def state_of(relay: Relay, id: str) -> BackfillStatus:
    """Return how far a request is, as its file says."""
    path = state_folder(relay.name) / "backfills" / f"{id}.json"
    return BackfillTask.from_json(json.loads(path.read_text())).status()


def wait_done(relay: Relay, id: str, seconds: float = 60) -> BackfillStatus:
    """Wait until a request is done; it fails the test if that has failed."""
    wait_for("the rows", lambda: state_of(relay, id).is_over, seconds)
    status = state_of(relay, id)
    assert status.state == "done", status
    return status


def wait_begun(relay: Relay, id: str) -> None:
    """Wait until a chunk of it is done, or all."""
    wait_for("some of it", lambda: state_of(relay, id).chunks or state_of(relay, id).is_over)


def assert_never_older(records: Iterable[Record]) -> None:
    """See that no state of a row stands behind a newer one; what the stream sends again counts once."""
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
