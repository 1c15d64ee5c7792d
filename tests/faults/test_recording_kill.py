"""kill -9 at random moments while recording under writes: nothing is missing, all checks pass.

``BWTUI_RECORD_KILLS=200`` is the run of ``make record-torture``; ``BWTUI_SEED`` repeats its moments.
"""

import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bwtui.sandbox.sandbox import ServiceAddresses
from tests.faults.recordings import (
    Witness,
    assert_everything_committed,
    assert_tables_follow,
    assert_topics_agree,
    opened,
    recover_and_check,
    size,
)
from tests.faults.relays import RecordingOnly, Relay, wait_for
from tests.faults.writer import TABLES, Writer, create_tables

KILLS = int(os.environ.get("BWTUI_RECORD_KILLS", "5"))
SEED = int(os.environ.get("BWTUI_SEED") or random.getrandbits(32))
ROWS = 2_000
#: Maximum growth of a recording before a kill, in bytes.
SNAPSHOT_BYTES, STREAM_BYTES = 800_000, 120_000
#: Small, so that some kills hit the start and the end of a segment.
SEGMENT_BYTES = 100_000

NewRelay = Callable[..., Relay]


@pytest.mark.parametrize(("kind", "share"), [(Relay, 0.7), (RecordingOnly, 0.3)])
def test_no_kill_loses_a_recorded_change(
    services: ServiceAddresses,
    database: str,
    new_relay: NewRelay,
    tmp_path: Path,
    kind: type[Relay],
    share: float,
) -> None:
    chance = random.Random(SEED)
    kills = round(KILLS * share)
    in_snapshot = max(1, kills // 4)
    folder = tmp_path / "recording"
    create_tables(database, ROWS)
    relay = new_relay("--record" if kind is Relay else "-o", str(folder), *SMALL, kind=kind)
    witness = Witness(database, relay.name)
    begun = time.monotonic()
    with Writer(database, ROWS).going_on():
        for _ in range(in_snapshot):
            kill(relay, folder, chance.randrange(SNAPSHOT_BYTES))
        # An early kill may have left no slot; from here on there is one.
        relay.run()
        for _ in range(kills - in_snapshot):
            kill(relay, folder, chance.randrange(STREAM_BYTES))
        relay.start()
        relay.wait_caught_up()
    relay.wait_caught_up()
    relay.stop()
    _, checked = recover_and_check(folder)
    with opened(folder) as recording:
        changes = assert_everything_committed(recording, witness)
        assert_tables_follow(recording, database, TABLES)
        topics = [table.topic(relay.name) for table in TABLES]
        told = assert_topics_agree(services, recording, topics) if kind is Relay else (0, 0)
    print(
        f"\n{kind.__name__}: seed {SEED}, {kills} kills in {time.monotonic() - begun:.0f} s: "
        f"{changes:,} changes committed, {checked.changes:,} recorded in {checked.segments} segments, "
        f"{told[0]:,} messages, {told[1]:,} records in Kafka"
    )


SMALL = ("--segment-bytes", str(SEGMENT_BYTES))


def kill(relay: Relay, folder: Path, growth: int) -> None:
    """Start the relay, kill it after the recording has grown by ``growth`` bytes, recover, and check."""
    wanted = size(folder) + growth
    relay.start()
    wait_for(f"{growth} bytes more", lambda: size(folder) >= wanted or relay.has_ended)
    assert not relay.has_ended, relay.last_words()
    relay.kill()
    if folder.exists() and any(folder.glob("0*")):
        recover_and_check(folder)
