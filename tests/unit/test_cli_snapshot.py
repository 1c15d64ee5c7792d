"""`bwtui snapshot` without a database: its requests to the relay, its waits, and its output."""

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from bwtui.cli.main import cli
from bwtui.errors import ConnectionFailed
from bwtui.model.backfill import BackfillRequest, BackfillStatus
from bwtui.model.backfill_texts import progress_text, share
from bwtui.model.sql import split_qualified
from bwtui.model.status import Status
from bwtui.relay.backfill.chunk_snapshot import ChunkSnapshot
from bwtui.relay.history.backfill_store import FOLDER, BackfillStore
from bwtui.relay.process.lock import RelayLock
from bwtui.relay.serving.control_server import ControlServer
from bwtui.relay.state.run_state import RunState
from bwtui.settings import RelaySettings
from bwtui.state_folder import LOCK_NAME
from tests.unit.relay_double import DoubleEngine
from tests.waiting import eventually

ORDERS = BackfillStatus("1-orders", "public.orders", where="id > 7", state="running", rows=1200, started=1.0)


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DoubleEngine]:
    """The only running relay."""
    monkeypatch.setenv("BWTUI_STATE_HOME", str(tmp_path))
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / LOCK_NAME).touch()
    engine = DoubleEngine(RelaySettings(name="one"))
    with ControlServer("one", engine):
        yield engine


@pytest.fixture
def without_database(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the catalog lookup: tables are used as named."""

    def requests(name: str, tables: tuple[str, ...], where: str, *, unkeyed: bool) -> list[BackfillRequest]:
        return [BackfillRequest(table, where=where, unkeyed=unkeyed) for table in tables]

    monkeypatch.setattr("bwtui.cli.snapshot._requests", requests)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["snapshot", *arguments], prog_name="bwtui")


def test_what_is_sent_again_is_listed(engine: DoubleEngine) -> None:
    assert "no requests" in run("--status").stdout
    engine.backfills["1-orders"] = ORDERS
    lines = run("--status").stdout.splitlines()
    assert lines[0].split() == ["ID", "TABLE", "STATE", "PROGRESS"]
    assert lines[1].split("  ") == ["1-orders", "public.orders where id > 7", "running", "1,200 rows sent"]
    (line,) = run("--status", "--json").stdout.splitlines()
    assert BackfillStatus.from_json(json.loads(line)) == ORDERS


def test_one_is_paused_goes_on_and_is_cancelled(engine: DoubleEngine) -> None:
    engine.backfills["1-orders"] = ORDERS
    assert "paused, 1,200 rows sent" in run("--pause", "1-orders").stdout
    assert json.loads(run("--resume", "1-orders", "--json").stdout)["state"] == "waiting"
    run("--cancel", "1-orders")
    assert engine.backfills["1-orders"].state == "cancelled"
    refused = run("--cancel", "7-users")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "there is no request 7-users" in refused.stderr
    assert "hint: 'bwtui snapshot --status'" in refused.stderr


@pytest.mark.usefixtures("without_database")
def test_it_need_not_be_waited_for(engine: DoubleEngine) -> None:
    ended = run("public.orders", "--where", "id > 7", "--no-wait", "--json")
    assert ended.exit_code == 0
    assert json.loads(ended.stdout)["state"] == "waiting"
    assert engine.backfills["1-orders"].where == "id > 7"


@pytest.mark.usefixtures("without_database")
def test_those_that_were_asked_for_are_named_where_another_is_refused(engine: DoubleEngine) -> None:
    ended = run("public.orders", "public.users")
    assert ended.exit_code == 2
    assert "bwtui: 1-orders was requested" in ended.stderr
    assert "the relay does not capture table public.users" in ended.stderr


@pytest.mark.usefixtures("without_database")
@pytest.mark.parametrize(
    ("last", "code", "says"),
    [
        (BackfillStatus("1-orders", "public.orders", state="done", rows=5, left_out=2), 0, ""),
        (
            BackfillStatus("1-orders", "public.orders", state="failed", error="it is gone", hint="make it"),
            2,
            "bwtui: error: 1-orders: it is gone\nhint: make it",
        ),
        (BackfillStatus("1-orders", "public.orders", state="cancelled"), 2, "1-orders was cancelled"),
    ],
)
def test_it_is_waited_for(engine: DoubleEngine, last: BackfillStatus, code: int, says: str) -> None:
    def work() -> None:
        eventually("it is asked for", lambda: "1-orders" in engine.backfills)
        engine.backfills["1-orders"] = replace(ORDERS, where="")
        engine.backfills["1-orders"] = last

    worker = threading.Thread(target=work)
    worker.start()
    ended = run("public.orders")
    worker.join()
    assert ended.exit_code == code
    assert says in ended.stderr
    assert ended.stdout.splitlines()[1].split()[:3] == ["1-orders", "public.orders", last.state]


@pytest.mark.usefixtures("without_database")
def test_a_relay_that_ends_meanwhile_is_told(engine: DoubleEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter(range(1))

    def status_of(name: str) -> Status:
        if next(looks, None) is not None:
            return Status.from_json(engine.status().to_json())
        raise ConnectionFailed("no relay called one is running", "its last run stopped cleanly")

    monkeypatch.setattr("bwtui.cli.snapshot.status_of", status_of)
    ended = run("public.orders")
    assert ended.exit_code == 4
    assert "the remaining rows of 1-orders are sent when it runs again" in ended.stderr


@pytest.mark.usefixtures("without_database")
def test_ctrl_c_leaves_the_relay_at_it(engine: DoubleEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("bwtui.cli.output.table.time.sleep", interrupt)
    # A hint is one line even on a narrow terminal, so that its command can be copied.
    monkeypatch.setenv("COLUMNS", "20")
    ended = run("public.orders")
    assert ended.exit_code == 130
    assert "interrupted; the relay continues with 1-orders" in ended.stderr
    assert "'bwtui snapshot --cancel 1-orders' cancels it" in ended.stderr
    assert engine.backfills["1-orders"].state == "waiting"


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (BackfillStatus("1", "t"), "waiting for its turn"),
        (
            replace(ORDERS, estimate=50_000, rows_per_second=100),
            "1,200 of about 50.0k rows sent (2%), 100/s, ",
        ),
        (replace(ORDERS, estimate=600), "1,200 rows sent"),
        (replace(ORDERS, state="waiting", chunks=1), "waiting, 1,200 rows sent"),
        (replace(ORDERS, state="paused", estimate=2400), "paused, 1,200 of about 2.40k rows sent (50%)"),
        (replace(ORDERS, state="cancelled", estimate=2400), "cancelled, 1,200 rows sent"),
        (
            replace(ORDERS, state="done", ended=4.0, tombstones=3, left_out=2),
            "1,200 rows and 3 tombstones sent, 2 skipped, because the stream had sent newer ones, in 3.0 s",
        ),
        (replace(ORDERS, state="failed", error="why"), "why"),
    ],
)
def test_how_far_it_is_in_words(status: BackfillStatus, words: str) -> None:
    assert progress_text(status, 10.0).startswith(words)


def test_an_empty_table_is_done() -> None:
    assert share(BackfillStatus("1", "t", state="done", estimate=0)) == 1.0
    assert share(BackfillStatus("1", "t", state="running", estimate=0)) is None


def test_what_a_relay_keeps_that_does_not_run_is_paused_and_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a request itself ends the relay, no relay runs that could cancel it."""
    monkeypatch.setenv("BWTUI_STATE_HOME", str(tmp_path))
    assert run("--status").exit_code == 4
    RelayLock.acquire("one").release()
    for arguments in (["--status", "--relay", "one"], ["--status"]):
        assert run(*arguments).stdout.startswith("no requests")
    assert "1-orders" in run("--pause", "1-orders").stderr
    store = BackfillStore(tmp_path / "one" / FOLDER)
    id = store.submit(BackfillRequest("public.orders"))
    assert "waiting" in run("--status").stdout
    assert "paused" in run("--pause", id).stdout
    assert BackfillStore(tmp_path / "one" / FOLDER).next() is None
    assert json.loads(run("--resume", id, "--json").stdout)["state"] == "waiting"
    assert "cancelled" in run("--cancel", id, "--relay", "one").stdout
    begun = ChunkSnapshot(tmp_path / "one", ("7", "shop", "slot"), store, RunState())
    begun.store_tasks(["public.users", "public.items"])
    assert "public.users" not in run("--status").stdout
    begun.begin(0x10)
    assert "public.users" in run("--status").stdout
    over = run("--cancel", id)
    assert (over.exit_code, "has already ended: cancelled" in over.stderr) == (2, True)
    assert BackfillStore(tmp_path / "one" / FOLDER).next() is None
    # With two relays one has to be named; and a relay that is starting may already work on it.
    RelayLock.acquire("two").release()
    BackfillStore(tmp_path / "two" / FOLDER).submit(BackfillRequest("public.orders"))
    assert "choose one with --relay: one, two" in run("--status").stderr
    lock = RelayLock.acquire("two")
    refused = run("--cancel", "1-orders", "--relay", "two")
    lock.release()
    assert (refused.exit_code, "is starting or ending" in refused.stderr) == (4, True)
    assert run("--cancel", "1-orders", "--relay", "three").exit_code == 4


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("Orders", ("", "orders")),
        ('"Orders"', ("", "Orders")),
        ("""public."Odd ""T'x\"""", ("public", "Odd \"T'x")),
        ('"a.b" . "c.d"', ("a.b", "c.d")),
        ("Ärger$1", ("", "Ärger$1")),
        ("Ä", ("", "Ä")),
        ('"a', None),
        ('a"b"', None),
        ('""', None),
        ("a.b.c", None),
        ("1a", None),
    ],
)
def test_a_name_is_read_as_postgresql_reads_it(text: str, parts: tuple[str, str] | None) -> None:
    assert split_qualified(text) == parts
