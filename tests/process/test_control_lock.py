"""The lock of a relay, and its recorded outcome."""

import contextlib
import errno
import logging
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from bwtui.cli.inputs.relay_options import status_of
from bwtui.errors import ConnectionFailed, RefusedError, SlotLost
from bwtui.model.status import Status
from bwtui.relay.history.coverage_ledger import CoverageLedger
from bwtui.relay.process import last_status, outcome
from bwtui.relay.process.last_status import LastStatus, of_ended
from bwtui.relay.process.lock import RelayLock, is_held, wait_until_free
from bwtui.relay.process.log import _PrivateLogFile, log_path, open_log, trim
from bwtui.relay.process.outcome import RunOutcome
from bwtui.relay.state.run_state import RunState
from bwtui.settings import RelaySettings
from bwtui.state_folder import LOCK_NAME


@pytest.fixture(autouse=True)
def state_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state folder for this test."""
    monkeypatch.setenv("BWTUI_STATE_HOME", str(tmp_path))
    return tmp_path


def test_a_second_relay_of_the_same_name_is_refused() -> None:
    first = RelayLock.acquire("one")
    assert is_held("one")
    with pytest.raises(RefusedError, match="a relay called one is already running"):
        RelayLock.acquire("one")
    other = RelayLock.acquire("two")
    other.release()
    first.release()
    assert not is_held("one")
    RelayLock.acquire("one").release()


def test_no_lock_is_held_where_there_is_none() -> None:
    assert not is_held("none")
    assert wait_until_free("none", 0)


def test_a_lock_that_cannot_be_opened_is_an_error_with_a_hint(state_home: Path) -> None:
    (state_home / "one").mkdir()
    (state_home / "one" / LOCK_NAME).symlink_to(LOCK_NAME)
    with pytest.raises(RefusedError, match="can't determine whether relay one is running") as refused:
        is_held("one")
    assert refused.value.hint


def test_a_log_that_cannot_be_opened_is_an_error_with_a_hint() -> None:
    RelayLock.acquire("one").release()
    log_path("one").mkdir()
    with pytest.raises(RefusedError, match="can't write the relay's log") as refused:
        open_log("one")
    assert str(log_path("one")) in (refused.value.hint or "")


def test_the_lock_goes_with_the_process_even_after_kill_9() -> None:
    lock = RelayLock.acquire("one")
    child = subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()"],
        stdin=subprocess.PIPE,
        pass_fds=(lock.descriptor,),
    )
    lock.release()
    assert is_held("one"), "the child has inherited it"
    assert not wait_until_free("one", 0)
    child.kill()
    child.communicate()
    assert wait_until_free("one", 60)


def test_the_folder_is_private(state_home: Path) -> None:
    (state_home / "one").mkdir(mode=0o755)
    RelayLock.acquire("one").release()
    assert (state_home / "one").stat().st_mode & 0o777 == 0o700


def test_an_outcome_comes_back_as_the_same_error() -> None:
    RelayLock.acquire("one").release()
    assert outcome.read("one") is None
    status = Status("failed", "one", "slot", confirmed_lsn=77)
    outcome.write("one", RunOutcome(5, 1.5, "slot is lost", "drop it", status))
    found = outcome.read("one")
    assert found is not None
    error = found.error()
    assert isinstance(error, SlotLost)
    assert (error.message, error.hint, error.exit_code) == ("slot is lost", "drop it", 5)
    assert found.status == status
    outcome.clear("one")
    assert outcome.read("one") is None


def test_a_run_that_ended_at_once_hides_no_gap(state_home: Path) -> None:
    RelayLock.acquire("one").release()
    settings = RelaySettings(name="one", slot="slot")
    ledger = CoverageLedger(state_home / "one", ("1", "db", "slot"), settings, RunState())
    ledger.mark("public.orders", "lost the records of topic orders")
    outcome.write("one", RunOutcome(3, 1.5, "no login", "let it", Status("failed", "one", "slot")))
    LastStatus("one").keep(Status("starting", "one", "slot"))
    for ended in (of_ended("one"), last_status.read("one")):
        assert ended is not None
        (entry,) = ended.not_proven
        assert entry.reason == "it lost the records of topic orders"
        assert "public.orders is not proven: it lost the records of topic orders" in ended.verdict.sentence
    outcome.write("one", RunOutcome(0, 1.5, None, None, Status("stopped", "one", "slot")))
    with pytest.raises(ConnectionFailed) as raised:
        status_of("one")
    assert "public.orders is not proven: " in raised.value.hint
    reason = "caught up, but public.orders is not proven: it lost the records of topic orders"
    outcome.write("one", RunOutcome(3, 1.5, reason, None, Status("failed", "one", "slot")))
    with pytest.raises(ConnectionFailed) as raised:
        status_of("one")
    assert raised.value.hint is not None and raised.value.hint.count("is not proven") == 1
    outcome.write("one", RunOutcome(3, 1.5, "no login", "let it", Status("failed", "one", "slot")))
    ledger.proven(["public.orders"], ledger.moment())
    assert of_ended("one") == Status("failed", "one", "slot")


def test_on_a_full_disk_a_relay_still_says_why_it_ended(
    state_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many relays end because of that disk: the reason was in the log at most, or nowhere."""

    def full(path: Path, content: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    RelayLock.acquire("one").release()
    outcome.clear("one")
    monkeypatch.setattr(outcome, "write_atomically", full)
    reason = "the state of relay one can't be written: No space left on device"
    outcome.write("one", RunOutcome(2, 1.5, reason, "free disk space", Status("failed", "one", "slot")))
    assert outcome.read("one") == RunOutcome(2, 1.5, reason, "free disk space", None)
    # Its last activity comes from the last stored status.
    LastStatus("one").keep(Status("streaming", "one", "slot", confirmed_lsn=80))
    ended = of_ended("one")
    assert ended is not None
    assert (ended.state, ended.detail, ended.exit_code, ended.confirmed_lsn) == ("failed", reason, 2, 80)
    (kept,) = {path.name for path in (state_home / "one").glob("outcome*")}
    assert (kept, (state_home / "one" / kept).stat().st_mode & 0o777) == ("outcome.json", 0o600)
    # Without the reserved space, the error is only logged.
    with pytest.raises(OSError, match="No space left"):
        outcome.write("one", RunOutcome(2, 1.5, reason, "free disk space", None))


def test_a_reason_that_does_not_go_into_its_room_as_a_whole_is_not_taken_for_written() -> None:
    """The disk was full when the run began: a write that fits only in part raises no error."""
    RelayLock.acquire("one").release()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40, hard))
    try:
        outcome.clear("one")
        with pytest.raises(OSError, match="File too large"):
            outcome.write("one", RunOutcome(2, 1.5, "no space left on device", "free disk space", None))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert outcome.read("one") is None


def test_an_outcome_that_was_cut_short_says_nothing(state_home: Path) -> None:
    RelayLock.acquire("one").release()
    (state_home / "one" / "outcome.json").write_text('{"exit_code": 0, "sta')
    assert outcome.read("one") is None


def test_a_long_log_is_put_aside_and_trimmed(monkeypatch: pytest.MonkeyPatch) -> None:
    RelayLock.acquire("one").release()
    path = log_path("one")
    path.write_bytes(b"x" * (1024 * 1024 + 1))
    with os.fdopen(open_log("one"), "ab", buffering=0) as log:
        assert path.stat().st_size == 0
        assert path.stat().st_mode & 0o777 == 0o600
        monkeypatch.setattr("bwtui.relay.process.log._LIMIT", 100)
        monkeypatch.setattr("bwtui.relay.process.log._TAIL", 10)
        log.write(b"a" * 100)
        trim("one", log.fileno())
        assert path.stat().st_size == 100, "not above the limit yet"
        log.write(b"0123456789")
        trim("one", log.fileno())
        log.write(b"next")
    assert path.read_bytes() == b"next"
    aside = path.with_suffix(".log.1")
    assert aside.read_bytes() == b"0123456789"
    assert aside.stat().st_mode & 0o777 == 0o600


def test_a_log_is_trimmed_although_its_end_cannot_be_kept(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    RelayLock.acquire("one").release()
    path = log_path("one")
    # It accepts no byte, like a full disk.
    path.with_suffix(".log.1").symlink_to("/dev/full")
    monkeypatch.setattr("bwtui.relay.process.log._LIMIT", 100)
    monkeypatch.setattr("bwtui.relay.process.log._TAIL", 10)
    with os.fdopen(open_log("one"), "ab", buffering=0) as log:
        log.write(b"a" * 101)
        trim("one", log.fileno())
        assert path.stat().st_size == 0
    (message,) = caplog.messages
    assert "engine.log.1" in message and "No space left on device" in message


def test_a_line_that_cannot_be_logged_is_lost_and_not_shown(
    state_home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (state_home / "full").symlink_to("/dev/full")
    handler = _PrivateLogFile(state_home / "full", maxBytes=1 << 20, backupCount=1, delay=True)
    handler.handle(logging.makeLogRecord({"msg": "password=hunter2"}))
    assert capfd.readouterr().err == ""
    with contextlib.suppress(OSError):
        handler.close()
