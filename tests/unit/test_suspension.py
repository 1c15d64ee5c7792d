"""Which gaps between two looks at the clocks count as a suspension."""

import pytest

from bwtui.relay.suspension import GAP_SECONDS, Suspension


@pytest.mark.parametrize(
    ("gaps", "seconds"),
    [
        ((0.25, 0.25), 0.0),
        ((GAP_SECONDS - 1, GAP_SECONDS - 1), 0.0),
        ((GAP_SECONDS, 0.25), GAP_SECONDS),
        # A machine that was paused from outside learns of it when its clock is set.
        ((0.25, 3_600.0), 3_600.0),
        # A clock that is set back is no gap.
        ((0.25, -3_600.0), 0.0),
    ],
)
def test_a_gap(gaps: tuple[float, float], seconds: float) -> None:
    now = [1_000.0, 5_000.0]
    called: list[float] = []
    watch = Suspension(lambda: called.append(watch.take()), lambda: (now[0], now[1]))
    now[0] += gaps[0]
    now[1] += gaps[1]
    watch.look()
    # Told before what waits is held back: messages that fail for it must not pass for an outage.
    assert called == ([pytest.approx(seconds)] if seconds else [])
    assert watch.take() == 0
