"""Backfill a large table through a relay that is killed from the first row to the last.

The relay starts without a snapshot, so every row comes from the request or from the stream, and an omitted
row is missing. ``make snapshots ROWS=10000000 KILLS=50 RATE=1000`` is the whole campaign; the default is a
small table and three kills.
"""

import io
import json
import os
import random
import time
from array import array
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import fastavro
import psycopg2
import pytest
from confluent_kafka import Message

from bwtui.kafka.client import headers_of
from bwtui.recording.check import check
from bwtui.relay.backfill.backfill import CHUNK_ROWS
from bwtui.sandbox.sandbox import ServiceAddresses
from tests.faults.backfills import ask, state_of
from tests.faults.relays import Relay, execute, wait_for
from tests.faults.test_backfill import ITEMS, Writers, filled
from tests.faults.test_backfill_recorded import audited
from tests.oracle import IndependentReader, TopicContents

pytestmark = pytest.mark.services

ROWS = int(os.environ.get("BWTUI_SNAPSHOT_ROWS", "40000"))
KILLS = int(os.environ.get("BWTUI_SNAPSHOT_KILLS", "2"))
RATE = int(os.environ.get("BWTUI_SNAPSHOT_RATE", "300"))
_TABLE = "public.items"
#: Timeout in seconds for a relay on a busy machine to start and send a share of the rows.
_SHARE_SECONDS = 120 + ROWS / 2_000


class Topic(IndependentReader):
    """The topic of ``items`` in the order of its messages; only the newest states are kept."""

    def __init__(self, services: ServiceAddresses) -> None:
        super().__init__(services.broker, services.schema_registry)
        self._schemas: dict[int, Any] = {}
        #: By id: the newest ``v``, negative once it is deleted, and the last value in the topic.
        self._states = array("q", [0]) * (ROWS + 3)
        self.last = array("q", self._states)
        self._seen: set[tuple[bytes, bytes]] = set()
        self.put_in = self.streamed = 0
        self.older: list[str] = []

    def _decode(self, message: Message, content: TopicContents) -> None:
        headers = dict(headers_of(message))
        key, value = self._payload(message.key()), self._payload(message.value())
        self.last[key["id"]] = 0 if value is None else value["v"]
        if headers.get("bwtui.op") == b"backfill":
            self.put_in += 1
        else:
            identity = (headers["bwtui.lsn"] or b"", headers["bwtui.ordinal"] or b"")
            # Messages not acknowledged before a kill are sent twice; the newest one is last again.
            if identity in self._seen:
                return
            self._seen.add(identity)
            self.streamed += 1
        before, now = self._states[key["id"]], -1 if value is None else value["v"]
        if value is None:
            self._states[key["id"]] = -abs(before)
        elif now > abs(before) or now == before:
            self._states[key["id"]] = now
        else:
            place = f"{message.partition()}@{message.offset()}"
            self.older.append(f"{key}: {now} stands behind {before} at {place}")

    def _payload(self, payload: Any) -> Any:
        if payload is None:
            return None
        number = int.from_bytes(payload[1:5], "big")
        if number not in self._schemas:
            text = self._registry.get_schema(number).schema_str
            self._schemas[number] = fastavro.parse_schema(json.loads(str(text)))
        return fastavro.schemaless_reader(io.BytesIO(payload[5:]), self._schemas[number], None)


def test_every_row_is_there_once_and_in_order(
    new_relay: Callable[..., Relay],
    services: ServiceAddresses,
    database: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    execute(database, *filled(ROWS), "analyze items")
    folder = tmp_path / "recording"
    relay = new_relay("--skip-snapshot", "--record", str(folder), "--segment-bytes", str(256 << 20))
    relay.start()
    relay.wait_streaming()
    writers = Writers(database, rows=ROWS, rate=RATE)
    with writers.going_on():
        id = ask(relay, table=_TABLE)
        for number in range(KILLS):
            share = (number + random.random()) * ROWS / (KILLS + 1)
            # Neither the beginning nor the end of the chunk is a better moment for a kill than any other.
            _until(relay, id, share)
            time.sleep(random.uniform(0, 0.3))
            relay.kill()
            relay.start()
        _until(relay, id, ROWS * 10)
    status = state_of(relay, id)
    assert status.state == "done", status
    relay.wait_caught_up()
    relay.stop()
    topic = _read(relay, services)
    assert not topic.older, topic.older[:5]
    assert topic.last == _newest(database)
    repeated = topic.put_in - status.rows
    told = f"{ROWS} rows, {KILLS} kills, {writers.transactions} transactions: {status}"
    assert 0 <= repeated <= KILLS * CHUNK_ROWS, told
    print(f"{told}\n{topic.put_in} rows put in, {repeated} of them again; {topic.streamed} changes streamed")
    if KILLS:
        assert writers.transactions
    checked = check(folder)
    assert checked.verdict == "clean", checked.damages
    report = audited(folder, services)
    print(f"audit of the recording: {report.verdict}, {report.balance['actual']}")


def _until(relay: Relay, id: str, rows: float) -> None:
    """Wait until ``rows`` rows have been handled, or the request is over."""

    def came() -> bool:
        assert not relay.has_ended, relay.last_words()
        status = state_of(relay, id)
        return status.is_over or status.rows + status.left_out >= rows

    wait_for(f"{rows:.0f} rows", came, _SHARE_SECONDS)


def _read(relay: Relay, services: ServiceAddresses) -> Topic:
    topic = Topic(services)
    try:
        content = TopicContents(ITEMS.topic(relay.name), ITEMS.key)
        topic.read([content], lambda done, total: None)
        assert not content.holes
    finally:
        topic.close()
    return topic


def _newest(database: str) -> "array[int]":
    """Return ``v`` of each row of the table, by id; 0 for a missing id."""
    states = array("q", [0]) * (ROWS + 3)
    with closing(psycopg2.connect(database)) as connection, connection.cursor("rows") as cursor:
        cursor.itersize = 100_000
        cursor.execute("select id, v from items")
        for id, v in cursor:
            states[id] = v
    return states
