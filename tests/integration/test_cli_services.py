"""``bwtui slots`` and ``bwtui doctor`` on a real server."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg2
import pytest
from click.testing import CliRunner

from bwtui.cli import slots
from bwtui.cli.main import cli
from bwtui.compiled import load
from bwtui.relay.healing.heal import HealStateStore
from bwtui.relay.history.slot_checkpoint import SlotCheckpointStore
from bwtui.relay.process.lock import RelayLock
from bwtui.sandbox.sandbox import ServiceAddresses
from bwtui.sink.topics import TopicAdmin
from bwtui.state_folder import state_folder
from tests.proxy import address_of, way_to

pytestmark = pytest.mark.services


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the configuration and variables of the user who runs the tests."""
    for name in [name for name in os.environ if name.startswith("BWTUI_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("BWTUI_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def session(database: str) -> Iterator[Any]:
    """A cursor on the test's database."""
    with closing(psycopg2.connect(database)) as connection:
        connection.autocommit = True
        with connection.cursor() as cursor:
            yield cursor


@pytest.fixture
def slot(session: Any, database: str) -> str:
    """A pgoutput slot in the test's database, with a unique name."""
    name = "s" + database.rpartition("_")[2]
    session.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", [name])
    return name


def invoke(*args: str, stdin: str = "") -> tuple[int, str, str]:
    """Run a command; return its exit code, stdout and stderr."""
    result = CliRunner().invoke(cli, list(args), prog_name="bwtui", input=stdin)
    return result.exit_code, result.stdout, result.stderr


def doctor(*args: str) -> tuple[int, str, str]:
    """Run ``bwtui doctor`` in a separate process, because it keeps connections open to the end."""
    code = "from bwtui.cli.main import main; main()"
    ran = subprocess.run(
        [sys.executable, "-c", code, "doctor", *args],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    return ran.returncode, ran.stdout, ran.stderr


def listed(database: str) -> dict[str, dict[str, Any]]:
    """Return the slots that ``slots list --json`` shows, by name."""
    code, out, err = invoke("slots", "list", "-d", database, "--json")
    assert (code, err) == (0, "")
    return {found["name"]: found for found in json.loads(out)}


def test_doctor_sees_a_pooler_that_refuses_replication(services: ServiceAddresses, database: str) -> None:
    """Ordinary sessions pass through the pooler, so all other checks pass."""
    with way_to(address_of(services.postgres), "postgres") as way:
        url = urlsplit(database)
        login = url.netloc.rpartition("@")[0]
        dsn = url._replace(netloc=f"{login}@{way.address}", query="sslmode=disable").geturl()
        ends = ("-d", dsn, "-b", services.broker, "-r", services.schema_registry, "--json")
        code, out, err = doctor(*ends)
        assert code == 0, out + err
        way.refuses_replication = True
        code, out, _ = doctor(*ends)
    assert code
    (failed,) = [one for one in json.loads(out)["checks"] if one["result"] == "failed"]
    assert failed["name"] == "replication session"
    assert "unsupported startup parameter: replication" in failed["message"]
    assert "connection pooler" in failed["hint"]


def test_slots_are_listed(database: str, slot: str) -> None:
    found = listed(database)[slot]
    assert found["plugin"] == "pgoutput"
    assert (found["active"], found["wal_status"], found["temporary"]) == (False, "reserved", False)
    assert isinstance(found["retained_wal_bytes"], int)
    code, out, _ = invoke("slots", "list", "-d", database)
    assert code == 0
    assert any(
        line.split()[:4] == [slot, "pgoutput", database.rpartition("/")[2], "no"] for line in out.splitlines()
    )


def test_a_slot_is_dropped_once_its_name_is_typed(
    database: str, slot: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, _, err = invoke("slots", "drop", slot, "-d", database)
    assert (code, err.splitlines()[1]) == (2, "hint: add --yes to drop it without confirmation")
    monkeypatch.setattr(slots, "_has_terminal", lambda: True)
    code, _, err = invoke("slots", "drop", slot, "-d", database, stdin="something\n")
    assert code == 2
    assert "the answer was not the slot's name, so nothing was dropped" in err
    assert slot in listed(database)
    code, out, _ = invoke("slots", "drop", slot, "-d", database, stdin=f"{slot}\n")
    assert (code, out.splitlines()[-1]) == (0, f"slot {slot} dropped")
    assert slot not in listed(database)


def test_the_publication_of_a_dropped_slot_is_named(database: str, slot: str) -> None:
    with closing(psycopg2.connect(database)) as session, session.cursor() as cursor:
        session.autocommit = True
        cursor.execute(f'create publication "bwtui_{slot}"')
        code, out, _ = invoke("slots", "drop", slot, "-d", database, "--yes")
        assert code == 0
        said, _, statement = out.splitlines()[-1].partition(", run: ")
        assert said == f"publication bwtui_{slot} remains; if no relay is to use it again"
        cursor.execute(statement)


def test_a_slot_is_dropped_unasked(database: str, slot: str) -> None:
    code, out, err = invoke("slots", "drop", slot, "-d", database, "--yes", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["dropped"]["name"] == slot


def test_a_relay_forgets_the_slot_that_was_dropped_even_behind_its_back(
    database: str, slot: str, session: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BWTUI_STATE_HOME", str(tmp_path))
    RelayLock.acquire("shop").release()
    session.execute("select system_identifier::text, current_database() from pg_control_system()")
    system, name = session.fetchone()
    SlotCheckpointStore(tmp_path / "shop", system, name, slot).remember(77)
    SlotCheckpointStore(tmp_path / "shop", system, name, "another").remember(77)
    session.execute("select pg_drop_replication_slot(%s)", [slot])
    code, out, err = invoke("slots", "drop", slot, "-d", database, "--yes")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        f"slot {slot} was already missing",
        "deleted the checkpoint of relay shop: its next start takes a new snapshot",
    ]
    assert SlotCheckpointStore(tmp_path / "shop", system, name, slot).last is None
    assert SlotCheckpointStore(tmp_path / "shop", system, name, "another").last is not None
    assert invoke("slots", "drop", slot, "-d", database, "--yes")[0] == 2


def test_a_drop_that_is_killed_leaves_no_heal_without_its_slot(
    database: str, slot: str, session: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pending heal would let the next start create the slot without a snapshot."""
    RelayLock.acquire("shop").release()
    session.execute("select system_identifier::text, current_database() from pg_control_system()")
    identity = (*session.fetchone(), slot)
    folder = state_folder("shop")
    SlotCheckpointStore(folder, *identity).remember(77)
    HealStateStore(folder, identity).begin("it was gone")

    def killed(memory: SlotCheckpointStore) -> None:
        raise SystemExit(137)

    with monkeypatch.context() as patch:
        patch.setattr(SlotCheckpointStore, "forget", killed)
        assert invoke("slots", "drop", slot, "-d", database, "--yes")[0] == 137
    assert HealStateStore(folder, identity).status is None
    assert invoke("slots", "drop", slot, "-d", database, "--yes")[0] == 0
    assert SlotCheckpointStore(folder, *identity).last is None


def test_a_slot_that_is_not_there_names_the_nearest(database: str, slot: str) -> None:
    code, _, err = invoke("slots", "drop", slot + "x", "-d", database, "--yes")
    assert (code, err) == (2, f"bwtui: error: slot {slot}x does not exist\nhint: did you mean {slot}?\n")


def test_an_active_slot_is_not_dropped(database: str, slot: str) -> None:
    from bwtui.source.raw_session import connect_raw

    reader = connect_raw(database)
    reader.exec_(
        f"START_REPLICATION SLOT {slot} LOGICAL 0/0 (proto_version '1', publication_names 'p')".encode()
    )
    try:
        code, _, err = invoke("slots", "drop", slot, "-d", database, "--yes")
        assert code == 2
        assert f"slot {slot} is in use" in err
    finally:
        reader.finish()


def test_an_unreachable_server_is_exit_code_4() -> None:
    code, out, err = invoke("slots", "list", "-d", "host=127.0.0.1 port=1 password=hunter2")
    assert (code, out) == (4, "")
    assert len(err.splitlines()) == 2
    assert "hunter2" not in err


def test_doctor_finds_everything_fine(
    database: str, services: ServiceAddresses, session: Any, tmp_path: Path
) -> None:
    session.execute("create table a (id int primary key)")
    args = ["-d", database, "-b", services.broker, "-r", services.schema_registry]
    code, out, err = doctor(*args)
    assert (code, err) == (0, "")
    assert "ok  wal_level: logical" in out
    code, out, _ = doctor(*args, "--json")
    found = json.loads(out)
    assert code == 0
    assert found["ok"] is True
    assert {check["result"] for check in found["checks"]} == {"ok"}
    (encoding,) = [check["message"] for check in found["checks"] if check["name"] == "encoding"]
    assert encoding.startswith("by the C extension" if load() is not None else "in Python")
    # The current folder is searched first; this package belongs to a different version.
    (tmp_path / "bwtui_compiled").mkdir()
    (tmp_path / "bwtui_compiled" / "__init__.py").write_text("ABI_VERSION = 0")
    code, out, _ = doctor(*args)
    assert code == 0
    assert "ok  encoding: in Python" in out
    assert "  !   encoding: " in out
    assert "pip install './packaging/compiled[checksum]'" in out


def test_a_relay_reports_a_c_extension_of_a_different_version(
    database: str, services: ServiceAddresses, session: Any, tmp_path: Path
) -> None:
    session.execute("create table a (id int primary key)")
    (tmp_path / "bwtui_compiled").mkdir()
    (tmp_path / "bwtui_compiled" / "__init__.py").write_text("ABI_VERSION = 0")
    slot = "s" + database.rpartition("_")[2]
    to = ["-d", database, "-b", services.broker, "-r", services.schema_registry, "-s", slot]
    command = [sys.executable, "-m", "bwtui", "connect", *to, "-p", slot, "--headless", "--until-caught-up"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr.count("ABI version 0") == 1, ran.stderr
    assert "pip install './packaging/compiled[checksum]'" in ran.stderr


def test_doctor_says_how_to_mend(database: str, services: ServiceAddresses, session: Any) -> None:
    session.execute("create table unkeyed (x int)")
    args = ["-d", database, "-b", "127.0.0.1:1", "-r", services.schema_registry, "--json"]
    code, out, err = doctor(*args)
    checks = {check["name"]: check for check in json.loads(out)["checks"]}
    assert code == 2, "the first precondition that does not hold sets it"
    assert "2 of " in err
    assert "public.unkeyed" in checks["tables are keyed"]["message"]
    assert "-u" in checks["tables are keyed"]["hint"]
    assert checks["Kafka"]["exit_code"] == 4
    assert checks["schema registry"]["result"] == "ok"


def test_doctor_finds_a_compacted_topic_of_a_table_without_a_key(
    database: str, services: ServiceAddresses, session: Any
) -> None:
    session.execute("create table logs (x int)")
    prefix = database.rpartition("_")[2]
    TopicAdmin({"bootstrap.servers": services.broker}, 1_000_000).ensure(f"{prefix}.logs", keyed=True)
    args = ["-d", database, "-b", services.broker, "-r", services.schema_registry, "-u"]
    code, out, _ = doctor(*args, "-p", prefix)
    assert code == 2
    assert (
        f"FAIL  topics suit the tables: topic {prefix}.logs is compacted, but public.logs has no key" in out
    )
    assert f"set cleanup.policy=delete on topic {prefix}.logs" in out
    code, out, _ = doctor(*args, "-p", f"{prefix}_new")
    assert code == 0
    assert "ok  topics suit the tables: no conflict in 1 topic" in out
    assert out.endswith("start with 'bwtui connect' and the same options\n")


def test_doctor_without_a_server_still_checks_the_other_ends(services: ServiceAddresses) -> None:
    args = ["-d", "host=127.0.0.1 port=1", "-b", services.broker, "-r", services.schema_registry]
    code, out, _ = doctor(*args, "--json")
    results = [check["result"] for check in json.loads(out)["checks"]]
    assert (code, results) == (4, ["failed", "skipped", "ok", "ok", "skipped", "ok"])
