"""Backfill tasks on disk: requests are validated, none is lost, and a `control` survives concurrent saves."""

import errno
import json
import os
import shutil
import stat
import threading
from pathlib import Path

import pytest

from bwtui.durable_files import write_durably
from bwtui.errors import RefusedError, StateFailed
from bwtui.model.backfill import BackfillCommand, BackfillRequest
from bwtui.relay.history.backfill_store import (
    KEPT,
    BackfillRequests,
    BackfillStore,
    BackfillTask,
    read_keys,
    write_keys,
)
from bwtui.relay.state.run_state import RunState

ORDERS = BackfillRequest("public.orders", where="id > 7")
USERS = BackfillRequest("public.users")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of the tasks, which the first task creates."""
    return tmp_path / "relay" / "backfills"


def in_hand(store: BackfillStore, id: str) -> BackfillTask:
    """Return the task that the main thread works on."""
    task = store.next()
    assert task is not None
    assert task.id == id
    task.state = "running"
    store.save(task)
    return task


def test_it_is_durable_private_and_told(folder: Path) -> None:
    store = BackfillStore(folder)
    id = store.submit(ORDERS)
    assert id == "1-orders"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / f"{id}.json").stat().st_mode) == 0o600
    for one in (store, BackfillStore(folder)):
        (status,) = one.statuses()
        assert (status.id, status.table, status.where, status.state) == (
            id,
            ORDERS.table,
            "id > 7",
            "waiting",
        )
        assert status.requested


def test_they_run_one_by_one_the_oldest_first(folder: Path) -> None:
    store = BackfillStore(folder)
    orders, users = store.submit(ORDERS), store.submit(USERS)
    task = in_hand(store, orders)
    assert store.next() is task
    task.state = "done"
    store.save(task)
    in_hand(store, users)


def test_progress_is_what_was_saved(folder: Path) -> None:
    store = BackfillStore(folder)
    task = in_hand(store, store.submit(ORDERS))
    task.after, task.rows, task.chunks = ("7", "ü\x01"), 1000, 1
    store.save(task)
    task.rows = 2000
    again = BackfillStore(folder).next()
    assert again is not None
    assert (again.after, again.rows, again.chunks, again.state) == (("7", "ü\x01"), 1000, 1, "waiting")


def test_no_second_of_the_same_table_and_reason(folder: Path) -> None:
    store = BackfillStore(folder)
    id = store.submit(ORDERS)
    with pytest.raises(RefusedError, match=f"table public.orders already has an unfinished backfill: {id}"):
        store.submit(BackfillRequest("public.orders"))
    store.submit(BackfillRequest("public.orders", reason="joined"))
    store.control(id, "cancel")
    store.submit(ORDERS)


@pytest.mark.parametrize(("what", "state"), [("pause", "paused"), ("cancel", "cancelled")])
def test_one_that_nobody_works_on_obeys_at_once(folder: Path, what: BackfillCommand, state: str) -> None:
    store = BackfillStore(folder)
    id = store.submit(ORDERS)
    assert store.control(id, what).state == state
    assert store.next() is None
    assert [one.state for one in BackfillStore(folder).statuses()] == [state]


@pytest.mark.parametrize(("what", "state"), [("pause", "paused"), ("cancel", "cancelled")])
def test_one_under_way_obeys_at_the_end_of_its_chunk(folder: Path, what: BackfillCommand, state: str) -> None:
    store = BackfillStore(folder)
    orders, users = store.submit(ORDERS), store.submit(USERS)
    task = in_hand(store, orders)
    status = store.control(orders, what)
    assert (status.state, status.detail.partition(" ")[0]) == ("running", "will")
    assert task.state == "running"
    # The chunk in progress is acknowledged and counted.
    task.rows = 1000
    store.save(task)
    following = store.next()
    assert following is not None
    assert following.id == users
    for one in (store, BackfillStore(folder)):
        assert one.statuses()[0].state == state
        assert one.statuses()[0].rows == 1000


def test_a_pause_ends(folder: Path) -> None:
    store = BackfillStore(folder)
    id = store.submit(ORDERS)
    store.control(id, "pause")
    store = BackfillStore(folder)
    assert store.next() is None
    assert store.control(id, "resume").state == "waiting"
    in_hand(store, id)
    store.control(id, "pause")
    assert store.control(id, "resume").state == "running"
    in_hand(store, id)


def test_one_that_goes_on_has_its_turn_before_those_asked_for_later(folder: Path) -> None:
    store = BackfillStore(folder)
    orders, users = store.submit(ORDERS), store.submit(USERS)
    store.control(orders, "pause")
    task = in_hand(store, users)
    store.control(orders, "resume")
    in_hand(store, orders)
    assert task.state == "waiting"


def test_what_is_asked_is_refused_of_unknown_ones_and_those_that_are_over(folder: Path) -> None:
    store = BackfillStore(folder)
    with pytest.raises(RefusedError, match="there is no request 7"):
        store.control("7", "cancel")
    id = store.submit(ORDERS)
    in_hand(store, id)
    store.control(id, "cancel")
    with pytest.raises(RefusedError, match="is being cancelled"):
        store.control(id, "resume")
    store.next()
    with pytest.raises(RefusedError, match="has already ended: cancelled"):
        store.control(id, "pause")


def test_it_is_told_as_over_only_once_that_is_durable(folder: Path) -> None:
    store = BackfillStore(folder)
    task = in_hand(store, store.submit(ORDERS))
    task.state, task.error = "failed", "the table is gone"
    assert store.statuses()[0].state == "running"
    store.save(task)
    assert (store.statuses()[0].state, store.statuses()[0].error) == ("failed", "the table is gone")
    task.state = "running"
    store.save(task)
    assert BackfillStore(folder).statuses()[0].state == "failed"


def test_keys_are_taken_over_and_removed_with_their_task(folder: Path, tmp_path: Path) -> None:
    listed = tmp_path / "keys"
    assert write_keys(listed, [("1", "a"), b"\x00\xff", ("2", "")]) == 3
    store = BackfillStore(folder)
    id = store.submit(BackfillRequest("public.orders", keys=str(listed), reason="repair"))
    listed.unlink()
    task = BackfillStore(folder).next()
    assert task is not None
    assert task.estimate == 3
    assert stat.S_IMODE(Path(task.request.keys).stat().st_mode) == 0o600
    assert list(read_keys(Path(task.request.keys), done=1)) == [b"\x00\xff", ("2", "")]
    store.control(id, "cancel")
    assert sorted(path.name for path in folder.iterdir()) == [f"{id}.json"]


def test_a_list_that_is_no_file_is_refused_and_leaves_nothing(folder: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    store = BackfillStore(folder)
    for name in ("pipe", "link", "missing", "."):
        with pytest.raises(StateFailed, match=r"the backfill request for public.orders can't be stored: \w"):
            store.submit(BackfillRequest("public.orders", keys=str(tmp_path / name)))
    assert list(folder.iterdir()) == []
    assert store.statuses() == ()


def test_lists_without_a_task_are_removed(folder: Path) -> None:
    BackfillStore(folder).submit(ORDERS)
    (folder / "2-orders.keys").write_text('["1"]\n')
    (folder / "2-orders.json.partial").write_text("{")
    BackfillStore(folder)
    assert [path.name for path in folder.iterdir()] == ["1-orders.json"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"\xff",
        b'{"id": "1-orders"}',
        b'{"id": "1-orders", "request": {}}',
        b'{"id": "1-orders", "request": {"table": 7}}',
        b'{"id": "1-orders", "request": {"table": "t"}, "rows": "many"}',
        b'{"id": "1-orders", "request": {"table": "t"}, "after": 7}',
        b'{"id": "1-orders", "request": {"table": "t"}, "state": "unheard of"}',
        b'{"id": "2-users", "request": {"table": "t"}}',
    ],
)
def test_a_damaged_file_is_one_task_that_failed(folder: Path, content: bytes) -> None:
    store = BackfillStore(folder)
    id, users = store.submit(ORDERS), store.submit(USERS)
    (folder / f"{id}.json").write_bytes(content)
    for _ in range(2):
        store = BackfillStore(folder)
        failed, waiting = store.statuses()
        assert (failed.id, failed.state) == (id, "failed")
        assert "is damaged" in failed.error
        assert failed.hint
        assert waiting.id == users
        in_hand(store, users)
    assert (folder / f"{id}.json.damaged").read_bytes() == content


def test_a_task_whose_keys_are_gone_fails(folder: Path, tmp_path: Path) -> None:
    write_keys(tmp_path / "keys", [("1",)])
    id = BackfillStore(folder).submit(BackfillRequest("public.orders", keys=str(tmp_path / "keys")))
    (folder / f"{id}.keys").unlink()
    store = BackfillStore(folder)
    assert store.next() is None
    assert "is missing" in store.statuses()[0].error


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b'["1"]\n[]\n', "line 2 is not a key"),
        (b'["1"]\n[1]\n', "line 2 is not a key"),
        (b'["1"]\n{"raw": "?"}\n', "line 2 is not a key"),
        (b'["1"]\n{"raw": 7}\n', "line 2 is not a key"),
        (b'["1"]\n"1"\n', "line 2 is not a key"),
        (b'["1"]\n["2"]', "line 2 is truncated"),
        (b'["1"]\n\xff\n', "it is not valid UTF-8"),
    ],
)
def test_a_damaged_list_is_told(tmp_path: Path, content: bytes, what: str) -> None:
    (tmp_path / "keys").write_bytes(content)
    with pytest.raises(StateFailed, match=f"is damaged: {what}"):
        list(read_keys(tmp_path / "keys"))


def test_only_the_newest_that_are_over_are_kept_and_no_id_comes_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ended tasks are dropped only after their clients have had time to see the result."""
    monkeypatch.setattr("bwtui.relay.history.backfill_store.KEPT_SECONDS", 0.0)
    store = BackfillStore(folder)
    first = store.submit(USERS)
    ids = [first]
    for _ in range(KEPT + 5):
        ids.append(store.submit(ORDERS))
        store.control(ids[-1], "cancel")
    for _ in range(2):
        assert [status.id for status in store.statuses()] == [first, *ids[-KEPT:]]
        store = BackfillStore(folder)
        assert [status.id for status in store.statuses()] == [first, *ids[-KEPT:]]
        ids.append(store.submit(ORDERS))
        store.control(ids[-1], "cancel")
    assert len(set(ids)) == len(ids)
    assert len(list(folder.iterdir())) == KEPT + 1


def test_what_was_not_sent_is_kept_until_the_ledger_records_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bwtui.relay.history.backfill_store.KEPT_SECONDS", 0.0)
    store = BackfillStore(folder)
    joined = store.submit(BackfillRequest("public.users", reason="joined"))
    store.control(joined, "cancel")

    def forget() -> None:
        for _ in range(KEPT + 5):
            store.control(store.submit(ORDERS), "cancel")

    forget()
    assert [one.id for one in BackfillStore(folder).unnoted()] == [joined]
    store.note(joined)
    assert store.unnoted() == BackfillStore(folder).unnoted() == []
    forget()
    assert BackfillStore(folder).task(joined) is None


def test_a_new_slot_owes_nothing_of_a_former_one(folder: Path) -> None:
    store = BackfillStore(folder)
    store.control(store.submit(BackfillRequest("public.users", reason="joined")), "cancel")
    store.forget_firsts(())
    assert BackfillStore(folder).unnoted() == []


def test_a_folder_that_can_not_be_used_is_told(folder: Path) -> None:
    folder.parent.mkdir()
    folder.write_text("")
    store = BackfillStore(folder)
    with pytest.raises(StateFailed, match=r"the backfill request for public.orders can't be stored"):
        store.submit(ORDERS)


def test_what_is_asked_from_other_threads_is_not_overwritten(folder: Path) -> None:
    """The main thread saves continuously while other threads submit and cancel tasks."""
    store = BackfillStore(folder)
    asked: list[str] = []
    failures: list[BaseException] = []

    def ask(table: str) -> None:
        try:
            for number in range(10):
                # Each is a different table: a task in progress stays in that state until its chunk ends.
                id = store.submit(BackfillRequest(f"{table}_{number}"))
                store.control(id, "pause")
                store.control(id, "resume")
                store.control(id, "cancel")
                asked.append(id)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=ask, args=(f"public.t{n}",)) for n in range(3)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        task = store.next()
        if task is not None:
            task.state = "running"
            for _ in range(3):
                task.chunks += 1
                store.save(task)
    assert failures == []
    assert store.next() is None
    for one in (store, BackfillStore(folder)):
        assert {status.state for status in one.statuses()} == {"cancelled"}
    assert len(set(asked)) == 30


def test_a_cancel_that_comes_while_progress_is_written_holds(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cancel arrives while `save` writes text that it has already made."""
    store = BackfillStore(folder)
    id = store.submit(ORDERS)
    task = in_hand(store, id)
    asking: list[threading.Thread] = []

    def slow(path: Path, content: str) -> None:
        if not asking:
            asking.append(threading.Thread(target=store.control, args=(id, "cancel")))
            asking[0].start()
            asking[0].join(0.1)
        write_durably(path, content)

    monkeypatch.setattr("bwtui.relay.history.backfill_store.write_durably", slow)
    store.save(task)
    asking[0].join()
    assert json.loads((folder / f"{id}.json").read_text())["wanted"] == "cancel"
    store.save(task)
    assert BackfillStore(folder).statuses()[0].state == "cancelled"


def test_a_list_that_is_copied_is_nobody_elses_from_the_beginning(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes: list[int] = []
    copy = shutil.copyfile

    def other_file_system(*_: object) -> None:
        raise OSError(errno.EXDEV, "another file system")

    def copied(source: Path, target: Path) -> None:
        modes.append(stat.S_IMODE(target.stat().st_mode))
        copy(source, target)

    monkeypatch.setattr(os, "link", other_file_system)
    monkeypatch.setattr(shutil, "copyfile", copied)
    keys = tmp_path / "keys"
    write_keys(keys, iter([("1",)]))
    store = BackfillStore(folder)
    id = store.submit(BackfillRequest("public.orders", keys=str(keys)))
    assert modes == [0o600]
    assert list(read_keys(folder / f"{id}.keys")) == list(read_keys(keys))


@pytest.fixture
def asking(tmp_path: Path) -> BackfillRequests:
    """Requests to a relay of two tables, one of which is not in a publication."""
    report = RunState()
    report.table("public.orders")
    report.table("public.users")
    report.not_captured = ("public.users",)
    return BackfillRequests(BackfillStore(tmp_path), report)


def test_a_table_of_the_relay_is_taken(asking: BackfillRequests) -> None:
    id = asking.submit(BackfillRequest("public.orders", where="id > 7"))
    assert asking.control(id, "pause").state == "paused"


def test_before_tables_are_known_any_is_taken(tmp_path: Path) -> None:
    """This is the state while the relay waits for PostgreSQL."""
    assert (
        BackfillRequests(BackfillStore(tmp_path), RunState()).submit(BackfillRequest("public.orders"))
        == "1-orders"
    )


@pytest.mark.parametrize(
    ("wanted", "message", "hint"),
    [
        (BackfillRequest("public.order"), "the relay does not capture table public.order", "public.orders"),
        (BackfillRequest("x"), "the relay does not capture table x", "lists the captured tables"),
        (BackfillRequest("public.users"), "public.users is not captured", "doctor"),
        (BackfillRequest("public.orders", where=" \n"), "the condition is empty", "SQL expression"),
        (BackfillRequest("public.orders", where="a\0b"), "the condition is empty", "SQL expression"),
        (BackfillRequest("public.orders", where="a", keys="/b"), "mutually exclusive", "one of them"),
    ],
)
def test_what_can_not_be_is_refused(
    asking: BackfillRequests, wanted: BackfillRequest, message: str, hint: str
) -> None:
    with pytest.raises(RefusedError, match=message) as refused:
        asking.submit(wanted)
    assert hint in refused.value.hint
