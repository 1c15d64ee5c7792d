"""--exactly-once with --record: after any kill, the recording holds what read_committed sees, and no more.

``BWTUI_EXACT_KILLS=30`` kills thirty times while streaming, and a tenth of that in the snapshots.
"""

import os
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bwtui.audit.core import PARTS
from bwtui.kafka.client import headers_of
from bwtui.model.headers import PART, SESSION
from bwtui.sandbox.sandbox import ServiceAddresses
from bwtui.verify import recording as verify
from bwtui.verify.journal_facts import read_facts
from tests.faults.recordings import (
    Witness,
    assert_everything_committed,
    opened,
    recover_and_check,
    size,
)
from tests.faults.relays import Relay, execute, wait_for
from tests.faults.writer import ACCOUNTS, TABLES, Writer, create_tables
from tests.raw_topic import committed_records, place_of

KILLS = int(os.environ.get("BWTUI_EXACT_KILLS", "2"))
SEED = int(os.environ.get("BWTUI_SEED") or random.getrandbits(32))
ROWS = 2_000
#: Maximum number of kills in one recording.
TOGETHER = 20
SNAPSHOT_BYTES, STREAM_BYTES = 400_000, 120_000

SNAPSHOT = ("bwtui.op", b"snapshot")

NewRelay = Callable[..., Relay]


def assert_agrees(
    services: ServiceAddresses, folder: Path, relay: Relay, *, ended: bool = False
) -> Counter[str]:
    """Check that each sent message is committed at its offset, and each committed one was recorded.

    ``ended``: nothing is in flight, so every recorded change was sent exactly once. Return the number of
    messages of each state.
    """
    sent: dict[tuple[str, int, int], Any] = {}
    recorded: set[Any] = set()
    unsettled: Counter[Any] = Counter()
    states: Counter[str] = Counter()
    #: True for messages that the next pass found committed in Kafka.
    known: dict[Any, bool] = {}
    committed = read_facts(folder).committed
    content: Any
    with opened(folder) as recording:
        for change in recording.changes():
            for message in change.messages:
                content = (message.topic, message.key, message.value, message.headers)
                states[message.state] += 1
                recorded.add(without_session(content))
                if change.pass_number in committed:
                    known[content] = change.position * PARTS < committed[change.pass_number]
                if message.state == "acknowledged":
                    assert message.partition is not None and message.offset is not None
                    place = (message.topic, message.partition, message.offset)
                    assert place not in sent, place
                    sent[place] = content
                else:
                    unsettled[content] += 1
    there: Counter[Any] = Counter()
    for record in committed_records(services, [table.topic(relay.name) for table in TABLES]):
        place = place_of(record)
        # The parts of a split transaction exist in Kafka only, not in a recording: see docs/exactly-once.md.
        headers = tuple(header for header in headers_of(record) if header[0] != PART)
        content = (place[0], record.key(), record.value(), headers)
        there[without_session(content)] += 1
        assert known.pop(content, True), f"it was aborted, by what the next pass has found: {content}"
        if place in sent:
            assert sent.pop(place) == content, place
        else:
            assert unsettled[content] > 0, f"no word of {place}, and it is not recorded: {content}"
            unsettled[content] -= 1
    lost = [content for content, is_in in known.items() if is_in]
    assert not lost, f"they were committed, by what the next pass has found: {lost[:3]}"
    assert not sent, f"they count as sent, and are not committed: {list(sent)[:3]}"
    if ended:
        # The headers distinguish every change, and every row of every snapshot.
        assert max(there.values()) == 1
        of_stream = [{one for one in side if SNAPSHOT not in one[3]} for side in (recorded, set(there))]
        assert of_stream[0] == of_stream[1]
    return states


def without_session(content: Any) -> Any:
    """Return a message without its session, since an aborted one is sent again by another run."""
    return (*content[:3], tuple(header for header in content[3] if header[0] != SESSION))


def kill(relay: Relay, folder: Path, growth: int) -> None:
    """Start the relay, kill it after the recording has grown by ``growth`` bytes, recover, and check."""
    wanted = size(folder) + growth
    relay.start()
    wait_for(f"{growth} bytes more", lambda: size(folder) >= wanted or relay.has_ended)
    assert not relay.has_ended, relay.last_words()
    relay.kill()
    if folder.exists() and any(folder.glob("0*")):
        recover_and_check(folder)


def test_no_kill_parts_the_recording_from_what_is_committed(
    services: ServiceAddresses, database: str, new_relay: NewRelay, tmp_path: Path
) -> None:
    chance = random.Random(SEED)
    create_tables(database, ROWS)
    # The whole recording is compared after each kill, so the kills are spread over several recordings.
    for begun in range(0, KILLS, TOGETHER):
        many = min(TOGETHER, KILLS - begun)
        folder = tmp_path / f"recording-{begun}"
        relay = new_relay("--exactly-once", "--record", str(folder), "--segment-bytes", "100000")
        states, kills = kill_and_compare(services, database, relay, folder, many, chance)
        print(f"\nseed {SEED}: {kills} kills, and the recording says what is committed: {dict(states)}")
        execute(
            database,
            f"select pg_drop_replication_slot(slot_name) from pg_replication_slots"
            f" where slot_name like '{relay.name}%'",
        )


def kill_and_compare(
    services: ServiceAddresses, database: str, relay: Relay, folder: Path, kills: int, chance: random.Random
) -> tuple[Counter[str], int]:
    """Kill in the snapshot, then ``kills`` times while streaming.

    Return the states, and the number of kills.
    """
    witness = Witness(database, relay.name)
    in_snapshot = max(1, kills // 10)
    with Writer(database, ROWS).going_on():
        for _ in range(in_snapshot):
            kill(relay, folder, chance.randrange(SNAPSHOT_BYTES))
        relay.run()
        for _ in range(kills):
            kill(relay, folder, chance.randrange(STREAM_BYTES))
            assert_agrees(services, folder, relay)
        relay.start()
        relay.wait_caught_up()
    relay.wait_caught_up()
    relay.stop()
    recover_and_check(folder)
    states = assert_agrees(services, folder, relay, ended=True)
    facts = read_facts(folder)
    assert not facts.gaps and facts.committed, f"seed {SEED}"
    with opened(folder) as recording:
        assert_everything_committed(recording, witness)
    return states, in_snapshot + kills


@pytest.mark.long
def test_a_split_transaction_that_was_killed_goes_on_where_it_was(
    services: ServiceAddresses, database: str, new_relay: NewRelay, tmp_path: Path
) -> None:
    """Rows recorded again keep their ordinals of the stream, although the first rows are left out."""
    folder = tmp_path / "recording"
    create_tables(database, 10)
    relay = new_relay("--exactly-once", "--record", str(folder))
    relay.run()
    witness = Witness(database, relay.name)
    relay.start(failpoint="after-commit:3:kill")
    relay.wait_streaming()
    execute(database, "insert into accounts select n, 1, repeat('x', 20000) from generate_series(11, 6000) n")
    wait_for("its end", lambda: relay.has_ended)
    assert len(committed_records(services, [ACCOUNTS.topic(relay.name)])) > 10
    recover_and_check(folder)
    assert_agrees(services, folder, relay)
    relay.run()
    assert_agrees(services, folder, relay, ended=True)
    with opened(folder) as recording:
        assert assert_everything_committed(recording, witness) == 5_990


def test_what_was_sent_without_a_recording_is_a_gap(
    services: ServiceAddresses, database: str, new_relay: NewRelay, tmp_path: Path
) -> None:
    """Kafka has the transaction, so it is not read again, whatever the slot's position."""
    folder = tmp_path / "recording"
    create_tables(database, 10)
    relay = new_relay("--exactly-once")
    relay.run("--record", str(folder))
    relay.start()
    relay.wait_streaming()
    execute(database, "insert into accounts values (11, 1, 'nobody records it')")
    wait_for("the row", lambda: is_there(services, relay, b"nobody records it"))
    relay.kill()
    relay.run("--record", str(folder))
    assert len(read_facts(folder).gaps) == 1
    with opened(folder) as recording:
        assert [change for change in recording.changes() if change.operation == "insert"] == []


def is_there(services: ServiceAddresses, relay: Relay, note: bytes) -> bool:
    """Return whether a row with ``note`` is committed."""
    records = committed_records(services, [ACCOUNTS.topic(relay.name)])
    return any(note in (record.value() or b"") for record in records)


@pytest.mark.long
def test_an_audit_in_the_middle_of_a_crash_finds_nothing(
    services: ServiceAddresses, database: str, new_relay: NewRelay, tmp_path: Path
) -> None:
    chance = random.Random(SEED)
    folder = tmp_path / "recording"
    create_tables(database, ROWS)
    relay = new_relay("--exactly-once", "--record", str(folder), "--segment-bytes", "50000")
    with Writer(database, ROWS).going_on():
        relay.run()
        for _ in range(KILLS):
            # The kill may hit anything; an open transaction blocks readers.
            kill(relay, folder, chance.randrange(STREAM_BYTES))
            report = verify.verify_recording(folder, {"bootstrap.servers": services.broker})
            assert report.verdict == "clean", f"seed {SEED}: {report.found} {report.findings[:3]}"
            assert not report.classes.get("redelivered")
        relay.start()
        relay.wait_caught_up()
    relay.wait_caught_up()
    relay.stop()
    report = verify.verify_recording(folder, {"bootstrap.servers": services.broker})
    assert report.verdict == "clean", f"seed {SEED}: {report.found} {report.findings[:3]}"
    assert not report.classes.get("redelivered") and not report.classes.get("pending")
    assert report.classes["markers"]
