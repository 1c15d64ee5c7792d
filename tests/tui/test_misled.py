"""Details that misled an operator in an incident: truncated causes, counts, and stale details."""

from dataclasses import replace

import pytest

from bwtui.model.service_views import Consumers, GroupEntry, PartitionLag
from bwtui.model.status import ErrorEntry, Status
from bwtui.model.verdict import RelayVerdict
from bwtui.tui.screens.services import GROUPS
from bwtui.tui.widgets.changes import ChangeDetail, ChangeList
from bwtui.tui.widgets.grid import ItemList
from tests.tui.doubles import Stage
from tests.tui.picture import lines, text
from tests.tui.shop import Shop

_CAUSE = (
    "Kafka at broker-1.example.org:9092 has acknowledged nothing for 14 s: it can't reach two of its three "
    "replicas (its process waits: WalSenderWaitForWal)"
)


class Stalled(Shop):
    """A relay whose verdict takes two lines."""

    def status(self, now: float) -> Status:
        """Return the status at a moment."""
        says = f"{_CAUSE}; the slot is safe for ≈ 2 h 05 m"
        verdict = RelayVerdict("stalled", says, "kafka", stage="acknowledge", hint="see to the brokers")
        return replace(super().status(now), state="stalled", verdict=verdict)


@pytest.mark.parametrize("size", [(100, 30), (120, 30)])
async def test_a_verdict_is_told_whole_before_what_matters_less(size: tuple[int, int]) -> None:
    stage = Stage(Stalled())
    async with stage.run(size):
        told = " ".join(" ".join(lines(stage.app)[1:4]).split())
        assert f"✗ {_CAUSE} the slot is safe for ≈ 2 h 05 m → see to the brokers" in told


class Noticed(Shop):
    """A relay with a frequent error, a resolved one, and a notice."""

    def status(self, now: float) -> Status:
        """Return the status at a moment."""
        errors = (
            ErrorEntry(now, "row", "public.orders", "a row was refused", None, 5),
            ErrorEntry(now, "outage", None, "Kafka was away", None, 3, now - 30, now - 8, "Kafka"),
            ErrorEntry(now, "notice", None, "a slot is not known"),
        )
        return replace(super().status(now), errors=errors)


async def test_the_tab_counts_errors_and_not_how_often_they_came() -> None:
    stage = Stage(Noticed())
    async with stage.run((160, 45)):
        assert "4Err·1 " in lines(stage.app)[0]


async def test_what_a_group_has_never_committed_is_not_nothing() -> None:
    stage = Stage()
    parts = (PartitionLag("public.orders", 0, None, 6_010),)
    async with stage.run((160, 45)):
        unknown = GroupEntry("mailer", "stable", 1, ("public.orders",), 0, None, 1, 4, parts)
        some = replace(unknown, name="report", unread=6_010, unread_since=stage.clock.now - 60)
        stage.relay.views["consumers"] = Consumers(stage.clock.now, groups=(unknown, some))
        await stage.advance(6)
        assert "≥ 6.01k" in text(stage.app)
        assert "caught up" not in text(stage.app)
        await stage.press("7")
        await stage.advance(1)
        shown = text(stage.app)
        assert "≥ 6.01k" in shown
        assert "≥ 0" in shown
        assert "caught up" not in shown
        assert "▲ report has the largest lag: ≥ 6.01k messages" in shown
        stage.relay.views["consumers"] = Consumers(stage.clock.now, groups=(unknown,))
        await stage.advance(1)
        assert "mailer has committed no offset in 4 partitions that hold messages" in text(stage.app)
        assert "none late" not in text(stage.app)


async def test_the_detail_is_always_of_the_selected_change() -> None:
    stage = Stage()
    async with stage.run((160, 45)):
        await stage.show("changes")
        model, changes = stage.app.model, stage.app.screen.query_one(ChangeList)
        last = model.live.changes[-1]
        # A new engine has got as far as the previous one.
        other = replace(last, table="public.elsewhere", key="1444")
        model.live = replace(model.live, changes=(*model.live.changes[:-1], other))
        stage.app.refresh_screens()
        await stage.settle()
        assert changes.selected() == other
        region = stage.app.screen.query_one(ChangeDetail).region
        detail = "\n".join(line[region.x : region.right] for line in lines(stage.app))
        assert "public.elsewhere  key 1444" in detail


async def test_an_unknown_number_of_members_is_not_zero() -> None:
    stage = Stage()
    async with stage.run((160, 45)):
        groups = [GroupEntry(str(members), "stable", members, ("public.orders",)) for members in (None, 0, 1)]
        stage.relay.views["consumers"] = Consumers(stage.clock.now, groups=tuple(groups))
        await stage.press("7")
        await stage.advance(1)
        rows = stage.app.screen.query_one("#groups", ItemList).rows
        members = [column.key for column in GROUPS].index("members")
        assert {row.key: row.cells[members].tone for row in rows} == {"None": "", "0": "warn", "1": ""}
