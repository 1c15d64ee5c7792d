"""The facts of an audit come from the segments whose messages it has, and not from later ones."""

import shutil
from pathlib import Path

import pytest

from bwtui.audit.core import PARTS
from bwtui.model.position import Position, RecordedPosition
from bwtui.verify.journal_facts import LARGEST, read_facts
from tests.recorded_stream import Stream, table

ACCOUNTS = table(1, "accounts")


def run(stream: Stream, transactions: int) -> int:
    """Record a pass with ``transactions``, all of them confirmed; return the confirmed LSN."""
    stream.begin_pass()
    for key in range(transactions):
        stream.change("insert", ACCOUNTS, key, b"body")
        stream.commit()
    stream.flush()
    stream.deliver()
    return stream.wait_durable()


@pytest.mark.parametrize("is_finished", [True, False])
def test_a_later_session_confirms_nothing_and_says_where_it_went_on(
    tmp_path: Path, is_finished: bool
) -> None:
    stream = Stream(tmp_path / "recording")
    confirmed = run(stream, 3)
    stream.stop()
    first = {path.name for path in stream.folder.glob("*.bwj")}
    stream.start()
    # The server had not received the last confirmation: repeats have the same LSNs.
    stream.lsn = resumed = confirmed - 15
    later = run(stream, 3)
    assert later > confirmed
    folder = Path(shutil.copytree(stream.folder, tmp_path / "left"))
    stream.stop()
    folder = stream.folder if is_finished else folder
    found = read_facts(folder, first)
    assert (found.confirmed, found.resumed, found.later, set(found.passes)) == (confirmed, resumed, 1, {1})
    assert len(found.sessions) == 2
    every = read_facts(folder)
    assert every.later == (not is_finished)
    assert (every.confirmed, every.resumed) == ((later, LARGEST) if is_finished else (confirmed, resumed))


@pytest.mark.parametrize(("ordinal", "beyond"), [(None, 1), (2, 0)])
def test_what_kafka_had_when_a_pass_began_is_confirmed(
    tmp_path: Path, ordinal: int | None, beyond: int
) -> None:
    """A commit whose reply was lost is in the position and never repeated, but not yet in the slot's LSN."""
    stream = Stream(tmp_path / "recording", {"exactly_once": True})
    confirmed = run(stream, 3)
    stream.stop()
    stream.start()
    behind = Position("7", "shop", "shop", lsn=confirmed + 100, ordinal=ordinal)
    stream.recorder.begin_pass("stream", confirmed, behind)
    stream.stop()
    found = read_facts(stream.folder)
    assert (found.confirmed, found.exactly_once) == (behind.lsn + beyond, {1, 2})


@pytest.mark.parametrize("whose", ["its own", "another recording's", "of a session that did not begin"])
def test_what_kafka_had_of_a_pass_is_committed(tmp_path: Path, whose: str) -> None:
    """Everything before that was sent, and nothing later; passes of a different recording do not count."""
    stream = Stream(tmp_path / "recording", {"exactly_once": True})
    run(stream, 3)
    recorded = stream.recorder.recorded(is_new_pass=False)
    assert recorded is not None
    stream.change("insert", ACCOUNTS, 3, b"body")
    stream.stop()
    stream.start()
    if whose == "another recording's":
        recorded = RecordedPosition("ff" * 8, *recorded[1:])
    elif whose != "its own":
        recorded = stream.recorder.recorded(is_new_pass=True)
    stream.recorder.begin_pass("stream", 1_000, Position("7", "shop", "shop", recorded=recorded))
    stream.stop()
    # The BEGIN and COMMIT of each row have no numbers of their own.
    assert read_facts(stream.folder).committed == ({1: 3 * PARTS} if whose == "its own" else {})


def test_a_recording_that_was_given_up_is_nowhere(tmp_path: Path) -> None:
    stream = Stream(tmp_path / "recording", {"exactly_once": True, "on_record_error": "stop-recording"})
    stream.begin_pass()
    stream.recorder._journal.fail(OSError("full"))
    stream.recorder.settle()
    assert stream.recorder.recorded(is_new_pass=False) is None
    stream.recorder.close()
