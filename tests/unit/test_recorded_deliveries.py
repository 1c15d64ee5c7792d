"""When a message's delivery was recorded, as a journey shows it."""

import time
from contextlib import closing
from pathlib import Path

from bwtui.recording.reader import open_recording
from tests.recorded_stream import Stream, table


def test_a_delivery_has_the_time_at_which_it_was_noted(tmp_path: Path) -> None:
    stream = Stream(tmp_path / "shop")
    stream.begin_pass()
    stream.begin()
    stream.change("insert", table(7, "items"), 1, b"body")
    stream.commit()
    stream.flush()
    with closing(open_recording(stream.folder)) as under_way:
        assert [m.noted for change in under_way.changes() for m in change.messages] == [None]
    stream.stop()
    with closing(open_recording(stream.folder)) as recording:
        (change,) = recording.changes()
        (message,) = change.messages
        assert message.state == "acknowledged"
        assert message.noted is not None
        assert change.received <= message.noted <= time.time() * 1_000_000
