"""A first snapshot by chunks on the disk: nothing of it is forgotten, and nobody else takes it up."""

import json
from pathlib import Path

import pytest

from bwtui.errors import RefusedError, StateFailed
from bwtui.model.backfill import BackfillRequest, FirstSnapshot
from bwtui.relay.backfill.chunk_snapshot import (
    ChunkSnapshot,
    chunk_snapshot_path,
    forget,
    refuse_foreign_snapshot,
    unfinished,
)
from bwtui.relay.backfill.requests import BackfillRequests
from bwtui.relay.backfill.store import BackfillStore
from bwtui.relay.backfill.task import BackfillTask
from bwtui.relay.run_state import RunState
from bwtui.relay.slot_checkpoint import SlotCheckpointStore
from bwtui.source.chunks.chunk_reader import KeyChanged, TableNotPublished
from bwtui.state_folder import LOCK_NAME, state_folder

SHOP, OTHER = ("7", "shop", "slot"), ("8", "shop", "slot")
TABLES = ["public.orders", "public.users"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The state folder of relay "mine"."""
    monkeypatch.setenv("BWTUI_STATE_HOME", str(tmp_path))
    made = state_folder("mine")
    made.mkdir()
    (made / LOCK_NAME).touch()
    return made


def known(relay: str) -> Path:
    """Return the folder of another relay, which has run."""
    made = state_folder(relay)
    made.mkdir()
    (made / LOCK_NAME).touch()
    return made


class Run:
    """One run of the relay."""

    def __init__(self, folder: Path, identity: tuple[str, str, str] = SHOP) -> None:
        self.store = BackfillStore(folder / "backfills")
        self.report = RunState()
        self.first = ChunkSnapshot(folder, identity, self.store, self.report)

    def begin(self) -> "Run":
        """Begin with a slot, and make it."""
        self.first.forget()
        self.first.ask(TABLES)
        self.first.begin(0x10)
        assert self.first.status() is None
        self.first.note_slot_created()
        return self

    def in_hand(self) -> BackfillTask:
        """Take what is to be worked on."""
        task = self.store.next()
        assert task is not None
        return task

    def end(self, state: str = "done") -> None:
        """Let the task in hand end."""
        task = self.in_hand()
        task.state, task.rows = state, 5  # type: ignore[assignment]
        self.store.save(task)
        self.first.look()


def test_it_goes_on_over_restarts_and_is_through_once_all_tables_are(folder: Path) -> None:
    run = Run(folder).begin()
    assert (run.first.status(), run.first.phase) == (FirstSnapshot(2, 0), "snapshot")
    assert unfinished(SHOP, "mine") == {"mine": TABLES}
    run.end()
    again = Run(folder)
    again.first.resume()
    assert again.first.status() == FirstSnapshot(2, 1)
    assert unfinished(SHOP, "mine") == {"mine": TABLES[1:]}
    task = again.in_hand()
    assert (task.request.table, task.request.reason) == ("public.users", "first")
    task.state, task.rows, task.after = "running", 3, ("3",)
    again.store.save(task)
    third = Run(folder)
    third.first.resume()
    assert (third.in_hand().after, third.report.tables["public.users"].snapshot_rows) == (("3",), 3)
    # What was sent before is no part of this run's rate.
    assert third.report.tables["public.users"].rows == 0
    third.report.state = "snapshot"
    third.end()
    assert (third.first.status(), third.first.phase, third.report.state) == (None, "streaming", "streaming")
    assert not chunk_snapshot_path(folder, SHOP).exists()
    assert unfinished(SHOP, "mine") == {}
    assert Run(folder).first.status() is None


def test_what_a_kill_left_before_the_slot_is_nobodys(folder: Path) -> None:
    """Tasks that no file names, as a kill leaves them, are not worked on; the next beginning has its own."""
    killed = Run(folder)
    killed.first.forget()
    killed.first.ask(TABLES)
    after = Run(folder)
    after.first.resume()
    assert after.first.status() is None
    assert after.store.next() is None
    assert after.store.statuses() == ()
    begun = Run(folder).begin()
    assert [one.table for one in begun.store.statuses()] == TABLES
    assert len(list((folder / "backfills").iterdir())) == len(TABLES)


def test_another_slots_is_left_alone(folder: Path) -> None:
    """And is gone on with once its slot is the relay's again."""
    Run(folder).begin()
    other = Run(folder, ("7", "shop", "other"))
    other.first.resume()
    assert other.store.next() is None
    other.begin()
    assert len(other.store.statuses()) == len(TABLES)
    mine = Run(folder)
    mine.first.resume()
    assert mine.first.status() == FirstSnapshot(2, 0)
    assert mine.in_hand().id == "1-orders"
    # The same name of another database or server is another slot.
    assert not Run(folder, OTHER).first.is_due


def test_another_servers_slot_of_the_same_name_is_left_alone(folder: Path) -> None:
    """A relay that is started on another server, with the same name and slot, erases nothing of this one."""
    Run(folder).begin().end()
    there = Run(folder, OTHER).begin()
    there.end()
    assert there.first.status() == FirstSnapshot(2, 1)
    here = Run(folder)
    here.first.resume()
    assert here.first.status() == FirstSnapshot(2, 1)
    assert here.in_hand().request.table == "public.users"
    assert unfinished(SHOP, "mine") == {"mine": TABLES[1:]}
    here.end()
    assert here.first.status() is None
    assert unfinished(OTHER, "mine") == {"mine": TABLES[1:]}


def test_a_new_beginning_forgets_the_one_before(folder: Path) -> None:
    Run(folder).begin().end()
    again = Run(folder).begin()
    assert again.first.status() == FirstSnapshot(2, 0)
    assert {one.state for one in again.store.statuses()} == {"waiting"}


@pytest.mark.parametrize("lost", ["gone", "damaged"])
def test_a_task_that_can_not_be_read_begins_anew(folder: Path, lost: str) -> None:
    Run(folder).begin()
    path = folder / "backfills" / "1-orders.json"
    path.unlink() if lost == "gone" else path.write_text("{")
    run = Run(folder)
    run.first.resume()
    assert run.first.status() == FirstSnapshot(2, 0)
    tables = {run.in_hand().request.table}
    run.end()
    tables.add(run.in_hand().request.table)
    run.end()
    assert tables == set(TABLES)
    assert run.first.status() is None


def test_a_file_that_can_not_be_read_is_told(folder: Path) -> None:
    Run(folder).begin()
    chunk_snapshot_path(folder, SHOP).write_text("{")
    with pytest.raises(StateFailed, match="the tables that the first snapshot has not completed"):
        Run(folder)


def test_only_what_is_gone_ends_without_its_rows(folder: Path) -> None:
    run = Run(folder).begin()
    task = run.in_hand()
    task.after, task.key = ("7",), ("id",)
    with pytest.raises(RefusedError, match="no right"):
        run.first.fails(task, RefusedError("no right", "give it"))
    assert not run.first.fails(task, KeyChanged("another key", ""))
    assert (task.after, task.key) == (None, None)
    assert run.first.fails(task, TableNotPublished("gone", ""))
    task.error = "there is no table"
    run.end("failed")
    assert run.first.status() == FirstSnapshot(2, 1)
    assert run.report.tables["public.orders"].snapshot_state == "none"
    assert "did not complete: there is no table" in run.report.tables["public.orders"].notes[0]


def test_a_slot_that_was_never_made_leaves_nothing(folder: Path) -> None:
    """Of a beginning that fails no start goes on with anything."""
    killed = Run(folder).begin()
    run = Run(folder)
    assert (killed.first.status(), run.first.status()) == (FirstSnapshot(2, 0), None)
    run.first.forget()
    run.first.ask(TABLES)
    run.first.begin(0x20)
    assert run.first.status() is None


def test_a_table_that_is_not_there_is_looked_for_under_another_name(folder: Path) -> None:
    run, looks = Run(folder).begin(), [False]
    run.first.has_checked = lambda moment: looks[0]
    run.end()
    task = run.in_hand()
    assert run.first.fails(task, TableNotPublished("there is no table", ""))
    run.end("failed")
    assert run.first.phase == "snapshot"
    # A kill now, and all of that comes again.
    again = Run(folder)
    again.first.resume()
    assert again.in_hand().request.table == "public.users"
    # It was found, and its rows come under its new name.
    renamed = run.store.submit(BackfillRequest("public.renamed", reason="joined"))
    looks[0] = True
    run.first.look()
    assert run.first.phase == "snapshot"
    assert run.in_hand().id == renamed
    run.end()
    assert run.first.phase == "streaming"
    assert not chunk_snapshot_path(folder, SHOP).exists()


def test_cancelled_is_through_and_told(folder: Path) -> None:
    run = Run(folder).begin()
    run.store.ask(run.in_hand().id, "cancel")
    run.store.next()
    run.first.look()
    assert run.first.status() == FirstSnapshot(2, 1)
    assert "cancelled" in run.report.tables["public.orders"].notes[0]


def test_another_relay_of_this_machine_is_refused(folder: Path) -> None:
    Run(folder).begin()
    refuse_foreign_snapshot(SHOP, "mine")
    refuse_foreign_snapshot(("7", "shop", "else"), "yours")
    with pytest.raises(RefusedError, match="relay mine has not finished the first snapshot of slot slot"):
        refuse_foreign_snapshot(SHOP, "yours")


def test_a_slot_that_another_relay_has_made_since_is_that_ones(folder: Path) -> None:
    """What the first relay has not sent is void with its slot, and holds up neither relays nor audits."""
    Run(folder).begin()
    made = SlotCheckpointStore(known("yours"), *SHOP)
    made.remember(0x20)
    refuse_foreign_snapshot(SHOP, "yours")
    refuse_foreign_snapshot(SHOP, "third")
    assert unfinished(SHOP, "yours") == {}
    # It knows of nothing but its own.
    assert unfinished(SHOP, "mine") == {"mine": TABLES}
    # It has made the slot anew since, and its rows are due again.
    SlotCheckpointStore(folder, *SHOP).renew(0x30, ())
    with pytest.raises(RefusedError, match="relay mine has not finished"):
        refuse_foreign_snapshot(SHOP, "yours")


@pytest.mark.parametrize(("identity", "lsn"), [(SHOP, 0x10), (OTHER, 0x20)], ids=["before", "another server"])
def test_a_slot_from_before_says_nothing_of_this_one(
    folder: Path, identity: tuple[str, str, str], lsn: int
) -> None:
    Run(folder).begin()
    SlotCheckpointStore(known("yours"), *identity).remember(lsn)
    with pytest.raises(RefusedError, match="relay mine has not finished"):
        refuse_foreign_snapshot(SHOP, "yours")


def test_a_drop_of_the_slot_forgets_it_and_no_other(folder: Path) -> None:
    Run(folder).begin()
    Run(folder, OTHER).begin()
    forget(SHOP)
    assert unfinished(SHOP, "mine") == {}
    assert unfinished(OTHER, "mine") == {"mine": TABLES}


def test_nobody_else_may_ask_for_one(folder: Path) -> None:
    run = Run(folder)
    with pytest.raises(RefusedError, match="only the relay itself"):
        BackfillRequests(run.store, run.report).submit(BackfillRequest("public.orders", reason="first"))


def test_the_file_names_whose_it_is(folder: Path) -> None:
    Run(folder).begin()
    said = json.loads(chunk_snapshot_path(folder, SHOP).read_text())
    assert said == {
        "of": list(SHOP),
        "lsn": "0/10",
        "tables": {"public.orders": "1-orders", "public.users": "2-users"},
    }
