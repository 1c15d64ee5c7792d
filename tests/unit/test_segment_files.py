"""Entries in a recording's folder that have a segment's name but are not files."""

import os
from pathlib import Path

import pytest

from bwtui.errors import StateFailed
from bwtui.recording.check import check
from bwtui.recording.reader import open_recording

NAME = "00000001-0000000000000001-0000000000000002.bwj"


@pytest.mark.parametrize("look", [check, open_recording])
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_a_segment_that_is_no_file_is_refused_at_once(tmp_path: Path, look: object, make: object) -> None:
    make(tmp_path / NAME)  # type: ignore[operator]
    with pytest.raises(StateFailed) as raised:
        look(tmp_path)  # type: ignore[operator]
    assert f"{NAME} can't be read: " in raised.value.message
