"""The overview's line about the recording of a running relay."""

from dataclasses import replace

from bwtui.model.status import RecordingStatus
from bwtui.tui.widgets.transport import recording_content

GOOD = RecordingStatus("/data/shop", "recording", 340 << 20, 6, 12.5 * 1024**2, 88 << 30, 7200.0)


def test_rate_size_and_room_are_told() -> None:
    text = recording_content(GOOD, 120).plain
    for part in ("● REC", "12.5 MB/s", "340 MB written", "free 88.0 GB", "2 h", "6 files", "shop"):
        assert part in text, text
    assert "▲" not in text


def test_little_room_has_a_mark() -> None:
    assert "▲ free" in recording_content(replace(GOOD, seconds_left=600.0), 120).plain
    assert "▲ free" in recording_content(replace(GOOD, free_bytes=1 << 20, seconds_left=None), 120).plain


def test_room_that_is_not_known_is_no_full_disk() -> None:
    """A disk that hangs from the start gives no figures."""
    text = recording_content(replace(GOOD, free_bytes=None, seconds_left=None), 120).plain
    assert "free –" in text and "▲" not in text


def test_a_recording_that_ended_is_never_silent() -> None:
    for state, word in (("stopped", "RECORDING STOPPED"), ("failed", "RECORDING FAILED")):
        for width in (30, 78, 200):
            assert word in recording_content(replace(GOOD, state=state), width).plain


def test_it_fits_a_narrow_screen() -> None:
    content = recording_content(GOOD, 40)
    assert content.cell_length <= 40 and "● REC" in content.plain
