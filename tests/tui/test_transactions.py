"""The transactions of a relay and in a recording, in every size, and the messages when there are none."""

from dataclasses import replace

import pytest

from bwtui.errors import DamagedRecording
from bwtui.model.service_views import LookName, RelayedTransaction, Transactions
from bwtui.model.status import ChangeSample, FieldChange
from bwtui.relay.process.control import UNKNOWN_REQUEST, RequestRefused
from bwtui.tui.screens.transactions import (
    RecordedTransactionsScreen,
    SampledTransactionScreen,
    TransactionScreen,
)
from bwtui.tui.widgets.grid import ItemList
from tests.recorded_shop import AUDIT, ORDERS, MemoryRecording, Tape, shop_recording
from tests.tui import services
from tests.tui.doubles import Stage
from tests.tui.picture import lines, text
from tests.tui.pictured import compare
from tests.tui.recorded import RecordedStage
from tests.tui.shop import Shop

SIZES = ((80, 24), (160, 45), (250, 70))
HOSTILE = 'ev\x1b]0;il\x07\n[red]"public"'


def keys(stage: Stage | RecordedStage) -> list[str]:
    """Return the keys of the list's rows, in order."""
    return [row.key for row in stage.app.screen.query_one("#transactions", ItemList).rows]


def words(stage: Stage | RecordedStage) -> str:
    """Return the screen without line breaks and frames."""
    return " ".join(text(stage.app).replace("│", " ").split())


async def open_live(stage: Stage) -> None:
    await stage.press("0")
    await stage.advance(2)


# -- a relay ---------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
async def test_a_relay_shows_the_largest_first_and_what_is_being_read(size: tuple[int, int]) -> None:
    stage = Stage()
    async with stage.run(size):
        await open_live(stage)
        assert keys(stage)[:2] == ["4", "open"]
        seen = words(stage)
        for word in (
            "1,204,777 transactions since the relay's start",
            "Being read: xid 40062, 312,400 rows so far, for 12 s",
            "Recv→ack",
            "1.20M",
            "warehouse.stock",
            "messages by table: warehouse.stock 1,000,000, public.audit 204,511",
            "acknowledged after 14 s, 15 s after its COMMIT",
        ):
            assert word in seen
        assert ("0 Transactions" if size[0] > 80 else "0 Txn") in lines(stage.app)[0]


async def test_sorting_by_each_column_brings_what_it_says() -> None:
    stage = Stage()
    async with stage.run((160, 45)):
        await open_live(stage)
        listing = stage.app.screen.query_one("#transactions", ItemList)
        first = {}
        for _ in listing.sortable:
            first[listing.sort_column] = keys(stage)[0]
            await stage.press("s")
        assert first == {
            "commit": "10",
            "xid": "open",
            "rows": "4",
            "bytes": "4",
            "relayed": "5",
            "behind": "5",
        }
        await stage.press("S")
        assert keys(stage)[-1] != first["rows"] or len(keys(stage)) > 1


async def test_what_waits_is_marked_and_can_be_shown_alone() -> None:
    stage = Stage()
    async with stage.run((160, 45)):
        await open_live(stage)
        await stage.press("exclamation_mark")
        assert set(keys(stage)) == {"61", "open"}
        assert "8.9 s…" in text(stage.app)
        await stage.press("exclamation_mark", "slash", *"customers", "enter")
        assert keys(stage) == ["5"]
        assert "read 2 times: the stream was restarted before it was acknowledged" in words(stage)


async def test_tables_beyond_the_largest_are_counted_and_what_was_given_up_is_told() -> None:
    stage = Stage()
    async with stage.run((250, 70)):
        tables = {f"public.p{number}": 100 - number for number in range(20)}
        one = RelayedTransaction(1, 7, "0/7", 0.0, 10**6, 10**6, 1.0, tables, more_tables=4_980)
        one = replace(one, more_messages=5_000, is_given_up=True)
        stage.relay.views["transactions"] = Transactions(stage.clock.now, transactions=(one,))
        await open_live(stage)
        seen = words(stage)
        assert "public.p5 and 4,994 more" in seen
        assert f"public.p5 95, 4,994 more tables {5_000 + sum(range(81, 95)):,}" in seen
        assert "abandoned: the current server does not have it" in seen
        await stage.press("exclamation_mark")
        assert keys(stage) == ["1"]


@pytest.mark.parametrize("size", SIZES)
async def test_enter_opens_the_sampled_changes_and_says_how_many_are_not(size: tuple[int, int]) -> None:
    stage = Stage()
    async with stage.run(size):
        await stage.advance(3)
        sample = stage.app.model.live.changes[-1]
        mine = RelayedTransaction(
            7, sample.xid, sample.lsn, sample.commit_time, 1_000, 9_000, stage.clock.now, {sample.table: 0}
        )
        same = [one for one in stage.app.model.live.changes if (one.xid, one.lsn) == (sample.xid, sample.lsn)]
        stage.relay.views["transactions"] = Transactions(
            stage.clock.now, total=1, newest=1, transactions=(mine,)
        )
        await open_live(stage)
        await stage.press("enter")
        await stage.advance(1)
        assert isinstance(stage.app.screen, SampledTransactionScreen)
        others = 1_000 - len(same)
        assert f"{len(same):,} of its changes were sampled, {others:,} were not" in words(stage)
        assert len(stage.app.screen.main_grid().rows) == len(same)
        assert f"Transactions › xid {sample.xid}" in lines(stage.app)[1]
        await stage.press("escape")
        assert not isinstance(stage.app.screen, SampledTransactionScreen)


async def test_a_transaction_of_which_nothing_was_sampled_says_so() -> None:
    stage = Stage()
    async with stage.run((120, 30)):
        await open_live(stage)
        await stage.press("enter")
        await stage.advance(1)
        seen = words(stage)
        assert "none of its changes was sampled" in seen
        assert "1,204,511 were not" in seen
        assert "bwtui connect --record DIR" in seen


async def test_one_that_is_being_read_is_followed_to_its_end() -> None:
    stage = Stage()
    async with stage.run((120, 30)):
        await open_live(stage)
        await stage.press("down", "enter")
        await stage.advance(1)
        assert "being read: rows and bytes so far" in words(stage)
        before = services.transactions(stage.clock.now)
        ended = replace(before.under_way[0], number=62, rows=400_000, acknowledged=True, relayed_seconds=20.0)
        ended = replace(ended, commit_seconds=21.0)
        done = replace(before, under_way=(), transactions=(*before.transactions, ended))
        stage.relay.views["transactions"] = done
        await stage.advance(2)
        assert "400,000 rows" in words(stage)
        assert "acknowledged after 20 s" in words(stage)


async def test_nothing_yet_says_why() -> None:
    stage = Stage()
    async with stage.run((80, 24)):
        stage.relay.views["transactions"] = Transactions(stage.clock.now)
        await open_live(stage)
        assert "no transaction of the relay's tables yet; 1 shows the relay's state" in words(stage)
    stage = Stage(Shop(state="snapshot"))
    async with stage.run((80, 24)):
        stage.relay.views["transactions"] = Transactions(stage.clock.now)
        await open_live(stage)
        assert "the snapshot is running; its rows belong to no transaction" in words(stage)


async def test_an_older_relay_is_told_of_in_plain_words() -> None:
    stage = Stage()

    async def refuse(name: LookName, about: object = (), *, glance: bool = False) -> Transactions:
        raise RequestRefused("shop", UNKNOWN_REQUEST)

    async with stage.run((80, 24)):
        stage.relay.fetch_view = refuse  # type: ignore[method-assign]
        await open_live(stage)
        seen = words(stage)
        assert "relay shop refused the request: unknown request" in seen
        assert "it may run a different version of bwtui" in seen


async def test_hostile_names_and_numbers_are_shown_and_control_nothing() -> None:
    stage = Stage()
    async with stage.run((160, 45)):
        one = RelayedTransaction(
            1, 2**32 - 1, "FFFFFFFF/FFFFFFFF", 0.0, 10**12, 10**15, 1.0, {HOSTILE: 3, "x" * 5_000: 2}, True
        )
        unknown = replace(one, number=2, xid=3, tables=None)
        stage.relay.views["transactions"] = Transactions(stage.clock.now, transactions=(one, unknown))
        await open_live(stage)
        seen = text(stage.app)
        assert "\x1b" not in seen
        assert "\\x1b]0;il\\x07\\n[red]" in seen
        assert "unknown" in seen
        await stage.press("down")
        assert "tables unknown: too many small transactions of many tables at once" in words(stage)


async def test_a_thousand_transactions_cost_no_more_than_a_picture() -> None:
    stage = Stage()
    async with stage.run((250, 70)):
        many = tuple(
            RelayedTransaction(n, n, f"0/{n:X}", n / 10, n % 90, n, n / 10, {"public.t": 0}, True, 0.01, 0.02)
            for n in range(1, 1_001)
        )
        stage.relay.views["transactions"] = Transactions(stage.clock.now, total=1_000, transactions=many)
        await open_live(stage)
        assert len(keys(stage)) == 1_000
        await stage.press("end", "pageup", "home")
        assert stage.app.screen.query_one("#transactions", ItemList).cursor_row == 0


def test_samples_know_their_transaction() -> None:
    change = ChangeSample(
        1, 0.0, 0.0, "0/1", 7, "insert", "public.t", "t", "1", (FieldChange("id", None, "1"),)
    )
    assert (change.xid, change.lsn) == (7, "0/1")


# -- a recording -----------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
async def test_a_recording_lists_its_transactions_as_of_the_position(size: tuple[int, int]) -> None:
    stage = RecordedStage()
    async with stage.run(size):
        await stage.press("0")
        assert isinstance(stage.app.screen, RecordedTransactionsScreen)
        every = list(stage.recording.transactions(0, stage.recording.length))
        assert len(keys(stage)) == len(every)
        seen = words(stage)
        assert f"{len(every)} transactions up to here" in seen
        assert "Recv→conf" in seen
        assert "RECORDING" in lines(stage.app)[0]
        await compare(stage, f"recorded-transactions-{size[0]}x{size[1]}")
        await stage.seek("#20")
        few = [one for one in every if one.stop <= 21]
        assert len(keys(stage)) == len(few)
        await stage.seek("start")
        assert "no change before this position; → goes to the first change" in words(stage)


async def test_tables_and_bytes_are_read_for_what_is_on_screen() -> None:
    stage = RecordedStage()
    async with stage.run((160, 45)):
        await stage.press("0", "s", "s", "s")
        listing = stage.app.screen.query_one("#transactions", ItemList)
        page = [row.key for row in listing.rows[: listing.size.height - 1]]
        cells = {row.key: [cell.text for cell in row.cells] for row in listing.rows}
        assert all("…" not in cells[key][4:6] for key in page)
        assert any(cells[row.key][4] == "…" for row in listing.rows)
        await stage.press("end")
        cells = {row.key: [cell.text for cell in row.cells] for row in listing.rows}
        assert cells[listing.rows[-1].key][4] != "…"
        await stage.press("slash", *"products", "enter")
        assert all("products" in row.cells[5].text for row in listing.rows)
        assert listing.rows


async def test_enter_and_t_open_a_recorded_transaction() -> None:
    stage = RecordedStage()
    async with stage.run((120, 36)):
        for key in ("enter", "T"):
            await stage.press("0")
            chosen = int(stage.app.screen.query_one("#transactions", ItemList).cursor_key or "-1")
            await stage.press(key)
            assert isinstance(stage.app.screen, TransactionScreen)
            assert stage.app.screen.change.position == chosen
            await stage.press("escape")
            assert isinstance(stage.app.screen, RecordedTransactionsScreen)


async def test_one_that_was_never_confirmed_or_recorded_twice_says_so() -> None:
    stage = RecordedStage()
    async with stage.run((160, 45)):
        await stage.press("0", "s")
        assert "never" in text(stage.app)
        await stage.press("home")
        assert "not confirmed in this recording" in words(stage)
        marks = {
            row.key: row.cells[0].text for row in stage.app.screen.query_one("#transactions", ItemList).rows
        }
        changes = list(stage.recording.changes())
        assert [key for key, mark in marks.items() if mark == "»"] == [
            str(one.position) for one in changes if one.is_repeat
        ]


async def test_a_recording_of_a_snapshot_alone_has_none_and_says_so() -> None:
    tape = Tape()
    for number in range(3):
        tape.add("snapshot", ORDERS, (b"%d" % number, b"new", None))
    stage = RecordedStage(MemoryRecording(tape))
    async with stage.run((80, 24)):
        await stage.press("0")
        assert "no transaction ends before this position" in words(stage)


async def test_a_transaction_that_is_under_way_at_the_position_is_named() -> None:
    stage = RecordedStage()
    async with stage.run((160, 45)):
        one = next(one for one in stage.recording.transactions(0, stage.recording.length) if one.rows == 3)
        await stage.seek(f"#{one.start + 1}")
        await stage.press("0")
        assert f"Open at this position: xid {one.xid}, 2 of 3 rows." in words(stage)


async def test_damage_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    recording = shop_recording()

    def damaged(start: int, stop: int) -> object:
        raise DamagedRecording("the recording is damaged: 00000001.bwj at byte 12", "x")

    monkeypatch.setattr(recording, "transactions", damaged)
    stage = RecordedStage(recording)
    async with stage.run((120, 36)):
        await stage.press("0")
        assert "✗ the recording is damaged: 00000001.bwj at byte 12" in text(stage.app)


async def test_a_large_transaction_is_read_in_part_for_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    from bwtui.tui.screens import transactions as module

    monkeypatch.setattr(module, "_READ", 10)
    tape = Tape()
    tape.begin()
    for number in range(50):
        tape.add("insert", AUDIT, (b"%d" % number, HOSTILE.encode()))
    stage = RecordedStage(MemoryRecording(tape))
    async with stage.run((160, 45)):
        await stage.press("0")
        assert "≥" in text(stage.app)
        assert "in the first 10" in words(stage)
