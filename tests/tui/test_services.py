"""The screens of the services: slots, consumers, the log, settings; and their messages in trouble."""

from dataclasses import replace

import pytest

from bwtui.model.service_views import Consumers, Slots
from bwtui.tui.widgets.grid import ItemList
from tests.tui import services
from tests.tui.doubles import Stage
from tests.tui.picture import text
from tests.tui.recorded import RecordedStage

SIZES = ((80, 24), (160, 45), (250, 70))
KEYS = {"slots": "6", "consumers": "7", "log": "8", "settings": "9"}


def rows(stage: Stage, name: str) -> list[str]:
    """Return the keys of a list's rows, in order."""
    return [row.key for row in stage.app.screen.query_one(f"#{name}", ItemList).rows]


async def shown(stage: Stage, key: str) -> str:
    """Go to a screen, and return its text once the service has answered."""
    await stage.press(key)
    await stage.advance(2)
    return text(stage.app)


@pytest.mark.parametrize("size", SIZES)
async def test_every_screen_answers_its_question_in_every_size(size: tuple[int, int]) -> None:
    stage = Stage()
    async with stage.run(size):
        slots = await shown(stage, "6")
        assert "Slot reporting_2024 retains the most: 37.0 GB (" in " ".join(slots.split())
        for word in ("reporting_2024", "unused 3 d 0 h", "extended", "pid 5120", "31 m 00 s", "standby_b"):
            assert word in slots
        consumers = await shown(stage, "7")
        assert "reporting has the largest lag: ≥ 47.4k messages, 1 h 30 m" in " ".join(consumers.split())
        for word in ("not running", "in time", "caught up", "never", "41000"):
            assert word in consumers
        log = await shown(stage, "8")
        for word in ("HTTP 409", "under way", "212", "2 failed"):
            assert word in log
        settings = await shown(stage, "9")
        for word in ("BWTUI_POSTGRES", "command line", "default", "cdc:***@db", "5 of "):
            assert word in settings
        assert "hunter2" not in settings


async def test_a_relay_is_asked_only_for_what_is_looked_at() -> None:
    stage = Stage()
    async with stage.run():
        await stage.advance(5)
        assert stage.relay.asked_looks == []
        await shown(stage, "6")
        assert set(stage.relay.asked_looks) == {"slots"}
        await shown(stage, "1")
        before = len(stage.relay.asked_looks)
        await stage.advance(5)
        assert len(stage.relay.asked_looks) == before
        # The settings of an engine do not change, so they are requested once.
        await shown(stage, "9")
        await stage.advance(5)
        assert stage.relay.asked_looks.count("configuration") == 1


async def test_lists_are_sorted_and_filtered_where_the_focus_is() -> None:
    stage = Stage()
    async with stage.run((160, 45)):
        await shown(stage, "6")
        assert rows(stage, "slots")[:2] == ["trial", "reporting_2024"]
        await stage.press("tab", "tab")
        await stage.press("slash", *"catchup", "enter")
        assert rows(stage, "standbys") == ["standby_b 10.0.0.8 None"]
        assert len(rows(stage, "slots")) == 4
        await stage.press("escape", "shift+tab", "shift+tab", "exclamation_mark")
        assert rows(stage, "slots") == ["trial", "reporting_2024"]
        assert len(rows(stage, "standbys")) == 2


async def test_a_group_shows_its_partitions() -> None:
    stage = Stage()
    async with stage.run():
        await shown(stage, "7")
        assert rows(stage, "groups") == ["reporting", "search-indexer", "mailer"]
        assert rows(stage, "partitions")[0] == "public.orders[2]"
        await stage.press("down")
        assert rows(stage, "partitions") == ["public.order_items[0]"]
        await stage.press("enter")
        assert stage.app.focused is stage.app.screen.query_one("#partitions")


async def test_what_is_missing_old_or_refused_is_said() -> None:
    stage = Stage()
    async with stage.run((160, 45)):
        stage.relay.views["slots"] = Slots()
        assert "the relay is querying PostgreSQL…" in await shown(stage, "6")
        note = 'PostgreSQL does not tell this role all: GRANT pg_read_all_stats TO "cdc";'
        masked = services.slots(stage.clock.now)
        holders = (replace(masked.holders[0], since=None, state=""),)
        stage.relay.views["slots"] = replace(masked, notes=(note,), holders=holders)
        seen = await shown(stage, "6")
        assert note in seen
        assert "unknown" in seen
        await stage.advance(30)
        assert "PostgreSQL has not answered for 3" in text(stage.app)
        stage.relay.views["consumers"] = Consumers(stage.clock.now, "can't reach Kafka at b:9092: timed out")
        assert "✗ can't reach Kafka at b:9092: timed out" in await shown(stage, "7")
        # The log and the settings are the relay's own, and need no service.
        await stage.advance(60)
        assert "has not answered" not in await shown(stage, "9")


@pytest.mark.parametrize("mode", KEYS)
async def test_a_recording_says_why_it_has_no_such_screen(mode: str) -> None:
    stage = RecordedStage()
    async with stage.run():
        await stage.press(KEYS[mode])
        assert [told.strip().startswith("A recording ") for told in stage.told] == [True]
        assert "'bwtui " in stage.told[0]
        assert stage.app.current_mode == "overview"
