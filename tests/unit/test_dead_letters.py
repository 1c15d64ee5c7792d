"""`bwtui dead-letters` without services: its selection, requests, recorded actions and output."""

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from bwtui.cli.main import cli
from bwtui.errors import RowError
from bwtui.model.backfill import BackfillRequest, BackfillStatus
from bwtui.model.delivery import DeliverySpan
from bwtui.relay.dead_letters.letters import (
    NAME,
    DeadLetterAction,
    DeadLetterActionLog,
    dead_letter_state,
    settled,
)
from bwtui.relay.dead_letters.retry import plan
from bwtui.relay.history.backfill_store import FOLDER, BackfillStore, read_keys
from bwtui.relay.rows.policy import RowPolicy
from bwtui.relay.serving.control_server import ControlServer
from bwtui.relay.state.run_state import RunState, TableCounters
from bwtui.settings import RelaySettings
from bwtui.sink.dead_letters import (
    ENCODED,
    ChangeIdentity,
    DeadLetter,
    DeadLetterFile,
    DeadLetterWriter,
    DroppedRow,
    letter_id,
)
from bwtui.state_folder import LOCK_NAME
from tests.faults.doubles import MemorySink
from tests.unit.relay_double import DoubleEngine
from tests.waiting import eventually

ORDERS = "public.orders"
Fields = tuple[bytes | None, ...]


@pytest.fixture
def letters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DeadLetterWriter:
    """The dead letters of a relay that does not run."""
    monkeypatch.setenv("BWTUI_STATE_HOME", str(tmp_path))
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / LOCK_NAME).touch()
    return DeadLetterWriter(tmp_path / "one")


@pytest.fixture
def engine(letters: DeadLetterWriter) -> Iterator[DoubleEngine]:
    """The relay, which runs but never processes requests."""
    engine = DoubleEngine(RelaySettings(name="one"))
    with ControlServer("one", engine):
        yield engine


def keep(
    letters: DeadLetterWriter,
    after: Fields | None,
    before: Fields | None = None,
    *,
    operation: str = "update",
    table: str = ORDERS,
    key: tuple[str, ...] = ("id",),
    columns: tuple[str, ...] = ("id", "body"),
    xid: int = 7,
) -> str:
    """Drop a row; return its dead letter's id."""
    row = DroppedRow(table, "orders", operation, ChangeIdentity(1, 1, xid), columns, before, after, key)
    letters.keep(letters.letter(row, "the message is too large", "RowTooLarge"))
    return read(letters)[-1].id


def whole(letters: DeadLetterWriter) -> DeadLetterFile:
    file = DeadLetterFile(letters.path, lambda _: ("id",))
    file.read()
    return file


def read(letters: DeadLetterWriter) -> list[DeadLetter]:
    return whole(letters).letters


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["dead-letters", *arguments], prog_name="bwtui")


def states(*arguments: str) -> dict[str, str]:
    lines = run("list", "--all", "--json", *arguments).stdout.splitlines()
    return {one["id"]: one["state"] for one in map(json.loads, lines)}


# -- requests ------------------------------------------------------------------------------------------------


def test_each_key_is_asked_for_once_with_the_one_that_its_row_had_before(letters: DeadLetterWriter) -> None:
    keep(letters, (b"1", b"x"))
    keep(letters, (b"1", b"y"), (b"1", b"x"))
    keep(letters, (b"3", b"y"), (b"2", None))
    keep(letters, None, (b"4", b"x"), operation="delete")
    keep(letters, (b"7", b"b", b"a"), table="public.two", columns=("x", "b", "a"), key=("a", "b"))
    made = plan(read(letters))
    assert [(one.table, one.key_columns, one.keys, len(one.letters)) for one in made.requests] == [
        (ORDERS, ("id",), (("1",), ("3",), ("2",), ("4",)), 4),
        # The order is that of the table's columns, as the relay has them.
        ("public.two", ("b", "a"), (("b", "a"),), 1),
    ]
    assert made.refused == {}


@pytest.mark.parametrize(
    ("keeps", "why"),
    [
        (lambda to: keep(to, (b"x",), columns=("body",), key=()), "it has no key"),
        (
            lambda to: keep(to, None),
            "it has no key, because its table has none or the dead letter lacks its row",
        ),
        (lambda to: keep(to, (None, b"x")), "its key contains NULL"),
        (lambda to: keep(to, (b"\xff", b"x")), "its key contains bytes that are not valid UTF-8"),
        (
            lambda to: keep(to, (b"AQ==", b"AQ=="), columns=ENCODED, key=()),
            "it holds only the encoded message",
        ),
        (lambda to: keep(to, None, operation="truncate"), "a TRUNCATE has no row"),
    ],
)
def test_what_names_no_row_is_refused_with_the_way_out(
    letters: DeadLetterWriter, keeps: Callable[[DeadLetterWriter], str], why: str
) -> None:
    keeps(letters)
    made = plan(read(letters))
    assert made.requests == []
    (told,) = made.refused
    assert told.startswith(why)
    assert "'bwtui " in told
    ended = run("retry", "--all")
    assert (ended.exit_code, ended.stdout) == (2, "")
    assert f"error: 1 letter can't be sent by key\nhint: {told}" in ended.stderr


def test_letters_from_before_a_table_got_another_key_are_left_out(letters: DeadLetterWriter) -> None:
    keep(letters, (b"1", b"x"), key=("body",))
    keep(letters, (b"1", b"x"))
    made = plan(read(letters))
    assert [one.key_columns for one in made.requests] == [("id",)]
    assert [why.partition(";")[0] for why in made.refused] == [
        "the key of public.orders was (body), but newer dead letters have a different key"
    ]


def test_a_letter_of_a_table_that_was_refused_as_a_whole_takes_the_key_of_now(
    letters: DeadLetterWriter,
) -> None:
    keep(letters, (b"1", b"x"), key=())
    assert [letter.key for letter in read(letters)] == [(("id", "1"),)]


# -- recorded actions ----------------------------------------------------------------------------------------


def test_a_torn_line_takes_nothing_else_with_it(letters: DeadLetterWriter) -> None:
    handled = DeadLetterActionLog("one")
    handled.add([DeadLetterAction("drop", ("a", "b"), text="first")])
    with handled.path.open("ab") as out:
        out.write(b'{"what": "drop", "letters": ["c"], "ti')
    assert set(handled.read()) == {"a", "b"}
    handled.add([DeadLetterAction("drop", ("d",)), DeadLetterAction("sent", ("a",), task="1-orders")])
    assert [note.what for note in handled.read()["a"]] == ["drop", "sent"]
    assert set(handled.read()) == {"a", "b", "d"}
    assert handled.path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "line",
    [b"5", b"[]", b"{}", b'{"what": "x", "letters": []}', b'{"what": "drop", "letters": [1]}', b"\xff"],
)
def test_what_is_no_note_is_left_out(letters: DeadLetterWriter, line: bytes) -> None:
    handled = DeadLetterActionLog("one")
    handled.path.write_bytes(line + b"\n")
    handled.add([DeadLetterAction("drop", ("a",))])
    assert list(handled.read()) == ["a"]


TASK = BackfillStatus("1-orders", ORDERS, "retry", requested=5.0)


@pytest.mark.parametrize(
    ("note", "task", "state", "says"),
    [
        (DeadLetterAction("drop", ("a",), text="a test"), None, "dropped", "a test"),
        (
            DeadLetterAction("retry", ("a",), task="1-orders", requested=5.0),
            TASK,
            "asked",
            "1-orders waiting for its turn",
        ),
        # The task is missing; in a recreated state folder, a later task can have its name.
        (
            DeadLetterAction("retry", ("a",), task="1-orders", requested=5.0),
            None,
            "open",
            "whose result is unknown",
        ),
        (
            DeadLetterAction("retry", ("a",), task="1-orders", requested=4.0),
            TASK,
            "open",
            "whose result is unknown",
        ),
    ],
)
def test_how_a_letter_stands(
    note: DeadLetterAction, task: BackfillStatus | None, state: str, says: str
) -> None:
    how = dead_letter_state([note], {} if task is None else {task.id: task})
    assert (how.state, says in how.detail) == (state, True)


def test_a_relay_that_does_not_say_is_not_taken_for_one_that_has_sent_nothing() -> None:
    assert dead_letter_state([DeadLetterAction("retry", ("a",), task="1-orders")], None).state == "asked"


def test_what_is_over_is_noted_once(letters: DeadLetterWriter) -> None:
    first, second = keep(letters, (b"1", b"x")), keep(letters, (b"3", b"x"), (b"2", None))
    asked = DeadLetterAction("retry", (first, second), task="1-orders", requested=5.0)
    # Rows of the stream, of a different table and of a different key.
    keep(letters, (b"1", b"y"))
    keep(letters, (b"1", b"y"), operation="backfill", table="public.two", xid=0)
    keep(letters, (b"9", b"y"), operation="backfill", xid=0)
    new = keep(letters, (b"2", b"y"), operation="backfill", xid=0)
    notes = {first: [asked], second: [asked]}
    assert settled(read(letters), notes, {"1-orders": TASK}, whole(letters)) == []
    made = settled(read(letters), notes, {"1-orders": replace(TASK, state="done")}, whole(letters))
    assert [(one.what, one.letters, one.new) for one in made] == [
        ("sent", (first,), ()),
        ("refused", (second,), (new,)),
    ]
    over = {"1-orders": replace(TASK, state="failed", error="it is gone")}
    (failed,) = settled(read(letters), notes, over, whole(letters))
    assert (failed.what, failed.letters, failed.text) == ("failed", (first, second), "it is gone")
    assert dead_letter_state([asked, failed], {}).is_open


# -- the command ---------------------------------------------------------------------------------------------


def test_they_are_listed_by_what_is_chosen(letters: DeadLetterWriter) -> None:
    keep(letters, (b"1", b"secret"))
    other = keep(letters, (b"2", b"x"), table="sales.items")
    ended = run("list")
    assert ended.exit_code == 1
    head, first, second, _, last, hint = ended.stdout.splitlines()
    assert head.split() == ["ID", "DROPPED", "TABLE", "CHANGE", "KEY", "STATE", "REASON"]
    assert "id=…" in first
    assert "secret" not in ended.stdout
    assert last == f"2 letters open in {letters.path}"
    assert "'bwtui dead-letters drop'" in hint
    assert "id=1" in run("list", "--show-values").stdout
    assert list(states("--table", "sales.*")) == [other]
    assert list(states("--table", "orders")) != [other]
    assert len(states("--reason", "TooLarge$")) == 2
    assert states("--reason", "nothing") == {}
    assert run("list", "--since", "2100-01-01").exit_code == 0
    assert second.split()[0] == other


def test_values_are_shown_where_they_are_asked_for(letters: DeadLetterWriter) -> None:
    id = keep(letters, (b"1", b"secret\x1b"), (b"2", None))
    masked, shown = run("show", id), run("show", id[:4], "--show-values")
    assert "secret" not in masked.stdout
    assert "values are masked" in masked.stdout
    assert "body  secret\\x1b" in shown.stdout
    assert "old key   id=2" in shown.stdout
    told = json.loads(run("show", id, "--json", "--show-values").stdout)
    assert (told["after"], told["before"]) == ({"id": "1", "body": "secret\x1b"}, {"id": "2", "body": None})


def test_one_is_set_aside_and_taken_up_again(letters: DeadLetterWriter, engine: DoubleEngine) -> None:
    id = keep(letters, (b"1", b"x"))
    before = letters.path.read_bytes()
    assert "would be set aside" in run("drop", "--all", "--dry-run").stdout
    assert states() == {id: "open"}
    assert "1 letter is set aside" in run("drop", id, "--note", "a test row").stdout
    assert "0 letters are set aside; 1 were set aside before" in run("drop", id).stdout
    assert (states(), run("list").exit_code) == ({id: "dropped"}, 0)
    assert letters.path.read_bytes() == before
    assert "set aside: a test row, by" in run("show", id).stdout
    assert "no dead letter is open" in run("retry", "--all").stdout
    assert run("retry", id, "--no-wait").exit_code == 0
    assert states() == {id: "asked"}


def test_the_relay_is_asked_for_keys_and_the_end_is_told(
    letters: DeadLetterWriter, engine: DoubleEngine
) -> None:
    id = keep(letters, (b"1", b"x"))
    lists: list[list[object]] = []
    submit = engine.backfill

    def backfill(request: BackfillRequest) -> str:
        assert (request.reason, request.key_columns) == ("retry", ("id",))
        lists.append(list(read_keys(Path(request.keys))))
        return submit(request)

    engine.backfill = backfill  # type: ignore[method-assign]

    def work() -> None:
        eventually("it is asked for", lambda: id in DeadLetterActionLog("one").read())
        keep(letters, (b"1", b"x"), operation="backfill", xid=0)
        engine.backfills["1-orders"] = replace(engine.backfills["1-orders"], state="done")

    worker = threading.Thread(target=work)
    worker.start()
    ended = run("retry", "--table", "orders")
    worker.join()
    assert ended.exit_code == 1, ended.stderr
    assert lists == [[("1",)]]
    first, second = states()
    assert f"dead letter {id} was rejected again: its new dead letter: {second}" in ended.stdout
    assert states() == {first: "refused", second: "open"}


def test_each_table_is_asked_for_by_itself(letters: DeadLetterWriter, engine: DoubleEngine) -> None:
    gone = keep(letters, (b"1", b"x"), table="public.gone")
    id = keep(letters, (b"1", b"x"))
    ended = run("retry", "--all", "--no-wait")
    assert ended.exit_code == 2
    assert "the relay does not capture table public.gone" in ended.stderr
    assert "1 key of public.orders, for 1 letter: requested as 1-orders" in ended.stdout
    assert states() == {gone: "open", id: "asked"}


def test_a_relay_that_does_not_run_keeps_what_is_asked_for(letters: DeadLetterWriter, tmp_path: Path) -> None:
    id = keep(letters, (b"1", b"x"))
    ended = run("retry", id)
    assert ended.exit_code == 4
    assert "error: relay one is not running, so request 1-orders waits for its next start" in ended.stderr
    store = BackfillStore(tmp_path / "one" / FOLDER)
    task = store.next()
    assert task is not None
    assert task.request.key_columns == ("id",)
    assert list(read_keys(Path(task.request.keys))) == [("1",)]
    assert states() == {id: "asked"}
    task.state = "done"
    store.save(task)
    assert states() == {id: "sent"}
    # The state is stored, so it no longer depends on the relay's tasks.
    (tmp_path / "one" / FOLDER / "1-orders.json").unlink()
    assert states() == {id: "sent"}


def test_a_clock_that_was_set_back_hides_no_refusal(letters: DeadLetterWriter) -> None:
    first = keep(letters, (b"1", b"x"))
    tomorrow = read(letters)[0].time + 86_400
    asked = DeadLetterAction(
        "retry", (first,), time=tomorrow, task="1-orders", requested=5.0, place=whole(letters).size()
    )
    new = keep(letters, (b"1", b"x"), operation="backfill", xid=0)
    done = {"1-orders": replace(TASK, state="done")}
    (note,) = settled(read(letters), {first: [asked]}, done, whole(letters))
    assert (note.what, note.new) == ("refused", (new,))


def test_a_file_too_long_to_be_read_proves_nothing_sent(
    letters: DeadLetterWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = keep(letters, (b"1", b"x"))
    asked = DeadLetterAction("retry", (first,), task="1-orders", requested=5.0, place=whole(letters).size())
    of_it = read(letters)
    keep(letters, (b"1", b"x"), operation="backfill", xid=0)
    for _ in range(3):
        keep(letters, (b"2", b"x"))
    done = {"1-orders": replace(TASK, state="done")}
    monkeypatch.setattr("bwtui.sink.dead_letters._MOST_LETTERS", 3)
    assert settled(of_it, {first: [asked]}, done, whole(letters)) == []
    monkeypatch.setattr("bwtui.sink.dead_letters._MOST_LETTERS", 20_000)
    monkeypatch.setattr("bwtui.sink.dead_letters._MOST_BYTES", 3 * of_it[0].size)
    assert settled(of_it, {first: [asked]}, done, whole(letters)) == []


def test_a_log_that_can_t_be_written_stops_no_list(letters: DeadLetterWriter) -> None:
    keep(letters, (b"1", b"x"))
    (letters.path.parent / NAME).mkdir()
    ended = run("list")
    assert ended.exit_code == 2
    assert "the action log of dead letters can't be read" in ended.stderr


def test_a_stopped_relay_without_letters_needs_no_name(letters: DeadLetterWriter) -> None:
    assert "0 letters open" in run("list").stdout
    assert "does not exist" in run("show", "0" * 12).stderr
    folder = letters.path.parent.parent / "two"
    folder.mkdir()
    (folder / LOCK_NAME).touch()
    ended = run("list")
    assert (ended.exit_code, "no relay is running" in ended.stderr) == (4, True)
    keep(letters, (b"1", b"x"))
    assert "1 letter open" in run("list").stdout


def test_ids(letters: DeadLetterWriter) -> None:
    ids = [keep(letters, (str(number).encode(), b"x")) for number in range(60)]
    assert len(set(ids)) == 60
    # 60 ids share their first four digits only by chance, so duplicate one.
    text = letters.path.read_text()
    letters.path.write_text(text + text.splitlines()[0] + "\n")
    assert run("show", ids[0]).exit_code == 0
    assert "does not exist" in run("show", "0" * 12).stderr
    assert "is not the id of a dead letter" in run("show", "xyz").stderr


def test_a_row_that_is_read_again_has_one_letter_in_the_topic_as_in_the_file(
    letters: DeadLetterWriter,
) -> None:
    settings, sink = RelaySettings(on_error="log", dead_letter_topic="dead"), MemorySink()
    policy = RowPolicy(settings, RunState(), letters, sink)
    row = DroppedRow(ORDERS, "orders", "update", ChangeIdentity(1, 1, 7), ("id",), None, (b"1",), ("id",))
    route: Any = SimpleNamespace(counters=TableCounters("orders"))
    for _ in range(2):
        policy.refuse(route, row, RowError("it is too large", ""), DeliverySpan())
    sink.poll(0)
    [letter] = read(letters)
    sent = [json.loads(message.value or b"") for _, message in sink.delivered]
    assert [letter_id(one) for one in sent] == [letter.id, letter.id]
