"""The first line of every screen reports loss until it is resolved."""

from dataclasses import dataclass, replace

import pytest

from bwtui.model.gaps import with_gaps
from bwtui.model.heal import HealStatus
from bwtui.model.proof import NotProven
from bwtui.model.status import Status
from bwtui.tui.actions import tabs
from tests.tui.doubles import Stage
from tests.tui.picture import lines, text
from tests.tui.shop import NOON, Shop

DELETED = NotProven(
    "public.orders",
    0x16B3748,
    "topic orders was deleted while rows were sent to it, and what was in it is gone",
    "bwtui snapshot public.orders",
)
LOST = HealStatus(
    NOON,
    "slot bottledwater lost the WAL that it needs",
    "undecided",
    "0/1",
    "the comparison can't be trusted: public.orders: 4,081 rows are missing",
    "'bwtui snapshot public.orders' sends the table whole, and 'bwtui repair' then ends the heal",
)


@dataclass
class Open(Shop):
    """A shop that streams, of whose topics something is not proven."""

    heal: HealStatus | None = None
    not_proven: tuple[NotProven, ...] = ()
    not_captured: tuple[str, ...] = ()

    def status(self, now: float) -> Status:
        plain = super().status(now)
        found = replace(
            plain, detail="", heal=self.heal, not_proven=self.not_proven, not_captured=self.not_captured
        )
        return with_gaps(found)


def top(stage: Stage) -> str:
    """Return the first lines of the screen as one."""
    return " ".join(" ".join(lines(stage.app)[:5]).split())


MODES = list(tabs("live"))


@pytest.mark.parametrize("mode", MODES)
async def test_a_table_that_is_not_proven_is_told_on_every_screen(mode: str) -> None:
    stage = Stage(Open(not_proven=(DELETED,)))
    async with stage.run((120, 40)):
        await stage.show(mode)
        told = top(stage)
        assert "✗ NOT PROVEN" in told and "STREAMING" not in told
        assert f"✗ public.orders is not proven since 0/16B3748: {DELETED.reason}" in told
        assert "→ run 'bwtui snapshot public.orders' for public.orders" in told


@pytest.mark.parametrize("mode", MODES)
async def test_a_heal_that_nobody_can_decide_is_told_on_every_screen(mode: str) -> None:
    stage = Stage(Open(heal=LOST))
    async with stage.run((120, 40)):
        await stage.show(mode)
        told = top(stage)
        assert "✗ NOT PROVEN" in told
        assert "✗ topics may differ from tables since 2026-01-15" in told
        assert "public.orders: 4,081 rows are missing" in told
        assert "→ 'bwtui snapshot public.orders' sends the table whole" in told


async def test_a_heal_that_is_under_way_is_amber() -> None:
    stage = Stage(Open(heal=replace(LOST, state="comparing", detail="comparing: 3 of 7", hint="")))
    async with stage.run((120, 40)):
        told = top(stage)
        assert "▲ NOT PROVEN" in told and "▲ topics may differ from tables since" in told
        assert "the relay compares them: comparing: 3 of 7" in told
        stage.relay.shop = Shop()
        await stage.advance(1)
        assert "✓ STREAMING" in top(stage)


async def test_figures_that_move_are_not_said_to_stand_still() -> None:
    stage = Stage(Open(not_proven=(DELETED,)))
    async with stage.run((120, 40)):
        assert "✓ in time" in text(stage.app)
        assert "stands still" not in text(stage.app)
