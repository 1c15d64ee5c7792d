"""The versions of a subject: their dates, their changes, and a comparison of two, field by field."""

import json
from dataclasses import replace

import pytest

from bwtui.model.service_views import SubjectVersions, VersionEntry, VersionText
from bwtui.model.status import SchemaEntry
from bwtui.tui.widgets.grid import ItemList
from tests.tui import services
from tests.tui.doubles import Stage
from tests.tui.picture import text
from tests.tui.recorded import RecordedStage
from tests.tui.shop import NOON, Shop


class Versioned(Shop):
    """A shop whose orders have their fourth schema."""

    def schemas(self) -> list[SchemaEntry]:
        return [
            replace(one, version=4, schema=services.orders_schema(4))
            if one.subject == "orders-value"
            else one
            for one in super().schemas()
        ]


SIZES = ((80, 24), (160, 45), (250, 70))


def listing(stage: Stage | RecordedStage, name: str) -> ItemList:
    return stage.app.screen.query_one(f"#{name}", ItemList)


def cells(stage: Stage | RecordedStage, name: str) -> list[list[str]]:
    """Return the texts of a list, line by line."""
    return [[cell.text for cell in row.cells] for row in listing(stage, name).rows]


async def orders(stage: Stage) -> str:
    """Show the versions of the orders' values."""
    await stage.show("registry")
    grid = listing(stage, "schemas")
    grid.move_to_key(next(row.key for row in grid.rows if row.key.startswith("orders-value")))
    await stage.settle()
    await stage.press("D")
    await stage.advance(3)
    return text(stage.app)


@pytest.mark.parametrize("size", SIZES)
async def test_the_newest_two_are_compared_field_by_field(size: tuple[int, int]) -> None:
    stage = Stage(Versioned())
    async with stage.run(size):
        seen = await orders(stage)
        for word in ("orders-value has compatibility level BACKWARD", "4 versions, 1 softly deleted"):
            assert word in seen
        flat = " ".join(seen.split())
        assert "version 3 → 4: 1 added, 1 removed, 1 with a new type: ✗ breaks BACKWARD in 2" in flat
        assert [(row[0], row[1], row[4]) for row in cells(stage, "differences")] == [
            ("total", "type", "✗ breaks BACKWARD"),
            ("placed", "added", "✗ breaks BACKWARD"),
            ("note", "removed", "✓ keeps BACKWARD"),
        ]
        assert "decimal(10,2)" in seen
        assert [(row[0], row[1], row[2], row[3]) for row in cells(stage, "versions")] == [
            ("to", "4", "6", "+1 −1"),
            ("from", "3", "12", "+1"),
            ("", "2", "11", "+1"),
            ("", "1", "3", ""),
        ]


async def test_times_are_those_that_somebody_knows() -> None:
    stage = Stage(Versioned())
    async with stage.run((160, 45)):
        await orders(stage)
        when = [row[4] for row in cells(stage, "versions")]
        assert when[0].startswith("used since ")
        assert when[1:3] == ["unknown", "softly deleted"]
        assert when[3].startswith("registered 2025-12-06")


async def test_others_are_compared_and_one_is_held() -> None:
    stage = Stage(Versioned())
    async with stage.run((160, 45)):
        await orders(stage)
        await stage.press("down")
        await stage.advance(2)
        # Softly deleted versions are skipped.
        assert "version 1 → 3: 2 added" in text(stage.app)
        await stage.press("down")
        await stage.advance(2)
        assert "version 2 is softly deleted, so the registry does not compare new schemas with it" in text(
            stage.app
        )
        await stage.press("down", "D", "up", "up", "up")
        await stage.advance(2)
        seen = text(stage.app)
        assert "version 1 → 4: 2 added: ✗ breaks BACKWARD in 1" in seen
        assert "BACKWARD compares only adjacent versions, and there are 1 in between" in seen
        await stage.press("down", "down", "down", "D", "up", "up", "up")
        await stage.advance(2)
        assert "version 3 → 4" in text(stage.app)


async def test_while_the_registry_is_silent_the_relay_s_own_is_shown_and_who_is_waited_for() -> None:
    stage = Stage(Versioned())
    async with stage.run((160, 45)):
        stage.relay.views["subject"] = SubjectVersions(name="orders-value")
        await stage.show("registry")
        grid = listing(stage, "schemas")
        grid.move_to_key(next(row.key for row in grid.rows if row.key.startswith("orders-value")))
        await stage.press("D")
        # At once, before any request.
        assert [row[1] for row in cells(stage, "versions")] == ["4"]
        await stage.advance(5)
        seen = text(stage.app)
        assert "the relay is querying the schema registry at http://127.0.0.1:58081, no answer for 5" in seen
        assert "1 version known to the relay" in seen
        assert "no previous version to compare with" in seen
        stage.relay.views["subject"] = SubjectVersions(
            stage.clock.now, "can't reach the schema registry at r: timed out", name="orders-value"
        )
        await stage.advance(1)
        assert "✗ can't reach the schema registry at r: timed out" in text(stage.app)
        del stage.relay.views["subject"]
        await stage.advance(2)
        assert "✗ can't reach" not in text(stage.app)


async def test_a_text_that_is_lacking_is_said_to_be() -> None:
    stage = Stage(Versioned())
    async with stage.run((160, 45)):
        whole = services.subject(NOON, ("orders-value",))
        stage.relay.views["subject"] = replace(whole, time=stage.clock.now)
        seen = await orders(stage)
        assert "the schema of version 3 has not arrived yet" in seen


async def test_what_others_registered_can_be_no_record_and_hostile() -> None:
    stage = Stage(Versioned())
    async with stage.run((160, 45)):
        hostile = "a\x1b[31m[b]red[/b]\n" + "w" * 300
        texts = (VersionText(8, '{"type": "enum"}'), VersionText(9, json.dumps({"type": hostile})))
        entries = (VersionEntry(8, 1), VersionEntry(9, 2))
        look = SubjectVersions(stage.clock.now, "", (hostile,), "orders-value", "FULL", entries, texts)
        stage.relay.views["subject"] = look
        seen = await orders(stage)
        assert "one of them is not an Avro record, so they can't be compared" in seen
        assert "\\x1b[31m[b]red[/b]" in seen
        # The relay's own version is no longer among them.
        assert "not in the registry" in seen


async def test_d_takes_the_selected_table_and_says_where_none_is_selected() -> None:
    stage = Stage(Versioned())
    async with stage.run((160, 45)):
        await stage.press("D")
        await stage.advance(2)
        assert stage.app.screen.query("#versions")
        await stage.press("escape")
        await stage.show("errors")
        await stage.press("D")
        assert [one.message for one in stage.app._notifications] == [
            "No schema is selected; 3 lists the known ones"
        ]


async def test_the_registry_screen_tells_the_rule_of_the_selected_subject() -> None:
    stage = Stage(Versioned())
    async with stage.run((160, 45)):
        await stage.show("registry")
        await stage.advance(2)
        assert "compatibility level BACKWARD, 1 version in the registry" in text(stage.app)
        assert "D Diff" in text(stage.app)


async def test_a_recording_compares_what_it_holds() -> None:
    stage = RecordedStage()
    view = stage.app.source.view
    before = view.schemas

    def schemas(position: int) -> list[SchemaEntry]:
        last = [one for one in before(position) if one.subject == "orders-value"]
        own = [
            replace(one, id=50 + number, version=number, schema=services.orders_schema(number))
            for one in last
            for number in (1, 3)
        ]
        return [*(one for one in before(position) if one.subject != "orders-value"), *own]

    view.schemas = schemas  # type: ignore[method-assign]
    async with stage.run((160, 45)):
        await stage.press("G", "3")
        grid = listing(stage, "schemas")
        grid.move_to_key(next(row.key for row in grid.rows if row.key.startswith("orders-value")))
        await stage.press("D")
        seen = text(stage.app)
        assert "2 versions in the recording up to here; recordings contain no compatibility level" in seen
        assert "version 1 → 3: 2 added: ✓ breaks neither rule" in seen
        assert cells(stage, "versions")[0][3] == "+2"


async def test_two_hundred_versions_of_wide_tables_are_drawn() -> None:
    fields = [{"name": f"c{n}", "type": ["null", "long"], "default": None} for n in range(1_600)]
    texts = tuple(
        VersionText(number, json.dumps({"type": "record", "name": "V", "fields": fields[:number]}))
        for number in (800, 1_600)
    )
    entries = tuple(
        VersionEntry(number, number, None, False, number, 1, 0, 0) for number in range(1_401, 1_601)
    )
    entries = (VersionEntry(800, 800), *entries)
    stage = Stage(Versioned())
    async with stage.run((250, 70)):
        look = SubjectVersions(stage.clock.now, "", (), "orders-value", "BACKWARD", entries, texts)
        stage.relay.views["subject"] = look
        await orders(stage)
        assert len(cells(stage, "versions")) == 202
        await stage.press("G", "up", "D", "g")
        await stage.advance(1)
        assert len(cells(stage, "differences")) == 800
