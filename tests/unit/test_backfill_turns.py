"""Turns over the tasks of a relay, without a database: tasks that are never read, and endless re-reads."""

from collections.abc import Callable, Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bwtui.errors import BwtuiError, ConnectionFailed, RefusedError
from bwtui.model.backfill import BackfillRequest
from bwtui.relay.backfill.backfill import Backfill, seconds_beside
from bwtui.relay.backfill.chunk_snapshot import ChunkSnapshot
from bwtui.relay.history.backfill_store import BackfillStore
from bwtui.relay.history.coverage_ledger import Coverage
from bwtui.relay.rows.chunk_window import SentTransactions
from bwtui.relay.state.run_state import RunState
from bwtui.relay.stream.stream_hook import BackfillStream
from bwtui.settings import RelaySettings
from bwtui.source.raw_stream import StreamServer
from bwtui.source.snapshot import ChunkRequest, SessionEnded, TableNotPublished, TableWithoutKey
from tests.relay_context import relay_context
from tests.waiting import eventually


class Reader:
    """A chunk whose read ends only when the test ends it."""

    detail = ""
    #: The error of later readers.
    fails: BwtuiError | None = None
    asked: tuple[str, ...] = ()

    def __init__(self, _: str, asked: ChunkRequest, *__: object, **___: object) -> None:
        type(self).asked += (asked.qualified_name,)
        self.chunk = None
        self.error = self.fails

    @property
    def is_done(self) -> bool:
        """Return whether it has failed."""
        return self.error is not None

    def give_up(self) -> None:
        """Do nothing: no read is in progress."""


class Marked(Coverage):
    """A ledger that records its marks; ``is_kept``: whether it stores them."""

    def __init__(self) -> None:
        self.is_kept = True
        self.marks: list[tuple[str, str, bool]] = []
        self.resumed: list[str] = []

    def mark(
        self,
        table: str,
        reason: str,
        what: str = "",
        *,
        has_extra: bool | None = None,
        by_hand: bool = False,
        advice: str = "",
    ) -> bool:
        self.marks.append((table, reason, by_hand))
        return self.is_kept

    def mark_all(
        self,
        reason: str,
        tables: Collection[str] | None = None,
        *,
        has_extra: bool | None = None,
        since: int = 0,
    ) -> None:
        self.marks.append(("every table", reason, False))

    @property
    def is_empty(self) -> bool:
        """Return whether no marks are stored."""
        return not self.is_kept

    def resume(self, table: str) -> None:
        """Record the table."""
        self.resumed.append(table)


class Turns:
    """Backfills within one session of the stream."""

    def __init__(self, folder: Path, settings: RelaySettings, tables: list[str]) -> None:
        self.report = RunState()
        self.coverage = Marked()
        self.store = BackfillStore(folder / "backfills")
        self.first = ChunkSnapshot(folder, ("7", "shop", "slot"), self.store, self.report)
        if tables:
            self.first.forget()
        self.first.store_tasks(tables)
        self.first.begin(0x10)
        self.first.note_slot_created()
        said = {
            "settings": settings,
            "report": self.report,
            "streamed": SentTransactions(),
        }
        said["coverage"] = self.coverage
        server = SimpleNamespace(server=StreamServer(""))
        context = relay_context(**said, patience=server, policy=SimpleNamespace(shut=None))
        self._batch: Any = SimpleNamespace(bisector=None, window=None, flush=lambda: None)
        self._backfill = Backfill(context, self.store, ("p",), self.first, bool)
        self._backfill.begin_session(cast(BackfillStream, SimpleNamespace(batch=self._batch)))

    def until(self, what: str, condition: Callable[[], object], *, truncates: str = "") -> None:
        """Take turns, while TRUNCATEs of the table ``truncates`` keep coming."""

        def look() -> object:
            self._backfill.turn(0, 0.0, at_boundary=True, is_idle=True)
            if truncates and self._batch.window is not None:
                self._batch.window.truncate({truncates})
            return condition()

        eventually(what, look, 10)

    def states(self) -> dict[str, str]:
        """Return the states of the tasks, by table."""
        return {one.table: one.state for one in self.store.statuses()}


@pytest.fixture(autouse=True)
def reader(monkeypatch: pytest.MonkeyPatch) -> type[Reader]:
    """The class of the chunk readers."""
    made = type("Reader", (Reader,), {})
    monkeypatch.setattr("bwtui.relay.backfill.backfill.ChunkRead", made)
    return made


def test_a_table_that_is_left_out_is_not_read(tmp_path: Path, reader: type[Reader]) -> None:
    """It may be excluded because it can't be read, which would end the relay at every start."""
    settings = RelaySettings(exclude_tables=("secret",))
    turns = Turns(tmp_path, settings, ["public.secret", "public.orders"])
    turns.until("the other", lambda: reader.asked)
    assert reader.asked == ("public.orders",)
    assert turns.states()["public.secret"] == "failed"
    (note,) = turns.report.table("public.secret").notes
    assert "the relay's options exclude table public.secret" in note


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (
            TableWithoutKey("no key", "ask for that with --unkeyed"),
            "add a primary key again, or exclude it with ",
        ),
        (RefusedError("no right", "run: GRANT SELECT;"), "exclude it with "),
        (RefusedError("damaged", "leave it out with --exclude-table 'public.orders'"), "leave it out with "),
    ],
)
def test_a_table_that_can_not_be_read_may_be_left_out(
    tmp_path: Path, reader: type[Reader], error: RefusedError, hint: str
) -> None:
    reader.fails = error
    turns = Turns(tmp_path, RelaySettings(), ["public.orders"])
    with pytest.raises(RefusedError) as raised:
        turns.until("its end", lambda: False)
    assert raised.value.hint.startswith(f"{hint}--exclude-table 'public.orders'")
    assert raised.value.hint.count("--exclude-table") == 1
    assert "--unkeyed" not in raised.value.hint
    assert "GRANT" not in error.hint or error.hint.endswith(", or run: GRANT SELECT;")


def test_only_a_first_snapshot_is_read_again_without_an_end(tmp_path: Path) -> None:
    turns = Turns(tmp_path, RelaySettings(), ["public.orders"])
    turns.store.control("1-orders", "pause")
    turns.store.submit(BackfillRequest("public.users"))
    states = turns.states
    turns.until("the other's end", lambda: states()["public.users"] == "failed", truncates="public.users")
    turns.store.control("1-orders", "resume")

    def again() -> bool:
        return next(one.again for one in turns.store.statuses() if one.table == "public.orders") > 20

    turns.until("many rounds", again, truncates="public.orders")
    assert states()["public.orders"] == "running"


@pytest.mark.parametrize(
    ("where", "error", "ends"),
    [
        ("pg_terminate_backend(1)", SessionEnded("it broke", ""), True),
        # Here the condition is not the cause, and the error is temporary.
        ("", SessionEnded("it broke", ""), False),
        ("id > 1", ConnectionFailed("nobody is there", ""), False),
    ],
)
def test_a_condition_that_ends_its_session_is_not_tried_for_ever(
    tmp_path: Path,
    reader: type[Reader],
    monkeypatch: pytest.MonkeyPatch,
    where: str,
    error: BwtuiError,
    ends: bool,
) -> None:
    monkeypatch.setattr("bwtui.relay.backfill.backfill._PAUSE_SECONDS", 0.0)
    reader.fails = error
    turns = Turns(tmp_path, RelaySettings(), ["public.orders"])
    turns.store.control("1-orders", "cancel")
    id = turns.store.submit(BackfillRequest("public.users", where=where))
    turns.until("many tries", lambda: len(reader.asked) > 20 or turns.states()["public.users"] == "failed")
    (told,) = [one for one in turns.store.statuses() if one.id == id]
    assert (told.state == "failed", len(reader.asked) == 5) == (ends, ends)
    if ends:
        assert "ended 5 times in a row, while the stream's session did not: it broke" in told.error
        assert where in told.hint


@pytest.mark.parametrize(
    ("seconds", "percent", "part"),
    [
        (0.0, 30, 0.001),
        (0.007, 30, 0.003),
        # 4,000 rows at 12 µs each.
        (0.048, 30, 0.048 * 30 / 70),
        (0.048, 50, 0.048),
        (5.0, 90, 0.1),
    ],
)
def test_rows_beside_the_stream_get_their_share_of_turns_however_long(
    seconds: float, percent: int, part: float
) -> None:
    assert seconds_beside(seconds, percent / 100, is_idle=False) == pytest.approx(part)
    assert seconds_beside(seconds, percent / 100, is_idle=True) == 0.01


def test_a_request_that_failed_is_no_clean_end(tmp_path: Path, reader: type[Reader]) -> None:
    """A relay that ends once it has caught up would exit with 0 although rows of a table are missing."""
    turns = Turns(tmp_path, RelaySettings(), [])
    assert turns.store.unsent() is None
    reader.fails = RefusedError("permission denied for table users", "grant it")
    turns.store.submit(BackfillRequest("public.users", reason="joined"))
    turns.until("its end", lambda: turns.states()["public.users"] == "failed")
    error = turns.store.unsent()
    assert error is not None
    assert error.exit_code == 3
    assert "public.users were not sent: permission denied for table users" in error.message
    assert error.hint.endswith("run: bwtui snapshot public.users")
    reader.fails = RefusedError("no right", "grant it")
    turns.store.submit(BackfillRequest("public.orders", reason="joined"))
    turns.until("the other's end", lambda: turns.states()["public.orders"] == "failed")
    error = turns.store.unsent()
    assert error is not None
    assert "rows of 2 tables were not sent" in error.message


def test_rows_of_a_table_that_is_gone_are_not_missing(tmp_path: Path, reader: type[Reader]) -> None:
    turns = Turns(tmp_path, RelaySettings(), [])
    reader.fails = TableNotPublished("there is no table public.users", "create it")
    turns.store.submit(BackfillRequest("public.users", reason="joined"))
    turns.until("its end", lambda: turns.states()["public.users"] == "failed")
    assert turns.store.unsent() is None


def test_a_later_request_of_the_whole_table_makes_up_for_it(tmp_path: Path) -> None:
    store = BackfillStore(tmp_path / "backfills")
    store.failed("public.users", "no right")
    for where in ("id > 7", ""):
        assert store.unsent() is not None
        store.submit(BackfillRequest("public.users", where=where))
        task = store.next()
        assert task is not None
        task.state = "done"
        store.save(task)
    assert store.unsent() is None


def test_rows_that_were_cancelled_are_recorded_before_the_request_is_forgotten(tmp_path: Path) -> None:
    turns = Turns(tmp_path, RelaySettings(), ["public.orders"])
    turns.store.control("1-orders", "pause")
    turns.until("a look", lambda: True)
    turns.store.control("1-orders", "cancel")
    turns.coverage.is_kept = False
    turns.until("a mark that is not kept", lambda: turns.coverage.marks)
    assert BackfillStore(tmp_path / "backfills").task("1-orders").is_noted is False  # type: ignore[union-attr]
    turns.coverage.is_kept = True
    turns.until("a second one", lambda: turns.store.statuses()[0].is_noted)
    assert set(turns.coverage.marks) == {
        ("public.orders", "lacks rows of the first snapshot: request 1-orders was cancelled", True)
    }
    assert BackfillStore(tmp_path / "backfills").task("1-orders").is_noted  # type: ignore[union-attr]


def test_rows_of_a_table_that_is_gone_and_of_a_person_are_not_recorded(
    tmp_path: Path, reader: type[Reader]
) -> None:
    turns = Turns(tmp_path, RelaySettings(), ["public.orders"])
    reader.fails = TableNotPublished("it is gone", "")
    id = turns.store.submit(BackfillRequest("public.users"))
    turns.store.control(id, "cancel")
    turns.until("its end", lambda: turns.states()["public.orders"] == "failed")
    for _ in range(3):
        turns.until("a turn", lambda: True)
    assert turns.coverage.marks == []


def test_a_damaged_request_may_be_of_any_table(tmp_path: Path) -> None:
    store = BackfillStore(tmp_path / "backfills")
    id = store.submit(BackfillRequest("public.users", reason="joined"))
    (tmp_path / "backfills" / f"{id}.json").write_text("{")
    turns = Turns(tmp_path, RelaySettings(), [])
    turns.until("the mark", lambda: not turns.store.unnoted())
    ((table, reason, _),) = turns.coverage.marks
    assert table == "every table"
    assert reason.startswith(f"may lack rows of a request: backfill request {id} can't be read")
