"""Figures of a silent or ended relay look old, and frozen figures are not shown as current."""

import re
from dataclasses import replace

import pytest

from bwtui.model.status import Status
from bwtui.model.verdict import RelayVerdict
from bwtui.relay.process.control import RelayUnresponsive
from bwtui.tui.widgets.grid import ItemList
from tests.tui.doubles import Stage
from tests.tui.picture import lines, text
from tests.tui.shop import Shop

SIZES = [(80, 24), (120, 30), (160, 45), (250, 70)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("end", ["silent", "gone", "failed"])
async def test_figures_that_are_old_look_old(
    end: str, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(Shop(state="failed", trouble=True) if end == "failed" else None)

    async def silent() -> Status:
        long = "relay shop runs, but does not answer: " + "its process 4711 is suspended; " * 5
        raise RelayUnresponsive(long, "'kill -CONT 4711' goes on with it")

    async with stage.run(size):
        assert "as of" not in text(stage.app)
        if end == "silent":
            monkeypatch.setattr(stage.relay, "status", silent)
        else:
            stage.relay.gone = True
        await stage.advance(40)
        shown = text(stage.app)
        assert "as of 12:01:02" in shown
        assert "figures are 40 s old" in lines(stage.app)[1]
        assert "✓" not in shown
        assert not re.search(r"[0-9]/s\b", "\n".join(shown.splitlines()[:12])), "no rate is known"
        listing = stage.app.screen.query_one(ItemList)
        at = [column.key for column in listing.columns].index("rate")
        assert {row.cells[at].text for row in listing.rows} == {"–"}
        if end != "failed":
            monkeypatch.undo()
            stage.relay.gone = False
            await stage.advance(1)
            assert "as of" not in text(stage.app)
            assert "✓ in time" in text(stage.app)


class Waiting(Shop):
    """A relay that has just stalled."""

    def status(self, now: float) -> Status:
        """Return the status at a moment."""
        verdict = RelayVerdict(
            "stalled", "Kafka has acknowledged nothing for 4.0 s", "kafka", stage="acknowledge"
        )
        return replace(super().status(now), state="stalled", verdict=verdict)


@pytest.mark.parametrize("size", SIZES)
async def test_a_relay_that_stands_still_is_not_in_time(size: tuple[int, int]) -> None:
    stage = Stage(Waiting())
    async with stage.run(size):
        shown = text(stage.app)
        assert "✗ STALLED" in shown
        assert "✓ in time" not in "\n".join(shown.splitlines()[:18])
        assert "▲ no progress" in shown


@pytest.mark.parametrize("size", SIZES[2:])
async def test_nobody_is_said_to_be_asked_by_a_relay_that_does_not_run(size: tuple[int, int]) -> None:
    stage = Stage()
    async with stage.run(size):
        stage.relay.gone = True
        stage.app.model.live = replace(stage.app.model.live, views={})
        await stage.advance(3)
        shown = text(stage.app)
        assert shown.count("not queried: the relay does not run") == 2
        assert "the relay is querying" not in shown
