"""A first snapshot in chunks, stored on disk: no table is forgotten, and no other relay resumes it."""

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
from bwtui.relay.history.backfill_store import BackfillRequests, BackfillStore, BackfillTask
from bwtui.relay.history.slot_checkpoint import SlotCheckpointStore
from bwtui.relay.state.run_state import RunState
from bwtui.settings import RelaySettings
from bwtui.source.snapshot import KeyChanged, TableNotPublished
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
    """Return the folder of a different relay that has run."""
    made = state_folder(relay)
    made.mkdir()
    (made / LOCK_NAME).touch()
    return made


class Run:
    """One run of the relay."""

    def __init__(self, folder: Path, identity: tuple[str, str, str] = SHOP) -> None:
        self.store = BackfillStore(folder / "backfills")
        self.report = RunState()
        #: Whether joined tables were checked since a table was found missing.
        self.has_checked = True
        self.first = ChunkSnapshot(folder, identity, self.store, self.report, lambda _: self.has_checked)

    def begin(self) -> "Run":
        """Begin the snapshot and create its slot."""
        self.first.forget()
        self.first.store_tasks(TABLES)
        self.first.begin(0x10)
        assert self.first.status() is None
        self.first.note_slot_created()
        return self

    def in_hand(self) -> BackfillTask:
        """Return the current task."""
        task = self.store.next()
        assert task is not None
        return task

    def end(self, state: str = "done") -> None:
        """End the current task."""
        task = self.in_hand()
        task.state, task.rows = state, 5  # type: ignore[assignment]
        self.store.save(task)
        self.first.update()


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
    # Rows of earlier runs do not count in this run's rate.
    assert third.report.tables["public.users"].rows == 0
    third.report.state = "snapshot"
    third.end()
    assert (third.first.status(), third.first.phase, third.report.state) == (None, "streaming", "streaming")
    assert not chunk_snapshot_path(folder, SHOP).exists()
    assert unfinished(SHOP, "mine") == {}
    assert Run(folder).first.status() is None


def test_what_a_kill_left_before_the_slot_is_nobodys(folder: Path) -> None:
    """A kill before the slot exists leaves tasks that no snapshot file names.

    They are ignored, and the next snapshot creates its own.
    """
    killed = Run(folder)
    killed.first.forget()
    killed.first.store_tasks(TABLES)
    after = Run(folder)
    after.first.resume()
    assert after.first.status() is None
    assert after.store.next() is None
    assert after.store.statuses() == ()
    begun = Run(folder).begin()
    assert [one.table for one in begun.store.statuses()] == TABLES
    assert len(list((folder / "backfills").iterdir())) == len(TABLES)


def test_another_slots_is_left_alone(folder: Path) -> None:
    """The snapshot resumes once the relay uses its slot again."""
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
    # A slot with the same name in a different database or server is a different slot.
    assert not Run(folder, OTHER).first.is_due


def test_another_servers_slot_of_the_same_name_is_left_alone(folder: Path) -> None:
    """A relay that starts on another server, with the same name and slot, keeps this one's snapshot."""
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
    """No start resumes a snapshot whose slot was never created."""
    killed = Run(folder).begin()
    run = Run(folder)
    assert (killed.first.status(), run.first.status()) == (FirstSnapshot(2, 0), None)
    run.first.forget()
    run.first.store_tasks(TABLES)
    run.first.begin(0x20)
    assert run.first.status() is None


def test_a_table_that_is_not_there_is_looked_for_under_another_name(folder: Path) -> None:
    run = Run(folder).begin()
    run.has_checked = False
    run.end()
    task = run.in_hand()
    assert run.first.fails(task, TableNotPublished("there is no table", ""))
    run.end("failed")
    assert run.first.phase == "snapshot"
    # After a kill now, all of that is sent again.
    again = Run(folder)
    again.first.resume()
    assert again.in_hand().request.table == "public.users"
    # The table was found, and its rows are sent under the new name.
    renamed = run.store.submit(BackfillRequest("public.renamed", reason="joined"))
    run.has_checked = True
    run.first.update()
    assert run.first.phase == "snapshot"
    assert run.in_hand().id == renamed
    run.end()
    assert run.first.phase == "streaming"
    assert not chunk_snapshot_path(folder, SHOP).exists()


def test_cancelled_is_through_and_told(folder: Path) -> None:
    run = Run(folder).begin()
    run.store.control(run.in_hand().id, "cancel")
    run.store.next()
    run.first.update()
    assert run.first.status() == FirstSnapshot(2, 1)
    assert "cancelled" in run.report.tables["public.orders"].notes[0]


def test_another_relay_of_this_machine_is_refused(folder: Path) -> None:
    Run(folder).begin()
    refuse_foreign_snapshot(SHOP, RelaySettings(name="mine"))
    refuse_foreign_snapshot(("7", "shop", "else"), RelaySettings(name="yours"))
    with pytest.raises(RefusedError, match="relay mine has not finished the first snapshot of slot slot"):
        refuse_foreign_snapshot(SHOP, RelaySettings(name="yours"))


def test_a_slot_that_another_relay_has_made_since_is_that_ones(folder: Path) -> None:
    """The first relay's unsent rows are void with its slot, and block neither relays nor audits."""
    Run(folder).begin()
    made = SlotCheckpointStore(known("yours"), *SHOP)
    made.remember(0x20)
    refuse_foreign_snapshot(SHOP, RelaySettings(name="yours"))
    refuse_foreign_snapshot(SHOP, RelaySettings(name="third"))
    assert unfinished(SHOP, "yours") == {}
    # A relay's folder only knows its own snapshot.
    assert unfinished(SHOP, "mine") == {"mine": TABLES}
    # The first relay has recreated the slot since, so its rows are due again.
    SlotCheckpointStore(folder, *SHOP).renew(0x30, ())
    with pytest.raises(RefusedError, match="relay mine has not finished"):
        refuse_foreign_snapshot(SHOP, RelaySettings(name="yours"))


@pytest.mark.parametrize(("identity", "lsn"), [(SHOP, 0x10), (OTHER, 0x20)], ids=["before", "another server"])
def test_a_slot_from_before_says_nothing_of_this_one(
    folder: Path, identity: tuple[str, str, str], lsn: int
) -> None:
    Run(folder).begin()
    SlotCheckpointStore(known("yours"), *identity).remember(lsn)
    with pytest.raises(RefusedError, match="relay mine has not finished"):
        refuse_foreign_snapshot(SHOP, RelaySettings(name="yours"))


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
