"""The screens: states, the tail, a relay that goes away, ways to leave, mouse, sizes."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from bwtui.model.gaps import with_gaps
from bwtui.model.status import LAG_IS_OLD, ErrorEntry, State, Status
from bwtui.model.verdict import RelayVerdict, ended, suspended
from bwtui.relay.process import outcome
from bwtui.relay.process.control import RelayUnresponsive
from bwtui.relay.process.outcome import RunOutcome
from bwtui.state_folder import state_folder
from bwtui.tui.base import keys
from bwtui.tui.screens.changes import TableScreen
from bwtui.tui.screens.dialogs import LeaveScreen
from bwtui.tui.sources.model import ViewSettings
from bwtui.tui.widgets.changes import ChangeDetail, ChangeList
from bwtui.tui.widgets.grid import ItemList
from tests.tui.doubles import Stage
from tests.tui.picture import lines, text
from tests.tui.shop import NOON, TABLES, Shop

SIZES = [(80, 24), (200, 60)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("mode", ["overview", "changes", "registry", "errors"])
async def test_every_screen_fits(mode: str, size: tuple[int, int]) -> None:
    stage = Stage(Shop(trouble=True))
    async with stage.run(size):
        await stage.show(mode)
        shown = lines(stage.app)
        assert len(shown) == size[1]
        assert "STREAMING" in shown[0]
        assert "Quit" in shown[-1]
        panels = [
            p for p in stage.app.screen.query(".panel") if all(node.display for node in p.ancestors_with_self)
        ]
        assert all(p.outer_size.height >= 6 for p in panels)


async def test_the_pipeline_goes_from_slot_to_topic() -> None:
    stage = Stage()
    async with stage.run((200, 60)):
        shown = text(stage.app)
        for word in ("PostgreSQL", "read", "decode", "encode", "produce", "acknowledge", "Kafka"):
            assert word in shown
        for word in (
            "bottledwater",
            "✓ reserved",
            "confirmed LSN",
            "server LSN",
            "retained",
            "✓ in time",
            "cpu",
        ):
            assert word in shown


class Lacking(Shop):
    """A shop with two tables that are in no publication."""

    def status(self, now: float) -> Status:
        return with_gaps(replace(super().status(now), detail="", not_captured=("public.[b]", "public.c")))


@pytest.mark.parametrize("mode", ["overview", "changes", "registry", "errors"])
async def test_a_table_that_is_not_captured_is_told_on_every_screen(mode: str) -> None:
    stage = Stage(Lacking())
    async with stage.run((120, 30)):
        await stage.show(mode)
        told = " ".join(" ".join(lines(stage.app)[:4]).split())
        assert (
            "✗ public.[b], public.c are not captured: their changes, deletes included, are not sent" in told
        )
        assert "→ run 'bwtui doctor --relay " in told


class Silent(Shop):
    """A shop whose server has not reported on the slot for a while."""

    def status(self, now: float) -> Status:
        return replace(super().status(now), detail=f"{LAG_IS_OLD} 12:00:00: the lag shown is that old")


@pytest.mark.parametrize("state", ["streaming", "snapshot"])
async def test_a_lag_that_is_old_is_told_below_the_sentence(state: State) -> None:
    stage = Stage(Silent(state=state))
    async with stage.run((120, 30)):
        assert f"▲ {LAG_IS_OLD} 12:00:00: the lag shown is that old" in text(stage.app)


async def test_the_slow_stage_says_so_and_only_while_it_is() -> None:
    stage = Stage(Shop(slow="encode"))
    async with stage.run((80, 24)):
        assert "▲ SLOW" in text(stage.app)
        assert stage.app.screen.query_one("#stage-encode").has_class("-slow")
        assert "▲ lagging" in text(stage.app)
        stage.relay.shop.slow = None
        await stage.advance(1)
        assert "SLOW" not in text(stage.app)
        assert "✓ in time" in text(stage.app)


async def test_a_snapshot_shows_its_progress() -> None:
    stage = Stage(Shop(state="snapshot", start=NOON + 40))
    async with stage.run((80, 24)):
        shown = text(stage.app)
        assert "✓ SNAPSHOT" in shown
        assert "✓ 120k rows" in shown, "customers are done"
        assert "86%" in shown or "90%" in shown, "products are nearly done"
        assert "tables done 1 of 6" in shown


async def test_unimportant_columns_fold_away() -> None:
    stage = Stage()
    async with stage.run((80, 24)):
        columns = stage.app.screen.query_one(ItemList).shown_columns
        assert {"table", "wal", "share", "rate", "trend", "p99", "errors", "dead"} <= set(columns)
        assert "topic" not in columns
    stage = Stage()
    async with stage.run((200, 60)):
        assert len(stage.app.screen.query_one(ItemList).shown_columns) == 19


async def test_the_filter_narrows_while_typing_and_says_so() -> None:
    stage = Stage()
    async with stage.run((80, 24)):
        await stage.press("slash", *"order")
        assert len(stage.app.screen.query_one(ItemList).rows) == 2
        await stage.press("enter")
        assert "/order · 2 of 6 tables" in text(stage.app)
        await stage.press("slash", "home", "exclamation_mark")
        assert len(stage.app.screen.query_one(ItemList).rows) == 4
        await stage.press("escape")
        assert len(stage.app.screen.query_one(ItemList).rows) == 6


async def test_a_filter_that_is_no_regex_says_how_it_is_understood() -> None:
    stage = Stage()
    async with stage.run((120, 30)):
        await stage.press("slash", *"p.d(s")
        assert "letters in order" in text(stage.app)
        await stage.press("enter")
        assert "0 of 6 tables" in text(stage.app)
        assert "no tables match" in text(stage.app)


async def test_the_cursor_stays_on_its_table_when_the_order_changes() -> None:
    stage = Stage()
    async with stage.run():
        grid = stage.app.screen.query_one(ItemList)
        grid.move_to_key("public.orders")
        for _ in range(3):
            await stage.press("s")
            await stage.advance(5)
            assert grid.cursor_key == "public.orders"


async def test_scrolling_leaves_the_tail_and_end_follows_again() -> None:
    stage = Stage()
    async with stage.run((80, 24)):
        await stage.show("changes")
        changes = stage.app.screen.query_one(ChangeList)
        await stage.advance(5)
        newest = changes.cursor_key
        await stage.press("up")
        selected = changes.cursor_key
        await stage.advance(3)
        assert changes.cursor_key == selected != newest
        assert "+30 new" in str(changes.border_subtitle)
        await stage.press("end")
        assert changes.border_subtitle == "following"
        assert int(changes.cursor_key or 0) == int(newest or 0) + 30
        changes.on_mouse_scroll_up()
        await stage.advance(2)
        assert "+20 new" in str(changes.border_subtitle)


@pytest.mark.parametrize("key", ["end", "G"])
async def test_end_follows_from_within_a_change_too(key: str) -> None:
    stage = Stage()
    async with stage.run((80, 24)):
        await stage.show("changes")
        changes = stage.app.screen.query_one(ChangeList)
        await stage.press("up", "enter")
        assert stage.app.focused is stage.app.screen.query_one(ChangeDetail)
        await stage.advance(2)
        assert "End follows" in str(changes.border_subtitle)
        await stage.press(key)
        assert changes.border_subtitle == "following"
        assert stage.app.focused is changes


async def test_escape_goes_back_from_a_change_to_the_list() -> None:
    stage = Stage()
    async with stage.run((80, 24)):
        await stage.show("changes")
        changes = stage.app.screen.query_one(ChangeList)
        await stage.press("up", "enter", "escape")
        assert stage.app.focused is changes
        assert not changes.following, "the place stays"


async def test_errors_only_in_changes_says_why_there_is_nothing() -> None:
    stage = Stage()
    async with stage.run((120, 30)):
        await stage.show("changes")
        await stage.press("exclamation_mark")
        assert "no sampled changes of tables with errors" in text(stage.app)
        assert "no changes yet" not in text(stage.app)
        await stage.press("exclamation_mark", "slash", *"zzz", "enter")
        assert "no sampled changes match" in text(stage.app)


async def test_a_filter_keeps_the_selection_and_gives_it_back() -> None:
    stage = Stage()
    async with stage.run((120, 30)):
        await stage.show("changes")
        changes = stage.app.screen.query_one(ChangeList)
        await stage.press("up", "up", "up")
        chosen = changes.cursor_key
        table = changes.selected().table  # type: ignore[union-attr]
        await stage.press("slash", *table)
        assert changes.cursor_key == chosen, "it still passes"
        await stage.press("escape", "slash", "exclamation_mark", *table)
        assert changes.cursor_key != chosen
        assert abs(int(changes.cursor_key or 0) - int(chosen or 0)) < 5, "the nearest one that passes"
        await stage.press("escape")
        assert changes.cursor_key == chosen
        await stage.show("overview")
        listing = stage.app.screen.query_one(ItemList)
        listing.move_to_key("public.orders")
        await stage.press("slash", *"stock")
        assert listing.cursor_key == "warehouse.stock"
        await stage.press("escape")
        assert listing.cursor_key == "public.orders"


async def test_the_sort_mark_takes_no_letter_away() -> None:
    stage = Stage()
    async with stage.run((200, 60)):
        grid = stage.app.screen.query_one(ItemList)
        for column in grid.sortable:
            grid.sort_by(column)
            await stage.settle()
            title = next(c.title for c in grid.columns if c.key == column)
            assert any(f"{title}{mark}" in text(stage.app) for mark in "↑↓"), column


async def test_a_change_is_shown_field_by_field_with_marks() -> None:
    stage = Stage()
    async with stage.run((120, 40)):
        await stage.show("changes")
        changes = stage.app.screen.query_one(ChangeList)
        for row in changes.rows:
            if row.cells[1].text == "~ update" and row.cells[2].text == "public.products":
                changes.move_to_key(row.key)
        await stage.settle()
        shown = text(stage.app)
        assert "Before" in shown
        assert "~  title" in shown or "~  price" in shown
        assert "changed" in shown
        assert "unchanged, not sent (TOAST)" in shown


async def test_null_and_empty_and_unknown_look_different() -> None:
    stage = Stage()
    async with stage.run((120, 40)):
        await stage.show("changes")
        changes = stage.app.screen.query_one(ChangeList)
        shown = set()
        for row in changes.rows[-60:]:
            changes.move_to_key(row.key)
            await stage.settle()
            shown |= {w for w in ("NULL", "unknown before") if w in text(stage.app)}
        assert shown == {"NULL", "unknown before"}


async def test_a_table_shows_everything_about_itself() -> None:
    stage = Stage(Shop(trouble=True))
    async with stage.run((120, 40)):
        stage.app.push_screen(TableScreen(stage.app, "warehouse.stock"))
        await stage.settle()
        await stage.advance(3)
        shown = text(stage.app)
        for word in (
            "Overview › warehouse.stock",
            "product_id, bin",
            "type box is sent as text",
            "dead letters",
        ):
            assert word in shown
        assert "warehouse.stock-key · id 11 version 1" in shown
        assert {c.table for c in stage.app.screen.query_one(ChangeList)._listed.values()} == {
            "warehouse.stock"
        }


async def test_a_table_shows_what_became_of_its_unchanged_large_values() -> None:
    stage = Stage(Shop(trouble=True))
    async with stage.run((120, 40)):
        stage.app.push_screen(TableScreen(stage.app, "public.products"))
        await stage.settle()
        await stage.advance(3)
        shown = text(stage.app)
        assert "large values  1,204 fetched by key" in shown
        assert "3 sent as placeholder" in shown
        assert "2 skipped: row deleted" in shown
        stage.app.push_screen(TableScreen(stage.app, "public.orders"))
        await stage.settle()
        await stage.advance(3)
        assert "fetched by key" not in text(stage.app), "a table without any has no such line"


async def test_a_relay_that_goes_away_is_shown_as_gone_and_comes_back() -> None:
    stage = Stage(Shop(trouble=True))
    async with stage.run((80, 24)):
        stage.relay.gone = True
        await stage.advance(12)
        shown = text(stage.app)
        assert "✗ GONE" in shown
        assert "figures are 12 s old" in shown
        assert "the relay ended without reporting a reason" in shown
        assert "larger than the broker takes" not in shown, "nobody knows that it ended on the last error"
        assert stage.app.screen.has_class("-stale")
        stage.relay.gone = False
        await stage.advance(1)
        assert "✓ STREAMING" in text(stage.app)
        assert not stage.app.screen.has_class("-stale")


@pytest.mark.parametrize("mode", ["overview", "changes", "registry", "errors"])
async def test_a_failed_relay_tells_why_on_every_screen(mode: str) -> None:
    stage = Stage(Shop(state="failed", trouble=True))
    stage.relay.shop.exit_code = 5
    async with stage.run((80, 24)):
        await stage.show(mode)
        stage.relay.gone = True
        await stage.advance(1)
        shown = text(stage.app)
        assert "✗ FAILED" in shown
        assert "✗ the broker refuses the messages · exit code 5" in " ".join(shown.split())
        assert "→ see the broker's log" in shown


async def test_a_relay_that_ended_tells_on_what_it_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The outcome says so, and the screens' last request was before it."""
    monkeypatch.setenv("BWTUI_STATE_HOME", str(tmp_path))
    state_folder("shop").mkdir(parents=True)
    stage = Stage()
    async with stage.run((120, 30)):
        await stage.show("errors")
        shown = stage.app.model.live.status
        assert shown is not None
        error = ErrorEntry(stage.clock.now, "fatal", None, "the registry refuses orders-value", "undo it")
        verdict = ended(error.message, error.hint)
        last = replace(shown, state="failed", verdict=verdict, errors=(error,), exit_code=2)
        outcome.write("shop", RunOutcome(2, stage.clock.now, error.message, error.hint, last))
        stage.relay.gone = True
        await stage.advance(1)
        told = text(stage.app)
        assert "✗ FAILED" in told
        assert told.count("the registry refuses orders-value") == 3, "the header, the list, and its detail"
        assert told.count("→ undo it") == 2


async def test_a_clean_stop_is_none_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BWTUI_STATE_HOME", str(tmp_path))
    state_folder("shop").mkdir(parents=True)
    stage = Stage()
    async with stage.run((120, 30)):
        shown = stage.app.model.live.status
        assert shown is not None
        last = replace(shown, state="stopped", verdict=ended(None, None, confirmed="0/1A"), exit_code=0)
        outcome.write("shop", RunOutcome(0, stage.clock.now, None, None, last))
        stage.relay.gone = True
        await stage.advance(1)
        told = text(stage.app)
        assert "■ stopped cleanly; everything up to 0/1A is confirmed" in told
        assert "STOPPED" in told
        assert "GONE" not in told


async def test_a_relay_that_is_suspended_is_silent_and_not_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage()
    silence = suspended("shop", 4711, 7.0, is_stopped=True)

    async def silent() -> Status:
        raise RelayUnresponsive(silence.sentence, silence.hint)

    async with stage.run((120, 30)):
        monkeypatch.setattr(stage.relay, "status", silent)
        await stage.advance(1)
        first, second, third, *_ = lines(stage.app)
        assert "✗ NO ANSWER" in first
        told = " ".join(f"{second} {third}".split())
        assert "relay shop is running but does not respond: its process 4711 is suspended" in told
        assert told.endswith("→ resume it with 'kill -CONT 4711'")


class Stalled(Shop):
    """A relay that waits for Kafka, and waited for the registry before."""

    def status(self, now: float) -> Status:
        """Return the status at a moment."""
        says = "Kafka at k:9092 has acknowledged nothing for 4.0 s; the slot is safe for ≈ 2 h 05 m"
        verdict = RelayVerdict("stalled", says, "kafka", stage="acknowledge", hint="see to the brokers")
        over = ErrorEntry(now - 9, "outage", None, "the registry was away", "wait", 1, now - 30, now - 8, "r")
        return replace(super().status(now), state="stalled", verdict=verdict, errors=(over,))


@pytest.mark.parametrize("size", [(80, 24), (160, 45)])
async def test_a_stall_names_its_cause_first_and_marks_its_stage(size: tuple[int, int]) -> None:
    stage = Stage(Stalled())
    async with stage.run(size):
        first, second, third, *_ = lines(stage.app)
        assert "✗ STALLED" in first
        assert "✗ Kafka at k:9092 has acknowledged nothing for 4.0 s" in second
        assert third == " the slot is safe for ≈ 2 h 05 m → see to the brokers"
        assert stage.app.screen.query_one("#stage-acknowledge").has_class("-slow")
        assert re.search(r"4(Err| Errors) ", first), "what has recovered calls for nobody"
        assert not re.search(r"4(Err·| Errors )1", first)
        await stage.show("errors")
        told = text(stage.app)
        assert "the registry was away" in told
        assert re.search(r"outage  resolved, \d\d:\d\d:\d\d to \d\d:\d\d:\d\d \(22 s\)  once", told), told


async def test_an_engine_that_hangs_looks_stale() -> None:
    stage = Stage()
    async with stage.run((80, 24)):
        stage.relay.frozen_at = stage.clock.now
        await stage.advance(7)
        assert "NO ANSWER" in text(stage.app)
        assert "figures are 7.0 s old" in text(stage.app)


async def test_no_relay_at_all_says_what_to_do() -> None:
    stage = Stage()
    stage.relay.gone = True
    async with stage.run((80, 24)):
        shown = text(stage.app)
        assert "no relay called shop is running" in shown
        assert "bwtui connect" in shown


@pytest.mark.parametrize("owned", [True, False])
async def test_leaving_offers_to_stop_or_to_detach(owned: bool) -> None:
    stage = Stage(session=ViewSettings(owned=owned))
    async with stage.run((80, 24)) as pilot:
        await stage.press("q")
        shown = text(stage.app)
        assert "Stop the relay" in shown
        assert "Detach" in shown
        focused = stage.app.focused
        assert focused is not None
        assert focused.id == ("stop" if owned else "detach")
        await stage.press("escape")
        assert not isinstance(stage.app.screen, LeaveScreen)
        await pilot.press("q", "d")
    assert stage.app.return_value == "detach"
    assert stage.relay.stops == 0


async def test_stopping_waits_for_the_relay_to_end() -> None:
    stage = Stage(session=ViewSettings(owned=True))
    async with stage.run((80, 24)) as pilot:
        await stage.press("q", "s")
        assert stage.relay.stops == 1
        await stage.advance(1)
        assert "stopping" in text(stage.app)
        assert stage.app.is_running
        stage.relay.gone = True
        stage.clock.now += 1
        await stage.app.sample()
        await pilot.pause()
    assert stage.app.return_value == "stop"


async def test_the_mouse_switches_screens_sorts_selects_and_opens() -> None:
    stage = Stage()
    async with stage.run((120, 30)) as pilot:
        grid = stage.app.screen.query_one(ItemList)
        top = grid.content_region
        await pilot.click(offset=(top.x + 5, top.y + 3))
        await stage.settle()
        assert grid.cursor_row == 2
        rate = lines(stage.app)[top.y].index("Rows/s")
        await pilot.click(offset=(rate, top.y))
        await stage.settle()
        assert grid.sort_column == "rate"
        await pilot.click(offset=(top.x + 5, top.y + 1), times=2)
        await stage.settle()
        assert isinstance(stage.app.screen, TableScreen)
        tab = lines(stage.app)[0].index("3Reg")
        await pilot.click(offset=(tab, 0))
        await stage.settle()
        assert stage.app.current_mode == "registry"
        top = stage.app.screen.query_one(ItemList).content_region
        await pilot.click(offset=(top.x + 5, top.y + 4))
        await stage.settle()
        assert '"name": "order_items_key"' in text(stage.app)


async def test_changes_are_sampled_on_while_another_screen_is_shown() -> None:
    stage = Stage()
    async with stage.run():
        await stage.show("changes")
        await stage.show("overview")
        before = stage.relay.asked_changes
        # The engine keeps the changes of the last fifty seconds.
        await stage.advance(90)
        assert 10 <= stage.relay.asked_changes - before <= 50, "less often than on their own screen"
        await stage.show("changes")
        numbers = [int(row.key) for row in stage.app.screen.query_one(ChangeList).rows]
        assert len(numbers) > 900
        assert numbers == list(range(numbers[0], numbers[-1] + 1))


async def test_changes_say_following_only_while_they_do() -> None:
    stage = Stage()
    async with stage.run():
        await stage.show("changes")
        assert " following " in text(stage.app)
        await stage.press("space")
        assert " following " not in text(stage.app)
        assert "paused, Space resumes" in text(stage.app)
        await stage.press("space")
        assert " following " in text(stage.app)
        stage.relay.gone = True
        await stage.advance(1)
        assert " following " not in text(stage.app)
        assert "no answer from the relay" in str(stage.app.screen.query_one(ChangeList).border_subtitle)


async def test_nothing_grows_without_bound() -> None:
    stage = Stage()
    async with stage.run():
        await stage.show("changes")
        for _ in range(50):
            stage.clock.now += 100
            await stage.app.sample()
        await stage.settle()
        assert len(stage.app.screen.query_one(ChangeList).rows) <= 2000


async def test_a_table_that_is_unknown_to_a_new_engine_is_no_crash() -> None:
    stage = Stage()
    async with stage.run():
        stage.app.push_screen(TableScreen(stage.app, "public.gone"))
        await stage.settle()
        await stage.advance(1)
        assert "does not list this table" in text(stage.app)
        assert stage.app.screen.query_one(ChangeDetail).display


async def test_an_idle_sample_paints_nothing_in_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage()
    async with stage.run():
        grid = stage.app.screen.query_one(ItemList)
        painted: list[object] = []
        monkeypatch.setattr(grid, "refresh", lambda *regions, **_: painted.extend(regions or ["all"]))
        await stage.app.sample()
        assert painted == []
        stage.clock.now += 0.5
        await stage.app.sample()
        assert painted
        assert "all" not in painted, "only cells that changed"


def test_the_docs_name_the_same_keys() -> None:
    from pathlib import Path

    path = Path(__file__).parents[2] / "docs" / "keys.md"
    assert path.read_text() == keys.docs_table(), "run docs/screenshots/make.py"


def test_the_shop_is_a_status_that_survives_the_socket() -> None:
    status = Shop(trouble=True).status(NOON + 60)
    assert Status.from_json(status.to_json()) == status
    assert set(status.tables) == set(TABLES)
