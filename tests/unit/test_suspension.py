"""Gaps between two checks of the clocks that count as a suspension; nothing is sent before a check."""

from contextlib import closing

import pytest

from bwtui.model.delivery import DeliverySpan
from bwtui.relay.stream.suspension import GAP_SECONDS, SuspensionDetector
from bwtui.settings import RelaySettings
from bwtui.sink.destination import Message
from bwtui.sink.kafka import KafkaSink


@pytest.mark.parametrize(
    ("gaps", "seconds"),
    [
        ((0.25, 0.25), 0.0),
        ((GAP_SECONDS - 1, GAP_SECONDS - 1), 0.0),
        ((GAP_SECONDS, 0.25), GAP_SECONDS),
        # A machine that was paused from outside notices when its clock is set.
        ((0.25, 3_600.0), 3_600.0),
        # A clock that is set back does not count as a gap.
        ((0.25, -3_600.0), 0.0),
    ],
)
def test_a_gap(gaps: tuple[float, float], seconds: float) -> None:
    now = [1_000.0, 5_000.0]
    called: list[float] = []
    watch = SuspensionDetector(lambda: called.append(watch.take()), lambda: (now[0], now[1]))
    now[0] += gaps[0]
    now[1] += gaps[1]
    watch.check()
    # It is reported before waiting messages are held back: their failures must not count as an outage.
    assert called == ([pytest.approx(seconds)] if seconds else [])
    assert watch.take() == 0


def test_whatever_thread_is_awake_first_nothing_is_sent_before_a_look() -> None:
    """The relay's thread may process answers and send messages before the watching thread has its turn."""
    now = [0.0]
    with closing(KafkaSink(RelaySettings(broker="127.0.0.1:1"))) as sink:
        watch = SuspensionDetector(sink.hold_back, lambda: (now[0],))
        sink.before_sending(watch.check)
        for number in range(20):
            sink.send("t", [Message(b"k", b"%d" % number, 0)], DeliverySpan())
        assert len(sink._outbox)
        now[0] += GAP_SECONDS
        sink.poll(0)
        assert not len(sink._outbox)
        assert watch.take() == GAP_SECONDS
        assert sink.flush(10)
        sink.send("t", [Message(b"k", b"late", 0)], DeliverySpan())
        assert not sink.queued()
