"""The player: playback, steps and seeks, with a clock that the test controls."""

import os
import time
from collections.abc import Iterator

import pytest

from bwtui.errors import UsageError
from bwtui.model.lsn import format_lsn
from bwtui.recording.playback import SPEEDS, Player
from tests.recorded_shop import NOON, ORDERS, SECOND, MemoryRecording, Tape, shop_recording


@pytest.fixture(autouse=True)
def utc() -> Iterator[None]:
    """Make local time UTC: positions are shown as times of day."""
    before = os.environ.get("TZ")
    os.environ["TZ"] = "UTC"
    time.tzset()
    yield
    if before is None:
        del os.environ["TZ"]
    else:
        os.environ["TZ"] = before
    time.tzset()


class Clock:
    """A clock that moves only when the test moves it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def even_tape() -> Tape:
    """Return ten transactions of two changes, a second apart, with an idle minute after the fifth."""
    tape = Tape()
    for number in range(10):
        tape.wait(60 if number == 5 else 1)
        tape.begin()
        tape.add("insert", ORDERS, (b"%d" % number, b"new", b"1"))
        tape.add("update", ORDERS, (b"%d" % number, b"paid", b"1"))
    tape.wait(1)
    return tape


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def player(clock: Clock) -> Player:
    return Player(MemoryRecording(even_tape()), clock)


def let_pass(player: Player, clock: Clock, seconds: float, step: float = 0.25) -> None:
    for _ in range(round(seconds / step)):
        clock.now += step
        player.advance()


def test_it_opens_at_the_end_and_stands_still(player: Player, clock: Clock) -> None:
    let_pass(player, clock, 5)
    assert (player.position, player.playing, player.at_end) == (20, False, True)


def test_playing_at_the_end_begins_anew(player: Player) -> None:
    player.toggle()
    assert (player.position, player.playing, player.time) == (0, True, NOON)


def test_it_plays_by_the_recorded_times(player: Player, clock: Clock) -> None:
    player.play()
    let_pass(player, clock, 3)
    assert (player.position, player.time) == (6, NOON + 3 * SECOND)
    player.toggle()
    let_pass(player, clock, 3)
    assert player.position == 6


@pytest.mark.parametrize("speed", SPEEDS)
def test_speed(player: Player, clock: Clock, speed: float) -> None:
    player.play()
    while player.speed != speed:
        player.change_speed(1 if speed > player.speed else -1)
    let_pass(player, clock, 4 / speed, 0.25 / speed)
    assert player.position == 8


def test_the_slowest_and_the_fastest_stay(player: Player) -> None:
    player.change_speed(-20)
    assert player.speed == SPEEDS[0]
    player.change_speed(20)
    assert player.speed == SPEEDS[-1]


@pytest.mark.parametrize("step", [0.1, 0.25, 3])
def test_an_idle_minute_takes_two_seconds(player: Player, clock: Clock, step: float) -> None:
    player.seek(8)
    player.play()
    clock.now += 1
    player.advance()
    assert player.position == 10
    if step < 1:
        let_pass(player, clock, 1, step)
        assert player.skipping == 60 * SECOND
        assert player.position == 10
        assert player.time > NOON + 30 * SECOND
    let_pass(player, clock, 3, step)
    assert player.position > 10
    assert player.skipping == 0


def test_one_long_look_plays_everything_and_stops_at_the_end(player: Player, clock: Clock) -> None:
    player.play()
    clock.now += 1000
    player.advance()
    assert (player.position, player.playing) == (20, False)
    assert player.time <= NOON + 70 * SECOND


def test_steps(player: Player) -> None:
    player.seek(5)
    player.play()
    player.step(1)
    assert (player.position, player.playing) == (6, False)
    player.step(-2)
    assert player.position == 4
    player.step(-100)
    assert (player.position, player.time) == (0, NOON)
    player.step(100)
    assert player.position == 20


def test_steps_by_transaction(player: Player) -> None:
    player.seek(5)
    player.step_transaction(1)
    assert player.position == 6
    player.step_transaction(1)
    assert player.position == 8
    player.step_transaction(-1)
    assert player.position == 6
    player.seek(5)
    player.step_transaction(-1)
    assert player.position == 4
    for _ in range(20):
        player.step_transaction(-1)
    assert player.position == 0
    for _ in range(20):
        player.step_transaction(1)
    assert player.position == 20


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("12:00:03", 6),
        ("12:00:03.5", 6),
        ("12:01", 10),
        ("2026-01-15 12:00:02", 4),
        ("2026-01-15T12:00:02+00:00", 4),
        ("2026-01-15", 0),
        ("-2s", 18),
        ("-1m6s", 8),
        ("-2h", 0),
        ("+5m", 20),
        ("0%", 0),
        ("100%", 20),
        ("50 %", 10),
        ("start", 0),
        ("end", 20),
        ("#7", 8),
        ("xid 743", 6),
        ("XID=741", 2),
    ],
)
def test_places(player: Player, text: str, position: int) -> None:
    player.seek_text(text)
    assert player.position == position


def test_an_lsn_is_meant_with_its_transaction(player: Player) -> None:
    tape = even_tape()
    player.seek_text(format_lsn(tape.changes[4].lsn))
    assert player.position == 6
    player.seek_text(format_lsn(tape.changes[4].lsn + 1))
    assert player.position == 6


def test_relative_times_count_from_where_it_stands(player: Player) -> None:
    player.seek_text("12:00:02")
    player.seek_text("+2s")
    assert player.position == 8
    player.seek_text("-1s")
    assert player.position == 6


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("11:00", "not in the recording"),
        ("25:00", "not a time of day"),
        ("2025-01-15 12:00", "not in the recording"),
        ("2027-01-15", "not in the recording"),
        ("soon", "not a valid position in a recording"),
        ("", "not a valid position in a recording"),
        ("xid 1", "no transaction 1"),
        ("0/1", "not in the recording"),
        ("FF/1", "not in the recording"),
        ("1/2/3", "not a valid LSN"),
        ("101%", "ends at 100%"),
        ("#20", "there is no change at position 20"),
    ],
)
def test_what_is_no_place_is_told(player: Player, text: str, message: str) -> None:
    player.seek(3)
    with pytest.raises(UsageError, match=message):
        player.seek_text(text)
    assert player.position == 3


def test_an_empty_recording(clock: Clock) -> None:
    player = Player(MemoryRecording(Tape()), clock)
    player.play()
    let_pass(player, clock, 2)
    player.step(1)
    player.step_transaction(1)
    player.step_transaction(-1)
    player.seek_text("50%")
    assert (player.position, player.playing) == (0, False)


def test_a_transaction_that_comes_again_is_found_behind_this_place_first(clock: Clock) -> None:
    recording = shop_recording()
    repeated = next(c for c in recording.changes() if c.is_repeat)
    player = Player(recording, clock)
    player.seek_text(f"xid {repeated.xid}")
    first = player.position
    player.seek_text(f"xid {repeated.xid}")
    assert player.position == repeated.position + 1 > first


def test_every_way_through_the_shop_ends_at_the_end(clock: Clock) -> None:
    recording = shop_recording()
    player = Player(recording, clock)
    player.play()
    player.change_speed(3)
    seen = []
    for _ in range(200):
        clock.now += 0.25
        player.advance()
        seen.append(player.position)
    assert seen == sorted(seen)
    assert seen[-1] == recording.length


def test_steps_by_errors(clock: Clock) -> None:
    player = Player(shop_recording(), clock)
    with pytest.raises(UsageError, match="no error or warning after"):
        player.seek_error(1)
    player.seek_error(-1)
    assert player.time == round(player._view.errors(player._view.length)[0].time * SECOND)
    with pytest.raises(UsageError, match="no error or warning before"):
        player.seek_error(-1)
