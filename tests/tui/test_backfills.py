"""Backfills on the screens: their progress and their actions."""

from dataclasses import replace

import pytest

from bwtui.errors import RefusedError
from bwtui.model.backfill import BackfillCommand, BackfillRequest, BackfillStatus
from bwtui.model.status import Status
from bwtui.tui.base.choices import Choices
from bwtui.tui.screens.dialogs import AskScreen
from bwtui.tui.sources.model import ViewSettings
from tests.tui.doubles import Stage
from tests.tui.pictured import compare, steady
from tests.tui.shop import NOON, Shop

SIZES = ((80, 24), (160, 45))
RUNNING = BackfillStatus(
    "3-order_items",
    "public.order_items",
    state="running",
    rows=412_000,
    left_out=37,
    estimate=1_930_000,
    chunks=42,
    requested=NOON,
    started=NOON + 2,
    rows_per_second=11_900.0,
)
STATUSES = (
    BackfillStatus(
        "1-customers",
        "public.customers",
        state="done",
        rows=5000,
        chunks=1,
        estimate=5000,
        requested=NOON - 600,
        started=NOON - 600,
        ended=NOON - 588,
    ),
    BackfillStatus(
        "2-products",
        "public.products",
        where="price > 100 and title like 'K%'",
        state="failed",
        requested=NOON - 60,
        started=NOON - 60,
        ended=NOON - 59,
        error="the table public.products has no longer the column title",
        hint="ask again with the columns that it has",
    ),
    RUNNING,
    BackfillStatus("4-orders", "public.orders", reason="repair", requested=NOON + 30),
)


class Sending(Shop):
    """A relay with backfills."""

    def status(self, now: float) -> Status:
        return replace(super().status(now), backfills=STATUSES)


class Asked:
    """The requests that the relay received."""

    def __init__(self) -> None:
        self.requests: list[BackfillRequest] = []
        self.commands: list[tuple[str, BackfillCommand]] = []
        self.refuses = False

    def send_again(self, name: str, wanted: BackfillRequest) -> str:
        if self.refuses:
            raise RefusedError(
                "table public.orders already has an unfinished backfill: 4-orders", "wait until it is done"
            )
        self.requests.append(wanted)
        return "5-x"

    def control(self, name: str, id: str, what: BackfillCommand) -> BackfillStatus:
        self.commands.append((id, what))
        return replace(RUNNING, detail="will pause")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """Record requests in place of a relay."""
    asked = Asked()
    monkeypatch.setattr("bwtui.tui.screens.backfills.send_again", asked.send_again)
    monkeypatch.setattr("bwtui.tui.screens.backfills.control_backfill", asked.control)
    return asked


def notices(stage: Stage) -> str:
    """Return the text of all notices."""
    return " ".join(f"{notice.title} {notice.message}" for notice in stage.app._notifications)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("name", "keys"), [("overview", ()), ("backfills", ("b",)), ("table", ("enter",))])
async def test_what_is_sent_again_is_shown(size: tuple[int, int], name: str, keys: tuple[str, ...]) -> None:
    stage = Stage(Sending(trouble=True))
    async with stage.run(size):
        await stage.advance(8)
        for key in keys:
            await stage.press(key)
            await stage.app.sample()
        await stage.advance(1)
        await compare(stage, f"sending-{name}-{size[0]}x{size[1]}")


async def test_the_line_is_gone_where_nothing_is_sent_again() -> None:
    stage = Stage(Shop())
    async with stage.run((80, 24)):
        await stage.advance(2)
        assert "↻" not in await steady(stage)
        await stage.press("b")
        await stage.advance(1)
        assert "no backfill requests yet; B on a table" in await steady(stage)


async def test_a_table_is_sent_again_after_a_question(asked: Asked) -> None:
    stage = Stage(Shop())
    async with stage.run((80, 24)):
        await stage.advance(2)
        await stage.press("B")
        assert isinstance(stage.app.screen, AskScreen)
        assert "Consumers receive every row once more" in await steady(stage)
        await stage.press("enter")
        assert asked.requests == [], "what Enter means by chance"
        await stage.press("B", "y")
        await stage.advance(1)
        (wanted,) = asked.requests
        assert wanted.table in stage.app.model.snapshot.status.tables  # type: ignore[union-attr]
        assert "5-x" in notices(stage)
        asked.refuses = True
        await stage.press("B", "y")
        await stage.advance(1)
        assert "already has an unfinished backfill" in notices(stage)


async def test_one_is_paused_and_cancelled(asked: Asked) -> None:
    stage = Stage(Sending())
    async with stage.run((160, 45)):
        await stage.advance(2)
        await stage.press("b")
        await stage.advance(1)
        # The newest comes first.
        await stage.press("down", "h")
        await stage.advance(1)
        assert asked.commands == [("3-order_items", "pause")]
        await stage.press("X")
        assert "412,000 rows of public.order_items were sent" in await steady(stage)
        await stage.press("escape")
        await stage.press("X", "y")
        await stage.advance(1)
        assert asked.commands[1:] == [("3-order_items", "cancel")]
        await stage.press("down", "h")
        await stage.advance(1)
        assert "request 2-products has already ended: failed" in notices(stage)
        assert len(asked.commands) == 2


async def test_with_readonly_nothing_is_asked_for(asked: Asked) -> None:
    stage = Stage(Sending(), ViewSettings(choices=Choices(readonly=True)))
    async with stage.run((80, 24)):
        await stage.advance(2)
        await stage.press("B")
        assert "Send table: this would write into a topic" in notices(stage)
        await stage.press("b")
        await stage.advance(1)
        await stage.press("h", "X")
        assert not isinstance(stage.app.screen, AskScreen)
    assert (asked.requests, asked.commands) == ([], [])
