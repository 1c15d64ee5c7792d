"""The journey of a key of a running relay: sampled changes, Kafka's records, and the unknown parts."""

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest
from textual.app import App

from bwtui.kafka.key_reader import StoredRecord
from bwtui.model.service_views import StageEntry, Stages
from bwtui.model.status import ChangeSample, FieldChange
from bwtui.recording.explain import RowKey
from bwtui.tui.audit.session import RelayAuditSession
from bwtui.tui.screens.journey import LiveJourney
from bwtui.tui.sources.journey import Point
from bwtui.tui.widgets.grid import ItemList
from bwtui.tui.widgets.journey import KeyBar, Lifeline
from tests.tui.doubles import Stage
from tests.tui.picture import text
from tests.tui.pictured import compare
from tests.tui.shop import NOON, Shop
from tests.tui.test_journey import KeyedKafka

ORDER = RowKey("public.orders", ("id",), (b"7",))


def change(number: int, operation: str, status: str, **more: object) -> ChangeSample:
    """Return a change of order 7, whose batch took 3, 1, 0.5 and 4 ms."""
    at = NOON + 40 + number
    fields: tuple[FieldChange, ...] = (
        FieldChange("id", None, "7", "new"),
        FieldChange("status", None, status, "new"),
    )
    if operation == "update":
        fields = (FieldChange("id", "7", "7", "same"), FieldChange("status", "new", status, "changed"))
    passed = (at + 0.003, at + 0.004, at + 0.0045, at + 0.0085)
    made = ChangeSample(
        number, at, at, f"0/{number:X}", 700 + number, operation, "public.orders", "orders", "id=7", fields,
        number, 5, 6, json.dumps({"id": "7"}).encode().hex(), passed, 12,
    )  # fmt: skip
    return replace(made, **more)  # type: ignore[arg-type]


class Orders(Shop):
    """A shop in which only these changes are sampled."""

    sampled: tuple[ChangeSample, ...] = ()

    def changes(self, now: float, after: int) -> list[ChangeSample]:
        return [one for one in self.sampled if one.sequence > after and one.time <= now]


class LiveStage(Stage):
    """The screens of a relay, and a Kafka with its messages."""

    def __init__(self, *sampled: ChangeSample) -> None:
        shop = Orders()
        shop.sampled = sampled or (change(1, "insert", "new"), change(2, "update", "paid"))
        super().__init__(shop)
        self.keyed = KeyedKafka(None)
        for number, one in enumerate(shop.sampled):
            row = {field.name: field.after for field in one.fields}
            stamp = round(one.commit_time * 1000)
            key = json.dumps({"id": "7"}).encode()
            self.keyed.records["orders", 0, number] = StoredRecord(
                0, number, stamp, key, json.dumps(row).encode()
            )
        self.app.audit = RelayAuditSession("shop", lambda: self.keyed)

    async def journey(self, *keys: str) -> LiveJourney:
        """Open the journey of the newest change."""
        await self.press("2", *keys, "x")
        await self.advance(2)
        assert isinstance(self.app.screen, LiveJourney)
        return self.app.screen


async def test_every_stage_has_its_milliseconds() -> None:
    stage = LiveStage()
    async with stage.run((160, 45)):
        screen = await stage.journey()
        shown = text(stage.app)
        for word in (
            "COMMIT",
            "received",
            "encoded",
            "produced",
            "acknowledged",
            "+3.00 ms",
            "8.50 ms in total",
        ):
            assert word in shown
        assert "times of its batch of 12 messages" in " ".join(shown.split())
        assert "2 sampled changes · 2 records in Kafka as of 12:01:02" in shown
        assert "0@1 as of 12:01:02: JSON is shown, but not compared" in shown
        assert "this one; 2 records of the key" in shown
        assert "LSN 0/2, xid 702, change 2 of it" in shown
        assert len(screen.points()) == 2
        assert stage.relay.asked_looks[-1] == "stages"


async def test_what_the_relay_notes_later_is_shown() -> None:
    at = change(2, "update", "paid").passed
    stage = LiveStage(change(1, "insert", "new"), change(2, "update", "paid", passed=(*at[:3], 0.0)))
    async with stage.run((160, 45)):
        await stage.journey()
        assert "it is under way: its batch of 12 messages is not acknowledged yet" in " ".join(
            text(stage.app).split()
        )
        stage.relay.views["stages"] = Stages(1.0, changes=(StageEntry(2, at, 12, False, 0, 1),))
        await stage.advance(2)
        assert "8.50 ms in total" in text(stage.app)


async def test_a_record_that_was_not_sampled_says_so() -> None:
    stage = LiveStage()
    async with stage.run((160, 45)):
        stage.keyed.records["orders", 0, 9] = StoredRecord(
            0, 9, round((NOON + 90) * 1000), b'{"id": "7"}', None
        )
        await stage.journey()
        await stage.press("end")
        shown = " ".join(text(stage.app).split())
        assert "not sampled" in shown
        assert "not among the sampled changes" in shown
        assert "--record DIR" in shown
        assert "unknown: the record has no bwtui headers (--headers)" in shown


async def test_a_frozen_kafka_and_one_that_is_away() -> None:
    stage = LiveStage()
    stage.keyed.answers.clear()
    async with stage.run((160, 45)):
        await stage.press("2")
        await stage.pilot.press("x")
        while "of_key" not in stage.keyed.asked:
            await stage.pilot.pause(0.02)
        stage.clock.now += 1
        await stage.app.sample()
        await stage.pilot.pause()
        shown = text(stage.app)
        assert "querying Kafka at kafka:9092…" in shown
        assert "8.50 ms in total" in shown
        stage.keyed.answers.set()
        await stage.settle()
        assert "2 records in Kafka" in text(stage.app)


async def test_a_key_without_samples_is_looked_for_by_its_text() -> None:
    stage = LiveStage()
    async with stage.run((160, 45)):
        stage.keyed.records["orders", 0, 9] = StoredRecord(
            0, 9, 0, b'{"id": "8"}', b'{"id": "8", "status": "new"}'
        )
        stage.app.push_screen(LiveJourney(stage.app, replace(ORDER, values=(b"8",))))
        await stage.advance(1)
        assert [row.key for row in stage.app.screen.main_grid().rows] == ["record 0@9"]  # type: ignore[attr-defined]
        other = LiveJourney(stage.app, replace(ORDER, values=(b"9",)))
        assert other.why_nothing() == "no change of this key was sampled, and Kafka has not been queried yet"
        stage.app.push_screen(other)
        await stage.advance(1)
        assert "no change of this key was sampled, and no record of it was found" in text(stage.app)


async def test_a_changed_key_is_followed() -> None:
    fields = (FieldChange("id", "6", "7", "changed"), FieldChange("status", "a", "a", "same"))
    stage = LiveStage(change(1, "update", "paid", fields=fields))
    async with stage.run((160, 45)):
        await stage.journey()
        assert "had a different key before" in text(stage.app)
        await stage.press("x")
        assert isinstance(stage.app.screen, LiveJourney)
        assert stage.app.screen.key.values == (b"6",)


async def test_the_key_that_a_row_had_has_its_tombstone_and_not_the_row_s_place() -> None:
    fields = (FieldChange("id", "7", "8", "changed"), FieldChange("status", "a", "a", "same"))
    moved = change(1, "update", "paid", fields=fields, partition=0, offset=40)
    stage = LiveStage(moved)
    stage.keyed.records = {
        ("orders", 0, 5): StoredRecord(0, 5, round(moved.commit_time * 1000), b'{"id": "7"}', None)
    }
    async with stage.run((250, 70)):
        await stage.journey()
        await stage.press("x")
        assert isinstance(stage.app.screen, LiveJourney)
        assert stage.app.screen.key == ORDER
        shown = " ".join(text(stage.app).split())
        assert "✓ 0@5 as of 12:01:04: a tombstone, because the row's key changed" in shown
        assert "0@40" not in shown
        stage.keyed.records.clear()
        await stage.press("x", "x")
        assert stage.app.screen.key == ORDER
        chosen = stage.app.screen.chosen()
        assert chosen is not None and "opening this journey again" in chosen.unplaced


async def test_headers_of_others_end_no_screen() -> None:
    stage = LiveStage()
    async with stage.run((160, 45)):
        headers = tuple((f"bwtui.{name}", b"\xff" * 4_000) for name in ("lsn", "ordinal", "xid"))
        at = round((NOON + 90) * 1000)
        stage.keyed.records["orders", 0, 9] = StoredRecord(0, 9, at, b'{"id": "7"}', None, headers)
        await stage.journey()
        await stage.press("end")
        assert "unknown: the record has no bwtui headers (--headers)" in " ".join(text(stage.app).split())


async def test_what_has_no_key_says_so() -> None:
    stage = LiveStage(change(1, "insert", "new", table="public.audit"))
    async with stage.run((80, 24)):
        for keys, words in ((("x",), "No change is selected"), (("2", "x"), "has no key")):
            await stage.press(*keys)
            assert any(words in notice.message for notice in stage.app._notifications)
        assert not isinstance(stage.app.screen, LiveJourney)


@pytest.mark.parametrize("size", [(80, 24), (160, 45), (250, 70)])
async def test_snapshot(size: tuple[int, int]) -> None:
    stage = LiveStage()
    async with stage.run(size):
        await stage.journey()
        await compare(stage, f"live-journey-{size[0]}x{size[1]}")


async def test_a_relay_says_why_it_can_t_send_again() -> None:
    stage = LiveStage()
    async with stage.run((160, 45)):
        await stage.journey()
        await stage.press("R")
        told = [notice.message for notice in stage.app._notifications]
        assert any("A relay sends each change once" in one and "--record DIR" in one for one in told)


async def test_a_key_is_typed_on_the_overview() -> None:
    stage = LiveStage()
    async with stage.run((160, 45)):
        await stage.press("slash", *"orders id=7")
        assert "Enter: the journey of public.orders id=7" in text(stage.app)
        assert len(stage.app.screen.query_one(ItemList).rows) == 6, "tables are all there"
        await stage.press("enter")
        await stage.advance(1)
        assert isinstance(stage.app.screen, LiveJourney)
        assert stage.app.screen.key == ORDER
        assert "8.50 ms in total" in text(stage.app)
        await stage.press("escape")
        assert stage.app.current_mode == "overview"
        assert not stage.app.screen.query_one(KeyBar).display


async def test_a_plain_value_is_a_key_of_the_selected_table_and_a_filter_stays_one() -> None:
    stage = LiveStage()
    async with stage.run((160, 45)):
        grid = stage.app.screen.query_one(ItemList)
        grid.move_to_key("public.orders")
        await stage.press("slash", *"ord")
        assert {row.key for row in grid.rows} == {"public.orders", "public.order_items"}
        await stage.press("enter")
        assert not isinstance(stage.app.screen, LiveJourney)
        await stage.press("escape")
        grid.move_to_key("public.orders")
        await stage.press("slash", *"7")
        assert "Enter: the journey of public.orders id=7" in text(stage.app)
        await stage.press("backspace", *"audit id=1")
        assert "id is not a key column of public.audit" in text(stage.app)
        await stage.press("enter")
        assert stage.app.screen.query_one(KeyBar).display, "it can be mended"


class _LifelineApp(App[None]):
    def compose(self) -> Iterator[Lifeline]:
        yield Lifeline()


async def test_a_change_in_the_middle_gets_its_own_mark_later() -> None:
    """A record of Kafka may gain its sampled change, and an audit may report a wrong record."""
    app = _LifelineApp()
    async with app.run_test(size=(80, 24)):
        line = app.query_one(Lifeline)
        marks = []
        for middle in (Point(5, "update"), Point(5, "delete"), Point(5, "delete", is_bad=True)):
            line.show([Point(0, "insert"), middle, Point(10, "update")], 0)
            marks.append(line.render().plain[40])
    assert marks == ["~", "-", "✗"]
