"""The model: histories, pause, staleness, and an engine that comes and goes."""

import pytest

from bwtui.model.history import ChartMark, RelayHistory, Second
from bwtui.tui.sources.model import POINTS
from bwtui.tui.sources.relay_model import RelayModel
from tests.tui.doubles import Clock, FakeRelay
from tests.tui.shop import NOON, Shop


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def relay(clock: Clock) -> FakeRelay:
    return FakeRelay(Shop(), clock)


@pytest.fixture
def model(relay: FakeRelay, clock: Clock) -> RelayModel:
    return RelayModel(relay, clock)


async def pass_time(model: RelayModel, clock: Clock, seconds: float, step: float = 1.0) -> None:
    for _ in range(round(seconds / step)):
        clock.now += step
        await model.sample_status()


async def test_a_history_has_one_point_a_second_whatever_the_rate_of_sampling(
    model: RelayModel, clock: Clock
) -> None:
    await pass_time(model, clock, 30, step=0.25)
    assert len(model.live.delivered) in (30, 31)


async def test_histories_are_bounded(model: RelayModel, clock: Clock) -> None:
    await pass_time(model, clock, POINTS + 50)
    assert len(model.live.delivered) == POINTS
    assert all(len(points) == POINTS for points in model.live.rates.values())


def seconds(first: float, count: int, rate: float) -> tuple[Second, ...]:
    """Return ``count`` seconds with ``rate`` acknowledged messages each."""
    return tuple(Second(first + n, rate, rate, 0, 0.0, 0) for n in range(count))


async def test_who_attaches_is_given_what_the_relay_has_kept(
    model: RelayModel, relay: FakeRelay, clock: Clock
) -> None:
    trends: dict[str, tuple[float, ...]] = {"public.orders": (7.0,) * 50}
    relay.past = RelayHistory(
        seconds(clock.now - 59.5, 60, 70.0), (ChartMark(NOON, "start", "begun"),), trends
    )
    await model.sample_status()
    assert model.live.delivered[:-1] == (70.0,) * 60
    assert model.live.rates["public.orders"][:-1] == (7.0,) * 50
    assert model.live.history.seconds == relay.past.seconds
    relay.past = relay.past.extended(RelayHistory(seconds(clock.now + 0.5, 3, 90.0)))
    await pass_time(model, clock, 3)
    assert model.live.delivered[:60] == (70.0,) * 60
    assert len(model.live.delivered) == 64
    assert [second.acknowledged_per_second for second in model.live.history.seconds[58:]] == [
        70,
        70,
        90,
        90,
        90,
    ]


async def test_what_the_relay_has_kept_is_asked_for_once_a_second(
    model: RelayModel, relay: FakeRelay, clock: Clock
) -> None:
    await pass_time(model, clock, 30, step=0.25)
    assert relay.asked_history in (30, 31)


async def test_a_relay_without_a_history_is_shown_all_the_same(
    model: RelayModel, relay: FakeRelay, clock: Clock
) -> None:
    async def torn(after: float) -> None:
        raise ValueError("Unterminated string")

    relay.history = torn  # type: ignore[method-assign, assignment]
    await pass_time(model, clock, 3)
    assert (model.failure, len(model.live.delivered)) == (None, 3)


async def test_cpu_and_growth_of_the_wal_are_averages(model: RelayModel, clock: Clock) -> None:
    await pass_time(model, clock, 1)
    assert model.live.cpu is None
    await pass_time(model, clock, 20)
    assert model.live.cpu == pytest.approx(0.37)
    assert model.live.wal_rate == pytest.approx(410_000, rel=1e-3)
    assert model.live.seconds_left() == pytest.approx(10 * 1024**3 / 410_000, rel=1e-3)


async def test_a_pause_freezes_the_picture_and_nothing_else(model: RelayModel, clock: Clock) -> None:
    await pass_time(model, clock, 5)
    model.toggle_pause()
    frozen = model.snapshot
    await pass_time(model, clock, 5)
    assert model.snapshot is frozen
    assert model.live.rows > frozen.rows
    assert len(model.live.delivered) > len(frozen.delivered)
    model.toggle_pause()
    assert model.snapshot is model.live


async def test_the_link(model: RelayModel, relay: FakeRelay, clock: Clock) -> None:
    def link() -> str:
        return model.link

    assert link() == "connecting"
    await model.sample_status()
    assert link() == "live"
    relay.frozen_at = clock.now
    await pass_time(model, clock, 5)
    assert (link(), model.age) == ("stale", 5)
    relay.frozen_at = None
    relay.gone = True
    await pass_time(model, clock, 1)
    assert link() == "gone"
    assert model.live.status is not None, "the last figures stay"
    relay.gone = False
    await pass_time(model, clock, 1)
    assert link() == "live"


async def test_changes_are_fetched_once_each(model: RelayModel, clock: Clock) -> None:
    await model.sample_status()
    await model.sample_changes()
    clock.now += 1
    await model.sample_changes()
    sequences = [change.sequence for change in model.live.changes]
    assert sequences == sorted(set(sequences))
    assert sequences[-1] == int((clock.now - NOON) * 10)


async def test_schemas_are_asked_for_only_when_an_id_is_new(
    model: RelayModel, relay: FakeRelay, clock: Clock
) -> None:
    await model.sample_status()
    await model.sample_schemas()
    known = model.live.schemas
    await model.sample_schemas()
    assert model.live.schemas is known
    relay.shop.extra = 1
    await model.sample_status()
    await model.sample_schemas()
    assert len(model.live.schemas) == len(known) + 2


async def test_another_engine_of_the_same_name_starts_from_nothing(
    model: RelayModel, relay: FakeRelay, clock: Clock
) -> None:
    await pass_time(model, clock, 10)
    await model.sample_changes()
    relay.shop = Shop(start=clock.now)
    await pass_time(model, clock, 2)
    await model.sample_changes()
    assert len(model.live.delivered) == 2
    assert max(change.sequence for change in model.live.changes) <= 20


async def test_half_an_answer_is_not_the_end_of_the_ui(model: RelayModel, relay: FakeRelay) -> None:
    async def torn() -> None:
        raise ValueError("Unterminated string")

    relay.status = torn  # type: ignore[method-assign, assignment]
    await model.sample_status()
    assert model.failure is not None
