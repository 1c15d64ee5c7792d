"""Messages of a headless relay without --json on stderr."""

from dataclasses import replace
from pathlib import Path

import pytest

from bwtui.cli.output.headless import HeadlessReporter
from bwtui.model.backfill import FirstSnapshot
from bwtui.model.gaps import with_gaps
from bwtui.model.heal import HealStatus
from bwtui.model.proof import UnprovenTable
from bwtui.model.status import ErrorEntry, RecordingStatus, Status, TableStatus
from bwtui.model.verdict import RelayVerdict
from bwtui.relay.main import log_listener
from bwtui.relay.process.last_status import at_the_end

LATE = ErrorEntry(1.0, "notice", "public.late", "table public.late is not in the publication", "add it")


def status(*errors: ErrorEntry, state: str = "streaming", dropped: int = 0, recording: str = "") -> Status:
    tables = {"public.t": TableStatus(dead_letters=dropped)}
    found = RecordingStatus("/r", recording) if recording else None
    return Status(state, "shop", "shop", tables=tables, errors=errors, recording=found)  # type: ignore[arg-type]


def row(value: int) -> ErrorEntry:
    return ErrorEntry(1.0, "row", "public.t", f"value {value} is too large", "mend it")


def told(capsys: pytest.CaptureFixture[str]) -> list[str]:
    out, err = capsys.readouterr()
    assert out == ""
    return [line.removeprefix("bwtui: shop: ") for line in err.splitlines()]


def test_each_error_and_notice_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    lines = HeadlessReporter()
    full = ErrorEntry(2.0, "recording", None, "the recording in /r can't be written:\nno space", "free it")
    lines.emit(status(LATE))
    lines.emit(status(LATE, full))
    lines.emit(status(LATE, full))
    assert told(capsys) == [
        "streaming",
        "notice: table public.late is not in the publication",
        "hint: add it",
        "error: the recording in /r can't be written: no space",
        "hint: free it",
    ]


def test_rows_are_told_of_once_and_counted_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    lines = HeadlessReporter()
    lines.emit(status(row(1), dropped=1))
    lines.emit(status(row(1), row(2), dropped=2))
    assert told(capsys) == [
        "streaming",
        "error: table public.t: value 1 is too large; further rows like this are only counted",
        "hint: mend it",
    ]
    lines.emit_last(status(row(1), row(2), row(3), state="stopped", dropped=1_234))
    assert told(capsys) == [
        "stopped",
        "1,234 rows were dropped, see 'bwtui status shop' and dead-letters.jsonl",
    ]


def test_a_recording_that_was_given_up_is_told_of_again_at_the_end(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = HeadlessReporter()
    lines.emit(status(recording="stopped"))
    lines.emit_last(status(state="stopped"))
    assert told(capsys)[-1] == "the recording in /r was abandoned, and lacks all later changes"


def test_the_error_that_ends_the_relay_is_left_to_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    failed = status(ErrorEntry(1.0, "fatal", None, "slot is lost"), state="failed")
    HeadlessReporter().emit_last(replace(failed, detail="slot is lost"))
    assert told(capsys) == ["failed"]


def test_what_was_told_does_not_grow_for_months(capsys: pytest.CaptureFixture[str]) -> None:
    lines = HeadlessReporter()
    for number in range(1_000):
        lines.emit(status(ErrorEntry(1.0, "outage", None, f"the connection was lost at 0/{number:X}")))
    assert len(told(capsys)) == 1_001
    assert len(lines._reported) <= 2


def test_what_a_start_waits_for_is_told_when_it_changes(capsys: pytest.CaptureFixture[str]) -> None:
    lines = HeadlessReporter()
    for detail in (
        "",
        "checking PostgreSQL",
        "waiting for slot shop",
        "waiting for slot shop",
        "waiting for x",
    ):
        lines.emit(replace(status(state="starting"), detail=detail))
    lines.emit(replace(status(), detail="waiting for Kafka"))
    lines.emit(replace(status(), detail="waiting for nothing"))
    assert told(capsys) == [
        "starting",
        "starting (waiting for slot shop)",
        "starting (waiting for x)",
        "streaming (waiting for Kafka)",
    ]


def test_a_stall_that_changes_its_cause_makes_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    lines = HeadlessReporter()

    def stalled(dependency: str, seconds: float) -> Status:
        sentence = f"{dependency} has said nothing for {seconds:.0f} s"
        verdict = RelayVerdict(
            "stalled", sentence, "kafka", dependency, since=100.0 + seconds, seconds=seconds
        )
        return replace(status(state="stalled"), verdict=verdict, time=103.0 + 2 * seconds)

    for one in (stalled("Kafka", 3.0), stalled("Kafka", 4.0), stalled("PostgreSQL", 3.0)):
        lines.emit(one)
    lines.emit(replace(status(), time=133.0))
    assert told(capsys) == [
        "stalled (Kafka has said nothing for 3 s)",
        "stalled (PostgreSQL has said nothing for 3 s)",
        "streaming again after 30 s",
    ]


def test_the_log_has_a_line_for_each_cause_of_a_stall(
    caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BWTUI_STATE_HOME", str(tmp_path))
    monkeypatch.setattr("bwtui.relay.main.trim", lambda name, number: None)
    listener = log_listener("shop")
    with caplog.at_level("INFO"):
        for dependency in ("Kafka", "Kafka", "PostgreSQL"):
            verdict = RelayVerdict("stalled", f"{dependency} is away", "kafka", dependency)
            listener.emit(replace(status(state="stalled"), verdict=verdict))
    assert caplog.messages == ["stalled: Kafka is away", "stalled: PostgreSQL is away"]


@pytest.mark.parametrize(
    ("state", "left"),
    [
        (("done", "running"), "; the first snapshot is incomplete, and the next start takes a new one"),
        # Its rows are not durable yet, and there is no slot.
        (("done", "done"), "; the first snapshot is incomplete, and the next start takes a new one"),
        (("none", "none"), ""),
    ],
)
def test_a_relay_that_is_stopped_in_its_first_snapshot_says_what_becomes_of_it(
    state: tuple[str, str], left: str
) -> None:
    tables = {f"public.{number}": TableStatus(snapshot_state=one) for number, one in enumerate(state)}
    running = replace(status(), tables=tables)
    assert at_the_end(running, None, 0, 1.0).verdict.sentence == f"stopped cleanly{left}"
    through = at_the_end(replace(running, confirmed_lsn=5), None, 0, 1.0)
    assert through.verdict.sentence == "stopped cleanly; everything up to 0/5 is confirmed"
    by_chunks = replace(running, first_snapshot=FirstSnapshot(2, 1))
    assert "resumes it" in at_the_end(by_chunks, None, 0, 1.0).verdict.sentence


def test_a_gap_is_told_when_it_opens_and_when_all_are_closed(capsys: pytest.CaptureFixture[str]) -> None:
    lines = HeadlessReporter()
    orders = UnprovenTable(
        "public.orders", 0x16B3748, "topic orders was deleted", "bwtui snapshot public.orders"
    )
    heal = HealStatus(0.0, "slot shop is gone", "comparing", "0/1", "1 of 7")
    lines.emit(status(state="starting"))
    lines.emit(replace(status(), heal=heal))
    lines.emit(replace(status(), heal=replace(heal, detail="2 of 7")))
    lines.emit(replace(status(), not_proven=(orders,), heal=heal))
    lines.emit(replace(status(), not_proven=(orders,)))
    lines.emit(status())
    lines.emit(status())
    first, hint, *more = told(capsys)[2:]
    assert first.startswith("not proven (topics may differ from tables since ")
    assert first.endswith("(slot shop is gone): the relay is comparing them: 1 of 7)")
    assert hint.startswith("hint: no action needed")
    assert more == [
        "not proven (public.orders is not proven since 0/16B3748: topic orders was deleted)",
        "hint: for public.orders run: bwtui snapshot public.orders",
        "streaming: all tables are proven again",
    ]


def test_the_log_of_a_relay_in_the_background_has_it_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    emit = log_listener("shop").emit
    heal = HealStatus(0.0, "slot shop is gone", "comparing", "0/1", "1 of 7")
    verdict = RelayVerdict("healthy", "rows pass")
    for detail in ("1 of 7", "2 of 7"):
        emit(with_gaps(replace(status(), verdict=verdict, heal=replace(heal, detail=detail))))
    emit(replace(status(), verdict=verdict))
    first, last = (record.getMessage() for record in caplog.records)
    assert first.startswith("streaming: topics may differ from tables since ") and "1 of 7" in first
    assert last == "streaming"
