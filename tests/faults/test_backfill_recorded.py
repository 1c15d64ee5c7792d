"""A recording of a backfill under writes and kills is complete, and an audit finds nothing."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from bwtui.audit.report import AuditSummary
from bwtui.recording.as_of import TableFold, pages
from bwtui.recording.check import check
from bwtui.recording.reader import open_recording
from bwtui.relay.history.backfill_store import write_keys
from bwtui.sandbox.sandbox import ServiceAddresses
from bwtui.state_folder import state_folder
from bwtui.verify import recording as verify
from tests.database import session
from tests.faults.backfills import ask, wait_begun, wait_done
from tests.faults.relays import Relay, execute
from tests.faults.test_backfill import MADE, ROWS, Writers

pytestmark = pytest.mark.services

#: Keys that no row ever has.
NONE = range(1_000_000, 1_000_100)


def audited(folder: Path, services: ServiceAddresses) -> AuditSummary:
    """Audit a recording, and check that the audit finds nothing."""
    report = verify.verify_recording(folder, {"bootstrap.servers": services.broker})
    assert report.verdict == "clean", f"{report.found} {report.findings[:5]}"
    notes = ("time_differs", "headers_differ", "moved", "equivalent")
    assert not any(report.classes[name] for name in notes), report.classes
    return report


def plain(relay: Relay, monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the headers that every relay of these tests has."""
    command = [arg for arg in relay.command() if arg != "--headers"]
    monkeypatch.setattr(relay, "command", lambda: command)


@pytest.mark.parametrize("headers", [True, pytest.param(False, marks=pytest.mark.long)])
def test_an_audit_finds_nothing(
    new_relay: Callable[..., Relay],
    services: ServiceAddresses,
    database: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    headers: bool,
) -> None:
    execute(database, *MADE)
    folder = tmp_path / "recording"
    relay = new_relay("--record", str(folder), "--segment-bytes", "2000000")
    if not headers:
        plain(relay, monkeypatch)
    relay.start()
    relay.wait_streaming()
    put = []
    with Writers(database).going_on():
        for number in range(2):
            keys = tmp_path / f"keys{number}"
            write_keys(keys, [(str(key),) for key in (*range(1, 300), *NONE)])
            ids = [
                ask(relay, table="public.items"),
                ask(relay, table="public.items", keys=str(keys), reason="repair"),
            ]
            wait_begun(relay, ids[0])
            relay.kill()
            relay.start()
            put += [wait_done(relay, id) for id in ids]
    relay.wait_caught_up()
    relay.stop()
    # The number of rows left out depends on the writers' speed; a row deleted meanwhile counts in neither
    # number.
    assert all(one.rows + one.left_out > ROWS // 2 for one in put[::2]), put
    checked = check(folder)
    assert checked.verdict == "clean", checked.damages
    audited(folder, services)
    with closing(open_recording(folder)) as recording, closing(TableFold("public.items")) as fold:
        (counts,) = recording.counts(recording.length).values()
        operations = {change.operation for change in recording.changes()}
        assert operations >= {"backfill", "cleanup", "snapshot", "update", "delete"}
        # A chunk that a kill interrupted is recorded twice.
        assert counts.snapshot_rows == ROWS and counts.backfill_rows >= sum(one.rows for one in put) > 0
        assert fold.advance(recording, recording.length)
        assert fold.gaps(False)[:1] == (False,)
        found = sorted(tuple(row.fields) for row in pages(fold))
    with session(database) as opened:
        rows = opened.rows("select id::text, v::text, name from items")
    assert found == sorted(tuple(None if one is None else str(one).encode() for one in row) for row in rows)
    # A later backfill by a run without a recording must not count as a fault.
    later = Relay(services, database, tmp_path, relay.name)
    if not headers:
        plain(later, monkeypatch)
    try:
        later.start()
        later.wait_streaming()
        wait_done(later, ask(later, table="public.items"))
        later.stop()
    finally:
        later.close()
    assert audited(folder, services).balance["actual"]["outside_window"] > ROWS // 2


def record_rows_too_large(relay: Relay, database: str, folder: Path, where: str) -> None:
    """Record a relay of a table with nine rows, of which those matching ``where`` are too large for Kafka."""
    execute(
        database,
        "create table items (id int primary key, name text)",
        "insert into items select n, repeat('x', 3000) from generate_series(1, 9) n",
        "alter table items alter column name set storage external",
    )
    relay.start()
    relay.wait_streaming()
    relay.stop()
    execute(database, f"update items set name = repeat('y', 3000000) where {where}")
    relay.start("-e", "log", "-C", "message.max.bytes=1000000", "--record", str(folder))
    relay.wait_caught_up()


def test_a_row_that_is_dropped_stands_in_the_recording(
    new_relay: Callable[..., Relay], services: ServiceAddresses, database: str, tmp_path: Path
) -> None:
    """A rejected backfill row is recorded like a rejected row of the stream.

    It has no message, and never follows a newer state.
    """
    folder, relay = tmp_path / "recording", new_relay()
    record_rows_too_large(relay, database, folder, "id in (3, 7)")
    letters = len(relay.letters())
    id = ask(relay, table="public.items")
    assert wait_done(relay, id).rows == 7
    execute(database, "update items set name = 'z' where id = 3")
    relay.wait_caught_up()
    relay.stop()
    assert [letter["operation"] for letter in relay.letters()[letters:]] == ["backfill", "backfill"]
    with closing(open_recording(folder)) as recording:
        put = [change for change in recording.changes() if change.operation == "backfill"]
    assert [change.ordinal for change in put] == list(range(1, 10))
    assert [len(change.messages) for change in put] == [1, 1, 0, 1, 1, 1, 0, 1, 1]
    checked = check(folder)
    assert checked.verdict == "clean", checked.damages
    audited(folder, services)


def test_a_dead_letter_that_cannot_be_written_damages_no_recording(
    new_relay: Callable[..., Relay], services: ServiceAddresses, database: str, tmp_path: Path
) -> None:
    """The rejected row ends the relay.

    The rows of the chunk before it are sent and recorded as table rows.
    """
    folder, relay = tmp_path / "recording", new_relay()
    record_rows_too_large(relay, database, folder, "id = 5")
    letters = state_folder(relay.name) / "dead-letters.jsonl"
    letters.unlink()
    letters.mkdir()
    ask(relay, table="public.items")
    assert relay.wait_ended() != 0
    assert "the dead letter can't be written" in relay.last_words()
    checked = check(folder)
    assert checked.verdict == "clean", checked.damages
    with closing(open_recording(folder)) as recording:
        put = [change for change in recording.changes() if change.operation == "backfill"]
    assert [len(change.messages) for change in put] == [1, 1, 1, 1]
    letters.rmdir()
    relay.run("-e", "log", "-C", "message.max.bytes=1000000", "--record", str(folder))
    audited(folder, services)
