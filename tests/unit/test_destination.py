"""The sink that the settings select, and the interface of every sink."""

import pytest

from bwtui.settings import RelaySettings
from bwtui.sink.destination import Sink, kind_of


@pytest.mark.parametrize("record_only", [False, True], ids=["kafka", "nothing"])
def test_the_settings_choose_the_sink(record_only: bool) -> None:
    settings = RelaySettings(broker="127.0.0.1:1", record_only=record_only)
    destination = kind_of(settings).open_destination(settings)
    try:
        assert type(destination.sink).__module__ == f"bwtui.sink.{settings.sink}"
        assert destination.address == ("" if record_only else "127.0.0.1:1")
        asked = {name for name, value in vars(Sink).items() if not name.startswith("_") and callable(value)}
        assert asked == {"send", "poll", "flush", "take_failures", "queued", "answered", "discard"}
        assert not asked - set(dir(destination.sink))
    finally:
        destination.close()


def test_a_sink_without_a_service_takes_every_topic() -> None:
    only_recording = RelaySettings(record_only=True)
    assert not kind_of(only_recording).preconditions(only_recording)
    destination = kind_of(only_recording).open_destination(only_recording)
    assert destination.service.check() == "" and destination.service.outage() is None
    limits = destination.service.ensure_topics({"orders": True, "log": False})
    assert set(limits) == {"orders", "log"}
    assert destination.readback.end_offsets("orders") == {}
    assert list(destination.readback.keys("orders", {}, {}, lambda: None)) == []
