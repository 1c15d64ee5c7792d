"""Output of `status`, `stop` and `attach` for a relay that was killed before it could record its outcome."""

import json
import os
import re
import time
from pathlib import Path

import pytest

from bwtui.errors import RefusedError
from bwtui.model.status import Status
from bwtui.relay.main import StatusListener, run
from bwtui.relay.process import last_status, outcome
from bwtui.relay.process.last_status import LastStatus
from bwtui.relay.process.lock import RelayLock
from bwtui.relay.process.outcome import RunOutcome
from bwtui.settings import RelaySettings
from bwtui.state_folder import LOCK_NAME
from tests.unit.relay_double import DoubleEngine
from tests.unit.test_cli_main import invoke

STATUS = Status("streaming", "shop", "cdc", pid=4711, time=1.0, confirmed_lsn=0x10)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The state folder of a relay that ran."""
    monkeypatch.setenv("BWTUI_STATE_HOME", str(tmp_path))
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / LOCK_NAME).touch()
    LastStatus("shop").keep(STATUS)
    return tmp_path


@pytest.mark.parametrize("args", [["status", "shop"], ["status"], ["stop", "shop"], ["attach"]])
def test_a_killed_relay_is_told_of_with_slot_and_log(args: list[str], home: Path) -> None:
    code, out, err = invoke(*args)
    assert (code, out) == (4, "")
    hint = err.splitlines()[1]
    assert "relay shop (pid 4711, slot cdc) was killed, or its disk was full, after 1970-01-01" in hint
    assert str(home / "shop") in hint


@pytest.mark.parametrize("args", [["status", "shop"], ["status"], ["snapshot", "orders"]])
def test_a_failed_relay_is_named_with_its_error_and_hint(args: list[str]) -> None:
    """libpq's message ends in a question mark."""
    outcome.write("shop", RunOutcome(4, 1.0, "can't connect: does it accept connections?", "check it", None))
    code, _, err = invoke(*args)
    assert code == 4
    hint = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "TIME", err.splitlines()[1])
    failed = "relay shop failed at TIME with exit code 4"
    assert hint == f"hint: {failed}: can't connect: does it accept connections? (check it)"


@pytest.mark.parametrize("message", [None, "interrupted"])
def test_a_failure_before_a_clean_stop_is_not_shown(message: str | None, home: Path) -> None:
    (home / "old").mkdir()
    (home / "old" / LOCK_NAME).touch()
    outcome.write("old", RunOutcome(4, 1.0, "no route", "check it", None))
    outcome.write("shop", RunOutcome(130 if message else 0, 2.0, message, "", None))
    assert "start one with 'bwtui connect'" in invoke("status")[2]
    assert invoke("status", "shop")[2].splitlines()[1] == "hint: its last run stopped cleanly"


@pytest.mark.parametrize("is_killed", [True, False])
def test_a_failure_of_a_dropped_slot_is_not_shown(is_killed: bool) -> None:
    if not is_killed:
        outcome.write("shop", RunOutcome(5, 1.0, "slot lost", "drop it", STATUS))
    last_status.forget_end("shop", "other")
    assert "start one with" not in invoke("status")[2]
    last_status.forget_end("shop", STATUS.slot)
    assert "start one with 'bwtui connect'" in invoke("status")[2]


def test_its_last_status_is_what_json_tells() -> None:
    code, out, _ = invoke("status", "shop", "--json")
    told = json.loads(out)
    assert (code, told["state"], told["detail"], told["confirmed_lsn"]) == (
        4,
        "failed",
        "streaming until it was killed",
        "0/10",
    )


def test_it_is_written_now_and_then_and_removed_at_the_end(home: Path) -> None:
    kept = LastStatus("shop")
    kept.keep(STATUS)
    before = (home / "shop" / "last-status.json").stat()
    kept.keep(STATUS)
    assert (home / "shop" / "last-status.json").stat().st_mtime_ns == before.st_mtime_ns
    assert before.st_mode & 0o777 == 0o600
    kept.forget()
    assert last_status.read("shop") is None
    assert [path.name for path in (home / "shop").iterdir()] == [LOCK_NAME]


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"state": 1}', "\x00"])
def test_a_file_that_says_nothing_is_none(text: str, home: Path) -> None:
    (home / "shop" / "last-status.json").write_text(text)
    assert last_status.read("shop") is None
    assert "start one with" in invoke("status")[2]


def test_a_run_that_ends_at_once_leaves_none(home: Path) -> None:
    """The thread that stores the status may start late."""

    class Ending(DoubleEngine):
        def run(self) -> None:
            raise RefusedError("it can't be", "mend it")

        def status(self) -> Status:
            time.sleep(0.05)
            return super().status()

    settings = RelaySettings(name="shop")
    listener = StatusListener(lambda _: None, 0.01, lambda _: None)
    umask = os.umask(0o077)
    try:
        for _ in range(5):
            assert run(settings, RelayLock.acquire("shop"), listener, Ending).exit_code == 2
            assert not list(home.rglob("last-status.*"))
    finally:
        os.umask(umask)


def test_a_stop_without_a_running_relay_says_so() -> None:
    code, _, err = invoke("stop", "other")
    assert code == 4
    assert err.splitlines()[1] == "hint: no relay is running; start one with 'bwtui connect'"
