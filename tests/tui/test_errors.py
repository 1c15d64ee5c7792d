"""The dead letters: the list, each with its row, and the action that sends them again."""

from dataclasses import replace
from pathlib import Path

import pytest
from textual.widgets import Static

from bwtui.errors import RefusedError
from bwtui.kafka.dead_letter_topic import identity
from bwtui.model.backfill import BackfillStatus
from bwtui.model.service_views import DeadLetterPosition, DeadLetterTopic
from bwtui.model.status import Status
from bwtui.relay.dead_letters import retry
from bwtui.relay.dead_letters.letters import DeadLetterAction, DeadLetterActionLog
from bwtui.sink.dead_letters import ChangeIdentity, DeadLetterFile, DeadLetterWriter, DroppedRow
from bwtui.state_folder import state_folder
from bwtui.tui.screens.dialogs import AskScreen
from bwtui.tui.screens.errors import DeadLettersScreen
from bwtui.tui.widgets.grid import ItemList
from tests.tui.doubles import Stage
from tests.tui.picture import text
from tests.tui.pictured import compare
from tests.tui.recorded import RecordedStage
from tests.tui.shop import NOON, Shop

SIZES = ((80, 24), (160, 45), (250, 70))


@pytest.fixture
def letters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DeadLetterWriter:
    """The dead letters of the made-up relay."""
    monkeypatch.setenv("BWTUI_STATE_HOME", str(tmp_path))
    return DeadLetterWriter(state_folder("shop"))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[retry.TableRetry]:
    """The requests that reach the relay; the relay does not run."""
    requests: list[retry.TableRetry] = []

    def submit(relay: str, request: retry.TableRetry) -> tuple[BackfillStatus, bool]:
        if request.table == "public.refused":
            raise RefusedError("public.refused is not captured", "see 'bwtui status'")
        requests.append(request)
        return BackfillStatus(f"1-{relay}", request.table), False

    monkeypatch.setattr(retry, "submit", submit)
    return requests


def keep(
    letters: DeadLetterWriter,
    number: int,
    operation: str = "update",
    title: str = "Kettle",
    table: str = "public.products",
) -> None:
    values = (str(number).encode(), b"K-1", title.encode(), b"9.50", None)
    gone = operation == "delete"
    row = DroppedRow(
        table,
        "products",
        operation,
        # A backfilled row belongs to no transaction.
        ChangeIdentity(0x16_B3740000 + number, 3, 0 if operation == "backfill" else 740 + number),
        ("id", "sku", "title", "price", "photo"),
        values if gone else None,
        None if gone else values,
        ("id",) if table == "public.products" else (),
    )
    letter = letters.letter(row, "a message for topic products is larger than it takes", "RowTooLarge")
    letters.keep({**letter, "time": "2026-01-15T11:59:00+00:00"})


def keys(stage: Stage) -> list[str]:
    return [row.cells[2].text for row in stage.app.screen.query_one("#letters", ItemList).rows]


async def opened(stage: Stage) -> str:
    await stage.show("errors")
    await stage.press("l")
    await stage.advance(2)
    return text(stage.app)


@pytest.mark.parametrize("size", SIZES)
async def test_a_letter_is_shown_with_its_row(letters: DeadLetterWriter, size: tuple[int, int]) -> None:
    keep(letters, 1)
    keep(letters, 2, "delete")
    stage = Stage(Shop(trouble=True))
    async with stage.run(size):
        seen = " ".join((await opened(stage)).split())
        assert "2 dead letters in " in seen
        assert "public.products" in seen
        assert sorted(keys(stage)) == ["id=1", "id=2"]
        grid = stage.app.screen.query_one("#letters", ItemList)
        grid.move_to(keys(stage).index("id=1"))
        await stage.settle()
        await stage.press("enter", "m")
        seen = text(stage.app)
        for word in (
            "update on public.products",
            "16/B3740001 #3, transaction 741",
            "Kettle",
            "photo",
            "NULL",
        ):
            assert word in seen


@pytest.mark.parametrize("size", SIZES)
async def test_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: tuple[int, int]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("bwtui.tui.screens.errors.state_folder", lambda name: Path("state") / name)
    monkeypatch.setenv("BWTUI_STATE_HOME", str(tmp_path))
    for number in range(1, 6):
        keep(DeadLetterWriter(Path("state/shop")), number, "delete" if number == 3 else "update")
    stage = Stage(Shop(trouble=True))
    async with stage.run(size):
        await stage.advance(8)
        await opened(stage)
        await compare(stage, f"letters-{size[0]}x{size[1]}")


async def test_nothing_was_dropped_and_that_is_said(letters: DeadLetterWriter) -> None:
    stage = Stage()
    async with stage.run():
        assert "no row was dropped" in await opened(stage)
        await stage.press("R")
        assert [one.message for one in stage.app._notifications] == ["No dead letter is selected"]
        # Rows dropped while the screen is open appear automatically.
        keep(letters, 7)
        await stage.advance(2)
        assert keys(stage) == ["id=7"]


async def test_what_was_done_about_one_is_told_as_soon_as_it_is_done(letters: DeadLetterWriter) -> None:
    keep(letters, 1)
    file = DeadLetterFile(letters.path, lambda _: ("id",))
    file.read()
    [letter] = file.letters
    stage = Stage(Shop(trouble=True))
    async with stage.run((160, 45)):
        assert f"id {letter.id}" in await opened(stage)
        DeadLetterActionLog("shop").add([DeadLetterAction("drop", (letter.id,), text="a test row")])
        await stage.advance(2)
        assert "dropped: a test row" in text(stage.app)


class Retrying(Shop):
    """A relay that sends the row of a dead letter again."""

    task = BackfillStatus("1-products", "public.products", state="running", requested=NOON)

    def status(self, now: float) -> Status:
        return replace(super().status(now), backfills=(self.task,))


async def test_a_retry_that_was_rejected_again_is_never_shown_as_sent(letters: DeadLetterWriter) -> None:
    keep(letters, 1)
    file = DeadLetterFile(letters.path, lambda _: ("id",))
    file.read()
    retry = DeadLetterAction(
        "retry", (file.letters[0].id,), task="1-products", requested=NOON, place=file.end
    )
    DeadLetterActionLog("shop").add([retry])
    stage = Stage(shop := Retrying())
    async with stage.run((160, 45)):
        assert "asked: 1-products" in await opened(stage)
        # The task ends after its new dead letter, and its status arrives before the file has been read again.
        keep(letters, 1, "backfill")
        shop.task = replace(shop.task, state="done", ended=NOON + 9)
        screen, model = stage.app.screen, stage.app.model
        assert isinstance(screen, DeadLettersScreen)
        model.live = replace(model.live, status=shop.status(stage.clock.now))
        screen.refresh_picture()
        detail = screen.query_one("#letter Static", Static)
        assert "asked: 1-products" in str(detail.content)
        await stage.advance(1)
        assert "refused: its new dead letter: " in text(stage.app)


async def test_one_is_sent_again_by_the_relay(
    letters: DeadLetterWriter, asked: list[retry.TableRetry]
) -> None:
    keep(letters, 1)
    stage = Stage()
    async with stage.run((120, 40)):
        await opened(stage)
        await stage.press("R", "escape")
        assert asked == []
        await stage.press("R")
        assert isinstance(stage.app.screen, AskScreen)
        seen = " ".join(text(stage.app).replace("│", " ").split())
        assert "1 row, in its current state" in seen
        assert "a row that no longer exists becomes a tombstone" in seen
        await stage.press("y")
        await stage.app.workers.wait_for_complete()
        assert [(one.table, one.keys) for one in asked] == [("public.products", (("1",),))]
        told = [one.message for one in stage.app._notifications]
        assert told == ["Requested from the relay as 1-shop; it waits for the relay's next start"]


async def test_without_a_key_it_is_not_offered_and_that_is_said(
    letters: DeadLetterWriter, asked: list[retry.TableRetry]
) -> None:
    keep(letters, 2, table="public.unknown")
    stage = Stage()
    async with stage.run((120, 40)):
        await opened(stage)
        await stage.press("R")
        seen = " ".join(text(stage.app).split())
        assert "No row can be sent again by its key" in seen
        assert "it has no key" in seen
        await stage.press("y")
        assert asked == []


async def test_all_open_ones_that_the_filter_passes_are_sent_again(
    letters: DeadLetterWriter, asked: list[retry.TableRetry]
) -> None:
    for number in range(1, 13):
        keep(letters, number, "delete" if number == 3 else "update")
    keep(letters, 13, table="public.unknown")
    stage = Stage()
    async with stage.run((120, 40)):
        await opened(stage)
        await stage.press("ctrl+r")
        seen = " ".join(text(stage.app).split())
        assert "12 rows, in their current state" in seen
        assert "▲ it has no key" in seen
        await stage.press("escape", "slash", *"id=1", "enter", "ctrl+r")
        assert "4 rows, in their current state" in " ".join(text(stage.app).split())
        await stage.press("escape")
        file = DeadLetterFile(letters.path, lambda _: ("id",))
        file.read()
        first = next(letter.id for letter in file.letters if letter.key == (("id", "1"),))
        DeadLetterActionLog("shop").add([DeadLetterAction("drop", (first,), text="a test row")])
        await stage.advance(2)
        await stage.press("ctrl+r")
        assert "3 rows, in their current state" in " ".join(text(stage.app).split())


async def test_a_request_that_the_relay_refuses_is_told(
    letters: DeadLetterWriter, asked: list[retry.TableRetry], monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(letters, 1)
    plan = retry.plan
    monkeypatch.setattr(retry, "plan", lambda found: _with_refused(plan(found)))
    stage = Stage()
    async with stage.run((120, 40)):
        await opened(stage)
        await stage.press("R", "y")
        await stage.app.workers.wait_for_complete()
        told = [one.message for one in stage.app._notifications]
        assert "public.refused is not captured: see 'bwtui status'" in told[0]
        assert [one.table for one in asked] == ["public.products"], "the other table's rows are sent"


def _with_refused(plan: retry.RetryPlan) -> retry.RetryPlan:
    plan.requests.insert(0, replace(plan.requests[0], table="public.refused"))
    return plan


async def test_ten_thousand_letters_are_listed(letters: DeadLetterWriter) -> None:
    keep(letters, 1)
    line = letters.path.read_bytes()
    letters.path.write_bytes(b"".join(line.replace(b'"id": "1"', b'"id": "%d"' % n) for n in range(10_000)))
    stage = Stage()
    async with stage.run((160, 45)):
        assert "10,000 dead letters" in await opened(stage)
        await stage.press("end")
        await stage.advance(1)
        assert len(keys(stage)) == 10_000


async def test_hostile_rows_and_lines_are_shown_as_they_are(letters: DeadLetterWriter) -> None:
    keep(letters, 1, title="[b]x[/b]\x1b[31m\nsecond")
    with letters.path.open("ab") as file:
        file.write(b'no letter\n{"table": "public.[red]t", "operation": "\\u001b[2J", "time": "never", ')
        file.write(b'"ordinal": 1, "commit_lsn": "0/1", "error": "\\ud800", "reason": "[/]", "xid": null}\n')
    stage = Stage()
    async with stage.run((160, 45)):
        seen = await opened(stage)
        assert "1 lines are not dead letters" in seen
        assert "public.[red]t" in seen
        grid = stage.app.screen.query_one("#letters", ItemList)
        for at in range(2):
            grid.move_to(at)
            await stage.settle()
        assert "\\x1b" in text(stage.app)


async def test_a_recording_says_where_the_letters_are() -> None:
    stage = RecordedStage()
    async with stage.run():
        await stage.press("4", "l")
        assert "A recording contains no dead letters; 1 rows were dropped up to here" in stage.told[0]


async def test_a_file_that_can_t_be_read_says_so(letters: DeadLetterWriter) -> None:
    letters.path.mkdir(parents=True)
    stage = Stage()
    async with stage.run((160, 45)):
        seen = await opened(stage)
        assert "✗ the dead letters can't be read" in seen


async def test_the_keys_stand_in_the_footer_where_they_are_for(letters: DeadLetterWriter) -> None:
    stage = Stage(Shop(trouble=True))
    async with stage.run((160, 45)):
        await stage.show("errors")
        assert "l Letters" in text(stage.app)
        await stage.press("l")
        await stage.advance(1)
        assert "R Again" in text(stage.app)
        assert "Ctrl+R Send all" in text(stage.app)


async def test_the_place_in_the_topic_is_told_and_what_others_wrote_there(letters: DeadLetterWriter) -> None:
    keep(letters, 1)
    stage = Stage()
    async with stage.run((160, 45)):
        await opened(stage)
        assert "partition@offset" not in text(stage.app)
        which = identity("public.products", "update", "16/B3740001", 3)
        look = DeadLetterTopic(stage.clock.now, "", (), "dead", 12, 7, 0, (DeadLetterPosition(which, 2, 5),))
        stage.relay.views["letters"] = look
        await stage.advance(2)
        seen = text(stage.app)
        assert "dead, partition@offset 2@5" in seen
        assert "12 records in topic dead, 7 of them not dead letters" in seen
        stage.relay.views["letters"] = replace(look, places=(DeadLetterPosition(which, 2, 5, 4),))
        await stage.advance(2)
        assert "dead, partition@offset 2@5, and 4 older ones" in text(stage.app)
        stage.relay.views["letters"] = replace(look, places=())
        await stage.advance(2)
        assert "not found in dead among 12 records" in " ".join(text(stage.app).replace("│", " ").split())
        stage.relay.views["letters"] = replace(look, failure="can't reach Kafka at b:9092: timed out")
        await stage.advance(2)
        assert "✗ can't reach Kafka at b:9092: timed out" in text(stage.app)
