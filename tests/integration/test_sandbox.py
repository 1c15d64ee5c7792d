"""The sandbox: real services on loopback, none of which outlives its supervisor."""

import contextlib
import errno
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psycopg2
import pytest
from click.testing import CliRunner
from confluent_kafka import Producer

from bwtui.cli.main import cli
from bwtui.errors import BwtuiError, ConnectionFailed, RefusedError
from bwtui.sandbox.runner import ServiceState
from bwtui.sandbox.sandbox import Sandbox, SandboxStatus, ServiceAddresses
from tests.fix_sandbox import MAJOR

pytestmark = pytest.mark.services
DEADLINE_SECONDS = 60.0


def wait_for(condition: Callable[[], bool], what: str) -> None:
    """Wait until a condition holds; fail the test on a timeout."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        time.sleep(0.02)


def running(pid: int | None) -> bool:
    """Return whether a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def pids_of(sandbox: Sandbox) -> list[int]:
    """Return the ids of the supervisor and the services."""
    return [pid for pid in status_of(sandbox).pids.values() if pid]


def pid_of(sandbox: Sandbox, name: str) -> int:
    """Return the process of a service."""
    pid = status_of(sandbox).pids[name]
    assert pid is not None
    return pid


def status_of(sandbox: Sandbox) -> SandboxStatus:
    """Return the status of a sandbox that must be running."""
    status = sandbox.status()
    assert status is not None
    return status


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Sandbox]:
    """A separate sandbox that is not running yet."""
    sandbox = Sandbox(tmp_path / "sandbox")
    yield sandbox
    sandbox.down(wipe=True)


def test_all_three_answer(services: ServiceAddresses) -> None:
    with closing(psycopg2.connect(services.postgres)) as connection, connection.cursor() as cursor:
        cursor.execute("select current_setting('wal_level')")
        assert cursor.fetchone() == ("logical",)
        # The tests alone turn fsync off, in postgresql.auto.conf.
        cursor.execute("select sourcefile from pg_file_settings where name = 'fsync' and applied")
        assert {Path(file).name for (file,) in cursor.fetchall()} == {"postgresql.auto.conf"}
    delivered: list[object] = []
    producer = Producer({"bootstrap.servers": services.broker})
    producer.produce("sandbox_test", b"value", on_delivery=lambda error, message: delivered.append(error))
    assert producer.flush(30) == 0
    assert delivered == [None]
    with urllib.request.urlopen(f"{services.schema_registry}/subjects", timeout=10) as answer:
        assert isinstance(json.load(answer), list)


def test_listens_on_loopback_only(sandbox: Sandbox, services: ServiceAddresses) -> None:
    status = status_of(sandbox)
    listening = {name: _listening_addresses(pid) for name, pid in status.pids.items() if pid}
    assert listening.pop("supervisor") == set()
    assert all(listening.values()), "every service listens on something"
    assert {address for addresses in listening.values() for address in addresses} <= {
        "0100007F",
        # 127.0.0.1 as an IPv6 address.
        "0000000000000000FFFF00000100007F",
    }


def _listening_addresses(pid: int) -> set[str]:
    inodes = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        # Connections and files are closed meanwhile.
        with contextlib.suppress(FileNotFoundError):
            link = str(entry.readlink())
            if link.startswith("socket:["):
                inodes.add(link[8:-1])
    addresses = set()
    for table in ("tcp", "tcp6", "udp", "udp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[9] in inodes and fields[3] in ("0A", "07"):
                addresses.add(fields[1].rpartition(":")[0])
    return addresses


def test_a_second_up_changes_nothing(sandbox: Sandbox, services: ServiceAddresses) -> None:
    before = status_of(sandbox)
    assert Sandbox(sandbox.folder, MAJOR).up() == services
    assert status_of(sandbox).pids == before.pids


def test_another_postgres_beside_the_running_one_is_refused(
    sandbox: Sandbox, services: ServiceAddresses
) -> None:
    other = 16 if MAJOR != 16 else 18
    with pytest.raises(RefusedError, match=f"is running with PostgreSQL {MAJOR}, not {other}"):
        Sandbox(sandbox.folder, postgres_major=other).up()


def test_passwords_are_for_the_owner_only(sandbox: Sandbox, services: ServiceAddresses) -> None:
    password = services.postgres.partition("@")[0].rpartition(":")[2]
    for folder, _, names in os.walk(sandbox.folder):
        for path in (Path(folder) / name for name in names):
            # Kafka creates and removes files meanwhile.
            with contextlib.suppress(FileNotFoundError):
                if path.is_file() and password.encode() in written(path):
                    assert path.stat().st_mode & 0o077 == 0, path
    for pid in pids_of(sandbox):
        assert password not in Path(f"/proc/{pid}/cmdline").read_text()


def written(path: Path) -> bytes:
    """Return the disk usage of a file: next to nothing for the 10 MB of a Kafka index."""
    parts, end = [], 0
    with path.open("rb") as file:
        while (start := _next_data(file.fileno(), end)) is not None:
            end = os.lseek(file.fileno(), start, os.SEEK_HOLE)
            parts.append(os.pread(file.fileno(), end - start, start))
    return b"\0".join(parts)


def _next_data(fd: int, start: int) -> int | None:
    try:
        return os.lseek(fd, start, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return None
        raise


@pytest.mark.parametrize("name", ["postgres", "kafka", "registry"])
@pytest.mark.variants(1)
def test_one_service_can_be_killed_and_started_again(
    sandbox: Sandbox, services: ServiceAddresses, name: str
) -> None:
    before = status_of(sandbox).pids[name]
    sandbox.kill_service(name)  # type: ignore[arg-type]
    assert not running(before)
    assert status_of(sandbox).services[name].state is ServiceState.STOPPED
    sandbox.start_service(name)  # type: ignore[arg-type]
    status = status_of(sandbox)
    assert status.ready
    assert status.pids[name] != before
    assert status.endpoints == services


@pytest.mark.parametrize("name", ["postgres", "kafka", "registry"])
def test_a_suspended_service_is_not_ready(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The kernel still accepts its connections, and its process has not ended."""
    monkeypatch.setenv("BWTUI_SANDBOX_HOME", str(sandbox.folder))
    pid = status_of(sandbox).pids[name]
    assert pid is not None
    assert not sandbox.silent_services(status_of(sandbox))
    os.kill(pid, signal.SIGSTOP)
    try:
        ran = CliRunner().invoke(cli, ["sandbox", "status", "--json"])
        shown = CliRunner().invoke(cli, ["sandbox", "status"])
    finally:
        os.kill(pid, signal.SIGCONT)
    assert json.loads(ran.stdout)["silent"] == [name]
    assert (ran.exit_code, shown.exit_code) == (4, 4)
    assert f"kill -CONT {pid};" in ran.stderr
    assert "does not answer" in shown.stdout


def test_a_service_that_dies_is_reported_and_not_restarted(
    sandbox: Sandbox, services: ServiceAddresses
) -> None:
    pid = status_of(sandbox).pids["registry"]
    assert pid
    os.kill(pid, signal.SIGKILL)
    wait_for(
        lambda: status_of(sandbox).services["registry"].state is ServiceState.DIED, "the death was noticed"
    )
    assert status_of(sandbox).services["registry"].reason == "it ended by SIGKILL"
    assert Sandbox(sandbox.folder, MAJOR).up() == services
    assert status_of(sandbox).ready


def test_down_keeps_data_and_ports_and_leaves_no_process(own: Sandbox) -> None:
    first = own.up()
    pids = pids_of(own)
    with closing(psycopg2.connect(first.postgres)) as connection, connection.cursor() as cursor:
        cursor.execute("create table kept (id integer primary key)")
        connection.commit()
    schema = json.dumps({"schema": '"string"'}).encode()
    assert _post(f"{first.schema_registry}/subjects/kept-value/versions", schema) == {"id": 1}
    own.down()
    assert not any(running(pid) for pid in pids)
    assert own.status() is None
    with pytest.raises(ConnectionFailed, match="not running"):
        own.services()
    assert own.up() == first
    for name in ("kafka", "registry"):
        command = Path(f"/proc/{pid_of(own, name)}/cmdline").read_text().split("\0")
        # A clean shutdown has left the archive of its classes, if there was none.
        assert sum(word.startswith("-XX:SharedArchiveFile=") and name in word for word in command) == 1
        assert not any("ArchiveClassesAtExit" in word for word in command)
    with closing(psycopg2.connect(first.postgres)) as connection, connection.cursor() as cursor:
        cursor.execute("select count(*) from kept")
        assert cursor.fetchone() == (0,)
    with urllib.request.urlopen(f"{first.schema_registry}/schemas/ids/1", timeout=10) as answer:
        assert json.load(answer)["schema"] == '"string"'
    own.down(wipe=True)
    assert not own.folder.exists()


def _post(url: str, body: bytes) -> object:
    request = urllib.request.Request(url, body, {"Content-Type": "application/vnd.schemaregistry.v1+json"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.load(answer)


def test_kill_9_of_the_supervisor_leaves_no_orphan(own: Sandbox) -> None:
    services = own.up()
    pids = pids_of(own)
    os.kill(status_of(own).supervisor, signal.SIGKILL)
    wait_for(lambda: not any(running(pid) for pid in pids), "every service was gone")
    assert own.status() is None
    assert own.up() == services


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_up_leaves_nothing_running(own: Sandbox, how: signal.Signals) -> None:
    code = (
        "from bwtui.sandbox.sandbox import Sandbox; from pathlib import Path; "
        f"Sandbox(Path({str(own.folder)!r})).up()"
    )
    starter = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
    wait_for(
        lambda: (status := own.status()) is not None and bool(status.pids["kafka"]), "Kafka was starting"
    )
    pids = pids_of(own)
    starter.send_signal(how)
    assert starter.wait(DEADLINE_SECONDS) != 0
    wait_for(lambda: not any(running(pid) for pid in pids), "everything was gone")
    wait_for(lambda: own.status() is None, "the supervisor was gone")


def test_an_attached_sandbox_ends_with_its_starter(own: Sandbox) -> None:
    code = (
        "from bwtui.sandbox.sandbox import Sandbox; from pathlib import Path; import sys; "
        f"Sandbox(Path({str(own.folder)!r})).up(attached=True, disposable=True); "
        "print('up', flush=True); sys.stdin.read()"
    )
    starter = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with starter:
        assert starter.stdout is not None
        assert starter.stdout.readline() == b"up\n"
        pids = pids_of(own)
        starter.kill()
    wait_for(lambda: not any(running(pid) for pid in pids), "everything was gone")
    assert not own.folder.exists(), "it was disposable"


def test_a_service_that_does_not_start_ends_all(own: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    # The Java of every service reads this variable, and refuses to start with an invalid value.
    monkeypatch.setenv("JDK_JAVA_OPTIONS", "--no-such-option")
    with pytest.raises(BwtuiError, match="did not start"):
        own.up()
    assert own.status() is None


@pytest.mark.long
def test_a_heap_that_is_too_small_is_said_plainly(own: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BWTUI_SANDBOX_KAFKA_HEAP", "16m")
    with pytest.raises(BwtuiError, match=r"^Kafka did not start: its heap of 16 MB is full$") as refused:
        own.up()
    assert "Set BWTUI_SANDBOX_KAFKA_HEAP=32m" in str(refused.value.hint)
    assert str(own.folder / "logs" / "kafka.log") in str(refused.value.hint)
    assert own.status() is None
    # The log of that start must not be given as the reason of a later end.
    monkeypatch.setenv("BWTUI_SANDBOX_KAFKA_HEAP", "1G")
    own.up()
    pid = status_of(own).pids["kafka"]
    assert pid and b"-Xmx1024m" in Path(f"/proc/{pid}/cmdline").read_bytes()
    os.kill(pid, signal.SIGKILL)
    wait_for(
        lambda: status_of(own).services["kafka"].reason == "it ended by SIGKILL", "the death was noticed"
    )


def test_the_command_line(sandbox: Sandbox, services: ServiceAddresses) -> None:
    def bwtui(*words: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "BWTUI_SANDBOX_HOME": str(sandbox.folder)}
        command = [sys.executable, "-c", "from bwtui.cli.main import main; main()", "sandbox", *words]
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=60
        )

    answer = json.loads(bwtui("up", "--json", "--postgres", str(MAJOR)).stdout)
    assert (answer["postgres"], answer["broker"], answer["schema_registry"]) == (
        services.postgres,
        services.broker,
        services.schema_registry,
    )
    assert answer["pids"] == status_of(sandbox).pids
    shown = bwtui("status")
    assert shown.returncode == 0
    assert services.broker in shown.stdout
    assert services.postgres not in shown.stdout, "the table masks the password"
    shell = bwtui("env").stdout + 'printf %s "$BWTUI_POSTGRES"'
    assert (
        subprocess.run(["sh", "-c", shell], capture_output=True, text=True, check=True).stdout
        == services.postgres
    )
