"""The control socket: the protocol, and misbehaving clients."""

import asyncio
import json
import os
import resource
import socket
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bwtui.cli.inputs.relay_options import only_relay, running_or_stopped, status_of
from bwtui.errors import ConnectionFailed, RefusedError
from bwtui.model.backfill import BackfillRequest, BackfillStatus
from bwtui.model.history import RelayHistory
from bwtui.model.status import Status
from bwtui.relay.process import control
from bwtui.relay.process.control import (
    ControlClient,
    RelayInTransition,
    RelayUnresponsive,
    control_backfill,
    request,
    send_again,
    settings_of,
    socket_path,
)
from bwtui.relay.process.lock import RelayLock
from bwtui.relay.serving import control_server as server
from bwtui.relay.serving.control_server import ControlServer
from bwtui.settings import RelaySettings
from bwtui.state_folder import LOCK_NAME, relay_names
from tests.unit.relay_double import SECRET, DoubleEngine
from tests.waiting import eventually


@pytest.fixture(autouse=True)
def state_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state folder for this test."""
    monkeypatch.setenv("BWTUI_STATE_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def engine() -> DoubleEngine:
    return DoubleEngine(RelaySettings(name="one"))


@pytest.fixture
def running(engine: DoubleEngine) -> Iterator[ControlServer]:
    """The engine's control server."""
    with ControlServer("one", engine) as running:
        yield running


def connected() -> socket.socket:
    """Return a raw connection to the server."""
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(60)
    connection.connect(str(socket_path("one")))
    return connection


def ask(connection: socket.socket, line: bytes) -> dict[str, object]:
    """Send a line and return the answer's object."""
    connection.sendall(line + b"\n")
    with connection.makefile("rb") as lines:
        answer = json.loads(lines.readline())
    assert isinstance(answer, dict)
    return answer


@pytest.mark.usefixtures("running")
async def test_the_client_reads_all_that_the_engine_says(engine: DoubleEngine) -> None:
    client = ControlClient("one")
    status = await client.status()
    assert (status.name, status.confirmed_lsn, status.tables) == ("one", 0x1_0000_0001, engine.tables)
    changes = await client.changes(900)
    assert [change.sequence for change in changes] == list(range(901, 1001))
    assert len(await client.changes(0)) == server.MAX_CHANGES
    assert (await client.schemas())[0].id == 7
    assert await client.history() == engine.history(0)
    assert [second.time for second in (await client.history(2.0)).seconds] == [3.0]
    await client.stop()
    assert engine.stopped.is_set()
    await client.close()


async def test_the_answer_to_a_cancelled_request_is_not_taken_for_the_next_ones(state_home: Path) -> None:
    path = socket_path("one")
    path.parent.mkdir(parents=True, exist_ok=True)
    is_asked = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        message = json.loads(await reader.readline())
        if message["request"] == "schemas":
            is_asked.set()
            if await reader.readline():
                writer.write(b'{"ok": true, "data": ["the answer to the cancelled request"]}\n')
        else:
            writer.write(b'{"ok": true, "data": []}\n')
        writer.close()

    async with await asyncio.start_unix_server(answer, path):
        client = ControlClient("one")
        cancelled = asyncio.create_task(client.schemas())
        await is_asked.wait()
        cancelled.cancel()
        assert await client.changes(0) == []
        assert cancelled.cancelled()
        await client.close()


def test_an_engine_that_ends_within_its_answer_does_not_run(state_home: Path) -> None:
    path = socket_path("one")
    path.parent.mkdir(parents=True, exist_ok=True)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()

        def answer() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(1_000)
                connection.sendall(b'{"ok": true, "da')

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(ConnectionFailed, match=r"not running|no relay"):
            request("one", {"request": "status"})
        thread.join()


def test_the_settings_are_told() -> None:
    pairs = (("sasl.password", SECRET), ("client.id", "x"))
    told = RelaySettings(name="one", postgres="dbname=a", tables=("a", "b"), kafka_config=pairs, end_lsn=7)
    with ControlServer("one", DoubleEngine(told)):
        assert settings_of("one") == told
    with pytest.raises(ConnectionFailed, match="no relay called one is running"):
        settings_of("one")


def test_a_relay_of_an_older_version_does_not_tell_its_settings(
    engine: DoubleEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: object, message: dict[str, object]) -> None:
        raise server._BadRequest("unknown request")

    monkeypatch.setattr(server, "_data", refuse)
    with ControlServer("one", engine), pytest.raises(ConnectionFailed) as refused:
        settings_of("one")
    assert refused.value.message.startswith("relay one runs an older version of bwtui")
    assert "start it again" in (refused.value.hint or "")


def test_a_relay_of_a_newer_version_may_have_settings_that_are_not_known_here(
    engine: DoubleEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RelaySettings, "to_json", lambda _: {"slot": "s", "warp": 9})
    with ControlServer("one", engine), pytest.raises(ConnectionFailed, match="one runs a newer version"):
        settings_of("one")


async def test_a_relay_of_an_older_version_has_no_history(
    engine: DoubleEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: object, message: dict[str, object]) -> None:
        raise server._BadRequest("unknown request")

    monkeypatch.setattr(server, "_data", refuse)
    with ControlServer("one", engine):
        client = ControlClient("one")
        assert await client.history() == RelayHistory()
        await client.close()


def test_an_engine_that_fails_to_tell_its_settings_is_not_called_old(
    engine: DoubleEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise RuntimeError(SECRET)

    monkeypatch.setattr(engine, "settings", fail)
    with ControlServer("one", engine), pytest.raises(ConnectionFailed, match=r"\(RuntimeError\)"):
        settings_of("one")


@pytest.mark.usefixtures("running")
def test_rows_are_asked_for_again_and_controlled(engine: DoubleEngine) -> None:
    wanted = BackfillRequest("public.orders", where="id > 7", unkeyed=True)
    assert send_again("one", wanted) == "1-orders"
    assert send_again("one", BackfillRequest("public.orders", reason="repair")) == "2-orders"
    assert control_backfill("one", "1-orders", "pause").state == "paused"
    assert control_backfill("one", "2-orders", "cancel").is_over
    assert Status.from_json(request("one", {"request": "status"})).backfills == tuple(
        engine.backfills.values()
    )
    assert engine.backfills["1-orders"].where == "id > 7"
    with pytest.raises(RefusedError, match=r"^the relay does not capture table orders$") as refused:
        send_again("one", BackfillRequest("orders"))
    assert refused.value.hint == "did you mean public.orders?"
    with pytest.raises(RefusedError, match="there is no request 7"):
        control_backfill("one", "7", "resume")


@pytest.mark.parametrize(("keys", "seconds"), [("", 5.0), ("/tmp/keys", 600.0)])
def test_a_long_list_has_time_to_be_copied(
    monkeypatch: pytest.MonkeyPatch, keys: str, seconds: float
) -> None:
    def answer(name: str, message: dict[str, object], timeout: float) -> str:
        return f"{timeout}"

    monkeypatch.setattr(control, "request", answer)
    assert send_again("one", BackfillRequest("public.orders", keys=keys)) == f"{seconds}"


def test_a_relay_of_an_older_version_sends_nothing_again(
    engine: DoubleEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: object, message: dict[str, object]) -> None:
        raise server._BadRequest("unknown request")

    monkeypatch.setattr(server, "_data", refuse)
    with ControlServer("one", engine):
        with pytest.raises(
            ConnectionFailed, match="one runs an older version of bwtui, which does not support backfills"
        ):
            send_again("one", BackfillRequest("public.orders"))
        with pytest.raises(
            ConnectionFailed, match="one runs an older version of bwtui, which does not support backfills"
        ):
            control_backfill("one", "1", "cancel")


def test_a_status_of_an_older_version_and_of_a_newer_one_is_read() -> None:
    status = Status("streaming", "one", "s", backfills=(BackfillStatus("1", "public.orders"),))
    data = json.loads(json.dumps(status.to_json()))
    assert Status.from_json(data) == status
    data["backfills"][0]["warp"] = 9
    assert Status.from_json(data) == status
    del data["backfills"]
    assert Status.from_json(data).backfills == ()


@pytest.mark.usefixtures("running")
@pytest.mark.parametrize(
    "line",
    [
        b'{"request": "backfill"}',
        b'{"request": "backfill", "of": []}',
        b'{"request": "backfill", "of": {}}',
        b'{"request": "backfill", "of": {"table": 7}}',
        b'{"request": "backfill", "of": {"table": "public.orders", "unkeyed": "no"}}',
        b'{"request": "backfill", "of": {"table": "public.orders", "reason": "fun"}}',
        b'{"request": "backfill", "of": {"table": "public.orders", "reason": []}}',
        b'{"request": "backfill_control", "id": 1, "what": "pause"}',
        b'{"request": "backfill_control", "id": "1", "what": "stop"}',
        b'{"request": "backfill_control", "id": "1", "what": []}',
        b"",
        b"nonsense",
        b"\xff\xfe",
        b"[]",
        b"3",
        b"{}",
        b'{"request": "dance"}',
        b'{"request": ["status"]}',
        b'{"request": "changes", "after": "x"}',
        b'{"request": "history", "after": "x"}',
        b'{"request": "audited", "verdict": "\\u001b[2J"}',
        b'{"request": "audited", "verdict": ["clean"]}',
        b'{"request": "audited", "verdict": "clean", "began": 7}',
        b'{"request": "audited", "verdict": "clean", "servers": "all"}',
        b'{"request": "audited", "verdict": "clean", "differing": "all"}',
        b"[" * 60_000,
    ],
)
def test_a_bad_request_gets_an_error_and_the_connection_goes_on(line: bytes) -> None:
    with connected() as connection:
        answer = ask(connection, line)
        assert answer["ok"] is False
        assert isinstance(answer["error"], str)
        assert ask(connection, b'{"request": "status"}')["ok"] is True


@pytest.mark.usefixtures("running")
def test_an_engine_that_fails_to_answer_tells_no_value(
    engine: DoubleEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise RuntimeError(SECRET)

    monkeypatch.setattr(engine, "schemas", fail)
    with connected() as connection:
        answer = ask(connection, b'{"request": "schemas"}')
    assert answer == {"ok": False, "error": "the engine failed to answer (RuntimeError)"}


@pytest.mark.usefixtures("running")
def test_requests_may_come_in_pieces_and_in_bunches() -> None:
    with connected() as connection:
        for piece in (b'{"requ', b'est": "status"', b"}\n" + b'{"request": "schemas"}\n' * 3):
            connection.sendall(piece)
        with connection.makefile("rb") as lines:
            answers = [json.loads(lines.readline()) for _ in range(4)]
    assert [type(answer["data"]).__name__ for answer in answers] == ["dict", "list", "list", "list"]


@pytest.mark.usefixtures("running")
def test_an_endless_line_is_cut_off() -> None:
    with connected() as connection, pytest.raises(OSError):
        while True:
            connection.sendall(b"x" * 65536)


@pytest.mark.usefixtures("running")
def test_a_client_that_stops_reading_is_dropped_and_others_are_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "_PATIENCE", 0.2)
    with connected() as deaf:
        deaf.sendall(b'{"request": "changes", "after": 0}\n' * 1000)
        deadline = time.monotonic() + 60
        while not is_dropped(deaf):
            assert time.monotonic() < deadline
            assert request("one", {"request": "status"})["name"] == "one"


def is_dropped(connection: socket.socket) -> bool:
    """Return whether the other end has closed, without reading anything."""
    try:
        connection.send(b"\n")
    except OSError:
        return True
    return False


@pytest.mark.usefixtures("running")
def test_many_clients_at_once() -> None:
    connections = [connected() for _ in range(30)]
    for connection in connections:
        assert ask(connection, b'{"request": "status"}')["ok"] is True
    for connection in connections:
        connection.close()
    assert request("one", {"request": "status"})["name"] == "one"


def test_nobody_else_may_connect(running: ControlServer) -> None:
    assert stat.S_IMODE(running.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(running.path.parent.stat().st_mode) == 0o700


def test_the_socket_is_gone_after_the_end(engine: DoubleEngine) -> None:
    with ControlServer("one", engine) as running:
        connection = connected()
        assert ask(connection, b'{"request": "status"}')["ok"] is True
    assert not running.path.exists()
    assert connection.recv(1) == b""
    connection.close()
    with pytest.raises(ConnectionFailed, match="no relay called one is running"):
        request("one", {"request": "status"})


def test_a_relay_that_does_not_listen_yet_is_starting_or_ending(running: ControlServer) -> None:
    lock = RelayLock.acquire("two")
    for answers in (lambda: request("two", {"request": "status"}), lambda: status_of("two")):
        with pytest.raises(RelayInTransition, match="relay two is starting or ending") as raised:
            answers()
        assert raised.value.hint == "run 'bwtui status two' in a few seconds"
    lock.release()
    with pytest.raises(ConnectionFailed, match="no relay called two is running"):
        request("two", {"request": "status"})


def test_the_only_relay_is_starting_or_ending() -> None:
    lock = RelayLock.acquire("one")
    RelayLock.acquire("stopped").release()
    for answers in (
        lambda: only_relay(None),
        lambda: running_or_stopped(lambda name: name == "stopped"),
    ):
        with pytest.raises(RelayInTransition, match="relay one is starting or ending"):
            answers()
    lock.release()
    with pytest.raises(ConnectionFailed, match="no relay is running"):
        only_relay(None)


def test_a_lock_that_can_not_be_opened_is_no_running_relay(state_home: Path) -> None:
    (state_home / "one" / LOCK_NAME).mkdir(parents=True)
    with pytest.raises(ConnectionFailed, match="no relay is running"):
        only_relay(None)


def test_a_stale_socket_is_replaced(engine: DoubleEngine, state_home: Path) -> None:
    folder = state_home / "one"
    folder.mkdir()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(folder / "engine.sock"))
    with pytest.raises(ConnectionFailed):
        request("one", {"request": "status"})
    with ControlServer("one", engine):
        assert request("one", {"request": "status"})["name"] == "one"


def test_a_long_path_moves_the_socket_and_client_and_server_agree(
    engine: DoubleEngine, state_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BWTUI_STATE_HOME", str(state_home / ("x" * 120)))
    path = socket_path("one")
    assert len(os.fsencode(path)) < 104
    with ControlServer("one", engine):
        assert path.exists()
        assert request("one", {"request": "status"})["name"] == "one"
    assert not path.exists()


def test_a_socket_folder_of_somebody_else_is_refused(
    state_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BWTUI_STATE_HOME", str(state_home / ("x" * 120)))
    user = os.getuid()
    Path(f"/tmp/bwtui-{user}").mkdir(mode=0o700, exist_ok=True)
    real = Path.lstat

    def owned_by_another(path: Path) -> os.stat_result:
        found = list(real(path))
        found[stat.ST_UID] = user + 1
        return os.stat_result(found)

    monkeypatch.setattr(Path, "lstat", owned_by_another)
    with pytest.raises(RefusedError, match="is not a folder of this user"):
        socket_path("one")


def test_a_folder_that_can_not_be_used_is_one_sentence(
    engine: DoubleEngine, state_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (state_home / "file").touch()
    monkeypatch.setenv("BWTUI_STATE_HOME", str(state_home / "file"))
    with pytest.raises(RefusedError, match="can't use the folder"), ControlServer("one", engine):
        pass


@pytest.mark.usefixtures("running")
def test_running_relays_are_listed(state_home: Path) -> None:
    for name in ("one", "dead"):
        (state_home / name).mkdir(exist_ok=True)
        (state_home / name / LOCK_NAME).touch()
    assert relay_names() == ["dead", "one"]
    assert [status.name for status in control.running_relays()] == ["one"]


@pytest.mark.usefixtures("running")
def test_a_relay_that_says_nothing_is_no_relay_that_is_gone(
    state_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two"):
        (state_home / name).mkdir(exist_ok=True)
        (state_home / name / LOCK_NAME).touch()
    # This is how a suspended process behaves: the kernel accepts the connection, and no process answers.
    with socket.socket(socket.AF_UNIX) as suspended:
        suspended.bind(str(socket_path("two")))
        suspended.listen()
        with pytest.raises(RelayUnresponsive, match="relay two runs, but does not answer"):
            request("two", {"request": "status"}, 0.1)
        # The other relay may take longer.
        patient = {"one": 60.0}

        def patiently(name: str, message: dict[str, Any], timeout: float) -> Any:
            return request(name, message, patient.get(name, timeout))

        monkeypatch.setattr(control, "request", patiently)
        silent: list[str] = []
        assert [status.name for status in control.running_relays(0.1, silent)] == ["one"]
        assert silent == ["two"]


@pytest.mark.usefixtures("running")
def test_without_descriptors_it_rests_and_goes_on(
    running: ControlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_REST_SECONDS", 0.1)
    attempts: list[float] = []
    accept = running._accept

    def counted() -> None:
        attempts.append(time.monotonic())
        accept()

    monkeypatch.setattr(running, "_accept", counted)
    caller = socket.socket(socket.AF_UNIX)
    caller.settimeout(60)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        caller.connect(str(socket_path("one")))
        eventually("it tries again", lambda: len(attempts) > 2)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert attempts[2] - attempts[0] > 0.2
    assert ask(caller, b'{"request": "status"}')["ok"]
    caller.close()
