"""The output of connect --headless and record on stderr, without JSON."""

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.relays import RecordingOnly, Relay, execute, wait_for
from tests.faults.test_recording_disk import fill_disk, write_much
from tests.faults.writer import create_tables

NewRelay = Callable[..., Relay]


class Headless(Relay):
    """``bwtui connect --headless``."""

    def command(self) -> list[str]:
        """Return the command line."""
        return [word for word in super().command() if word != "--json"]


class Recording(RecordingOnly):
    """``bwtui record``."""

    def command(self) -> list[str]:
        """Return the command line."""
        return ["record"]


def test_a_recording_that_ends_is_told_of_at_once_and_at_the_end(
    database: str, new_relay: NewRelay, tmp_path: Path
) -> None:
    folder = tmp_path / "recording"
    create_tables(database, 10)
    relay = new_relay("--record", str(folder), "--on-record-error", "stop-recording", kind=Headless)
    relay.start()
    relay.wait_streaming()
    fill_disk(relay, folder)
    write_much(database, 1_000)
    relay.wait_caught_up()
    wait_for("the line", lambda: "can't be written: File too large" in relay.last_words())
    relay.stop()
    lines = [line.removeprefix(f"bwtui: {relay.name}: ") for line in relay.last_words().splitlines()]
    assert sum("can't be written: File too large" in line for line in lines) == 1
    assert lines[-1] == f"the recording in {folder} was abandoned, and lacks all later changes"
    assert any(line.startswith("error: the recording lacks changes relayed from 0/") for line in lines)


def test_record_speaks_of_postgresql_alone_and_of_new_tables_and_ends_on_ctrl_c(
    database: str, new_relay: NewRelay, tmp_path: Path
) -> None:
    create_tables(database, 10)
    relay = new_relay("-o", str(tmp_path / "recording"), "--new-tables", "announce", kind=Recording)
    relay.start()
    relay.wait_streaming()
    execute(database, "create table late (id int primary key)")
    wait_for("the notice", lambda: "table public.late is not in the publication" in relay.last_words())
    relay.signal(signal.SIGINT)
    assert relay.join() == 130
    words = relay.last_words()
    assert words.splitlines()[-1].startswith(f"bwtui: {relay.name}: stopped cleanly; everything up to 0/")
    assert "error" not in words
    assert "Kafka" not in words
    assert words.count("public.late is not in the publication") == 1


@pytest.mark.parametrize(
    ("args", "error", "hint"),
    [
        (["--toast", "what"], "--toast: 'what' is not one of", "use fetch or error or placeholder"),
        (["-o", ""], "-o DIR is missing", "give the folder of the recording"),
    ],
)
def test_a_wrong_option_of_record_is_told_as_that_of_connect(
    new_relay: NewRelay, tmp_path: Path, args: list[str], error: str, hint: str
) -> None:
    relay = new_relay("-o", str(tmp_path / "recording"), kind=Recording)
    relay.start(*args)
    assert relay.join() == 2
    first, second = relay.last_words().splitlines()
    assert first.startswith(f"bwtui: error: {error}")
    assert second.startswith(f"hint: {hint}")


def test_a_recording_without_a_folder_is_refused(new_relay: NewRelay) -> None:
    relay = new_relay("--record", "", kind=Headless)
    relay.start()
    assert relay.join() == 2
    assert "bwtui: error: --record has an empty value" in relay.last_words()
