"""The control socket's protocol and its client.

A running engine listens on a Unix socket (mode 0600). Protocol: one JSON object per line in each direction.
Requests: ``{"request": "status"}``, ``{"request": "changes", "after": SEQUENCE}`` (at most the newest 500),
``{"request": "history", "after": UNIX SECONDS}`` (the last ten minutes, and from 0 also the tables' trends),
``{"request": "schemas"}``, ``{"request": "settings"}``, ``{"request": "auditing"}`` (an audit of the tables
begins; the answer is this MOMENT), ``{"request": "audited", "verdict": VERDICT, "clean": [TABLE, …],
"differing": [TABLE, …], "began": MOMENT, "servers": [[IDENTIFIER, STARTED, TIMELINE], …]}`` (the audit has
ended, and read from these servers),
``{"request": "healed", "lsn": LSN}`` (a comparison of all tables was clean since the slot was recreated at
this LSN), ``{"request": "sent_beside", "topic": TOPIC, "records": NUMBER}`` (a repair is about to send these
records itself), ``{"request": "stop"}``, and one for each service view of `bwtui.model.service_views`
(``slots``, ``consumers``, ``commands``, ``configuration``, ``stages``, ``transactions``, ``subject`` with
``"about": [NAME, VERSION, …]``, ``letters`` with ``"about": [LETTER, …]``). ``{"request": "backfill", "of":
{a BackfillRequest}}`` backfills rows of a table, and answers with an id. ``{"request": "backfill_control",
"id": ID, "what": "pause" | "resume" | "cancel"}`` answers with its BackfillStatus. Answers: ``{"ok": true,
"data": …}`` or ``{"ok": false, "error": "…"}``, with a ``hint`` if the relay can't do what was requested. The
engine never waits for a client; a client may send any number of requests on one connection.

The settings may contain passwords. Only processes of the same user can read them: other users can neither
connect to the socket, nor enter its folder.
"""

import asyncio
import contextlib
import dataclasses
import hashlib
import json
import os
import socket
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bwtui.errors import ConnectionFailed, RefusedError
from bwtui.model.backfill import BackfillCommand, BackfillRequest, BackfillStatus
from bwtui.model.history import RelayHistory
from bwtui.model.service_views import Look, LookName, look_from_json
from bwtui.model.status import ChangeSample, SchemaEntry, Status
from bwtui.model.verdict import suspended
from bwtui.relay.process import last_status
from bwtui.relay.process.lock import is_held
from bwtui.settings import RelaySettings
from bwtui.state_folder import relay_names, state_folder

LINE_LIMIT = 64 * 1024 * 1024
#: The engine's answer to a request that its version does not support.
UNKNOWN_REQUEST = "unknown request"
#: sun_path holds 108 bytes on Linux and 104 on macOS, with the final NUL.
_SOCKET_PATH_LIMIT = 100
#: Timeout for an answer, and for the answer to a list of keys.
_SECONDS, _LIST_SECONDS = 5.0, 600.0


def socket_path(name: str) -> Path:
    """Return the path of the control socket of the relay called ``name``.

    It is in the relay's state folder. The kernel accepts about a hundred bytes as the address of a Unix
    socket; if the folder's path is longer, the socket is in this user's folder below /tmp instead, under a
    name that every process computes in the same way. Raises RefusedError if that folder belongs to another
    user.
    """
    path = state_folder(name) / "engine.sock"
    if len(os.fsencode(path)) <= _SOCKET_PATH_LIMIT:
        return path
    # Not TMPDIR nor XDG_RUNTIME_DIR: they may differ between the engine and the processes that attach to it.
    folder = Path("/tmp") / f"bwtui-{os.getuid()}"
    _check_owner(folder)
    return folder / (hashlib.sha256(os.fsencode(path)).hexdigest()[:32] + ".sock")


def _check_owner(folder: Path) -> None:
    try:
        status = folder.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise RefusedError(
            f"{folder} is not a folder of this user",
            "set BWTUI_STATE_HOME to a folder with a short path, or have this one removed",
        )


def is_likely(name: str) -> bool:
    """Return whether the relay called ``name`` may run: a socket exists, which a killed relay leaves too."""
    try:
        return socket_path(name).exists()
    except RefusedError:
        return False


def is_running(name: str) -> bool:
    """Return whether a process is the relay called ``name``, as far as the current user may know."""
    try:
        return is_held(name)
    except RefusedError:
        return False


def name_if_several(name: str) -> str:
    """Return ``name`` if a command needs it because other relays may run too; otherwise ""."""
    return name if any(is_likely(relay) for relay in relay_names() if relay != name) else ""


class RelaySilent(ConnectionFailed):
    """A process is the relay, and gives no answer: no other process may work on its files meanwhile."""


class RelayUnresponsive(RelaySilent):
    """The relay runs, but does not answer: its process was suspended, or its machine is overloaded."""


class RelayInTransition(RelaySilent):
    """The relay's process runs, but does not listen: it is starting or ending."""

    def __init__(self, name: str, hint: str = "") -> None:
        hint = hint or f"run 'bwtui status {name}' in a few seconds"
        super().__init__(f"relay {name} is starting or ending, and does not answer at present", hint)


class RequestRefused(ConnectionFailed):
    """The relay runs and refuses the request; ``reason`` is its answer."""

    def __init__(self, name: str, reason: object) -> None:
        hint = (
            f"it may run a different version of bwtui: run 'bwtui stop {name}', and start it "
            "again with this version"
        )
        super().__init__(f"relay {name} refused the request: {reason}", hint)
        self.reason = reason


def running_relays(timeout: float = 2.0, silent: list[str] | None = None) -> list[Status]:
    """Return the status of every relay that currently answers on its control socket.

    The names of relays that run and do not answer within ``timeout`` seconds are added to ``silent``.
    """
    running = []
    for name in relay_names():
        try:
            running.append(Status.from_json(request(name, {"request": "status"}, timeout)))
        except RelayUnresponsive:
            if silent is not None:
                silent.append(name)
        except ConnectionFailed:
            continue
    return running


def request(name: str, message: dict[str, Any], timeout: float = _SECONDS) -> Any:
    """Send one request to the relay called ``name`` and return the answer's data.

    Raises ConnectionFailed if no such relay runs, and RelayUnresponsive after ``timeout`` seconds.
    """
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(timeout)
            connection.connect(str(socket_path(name)))
            connection.sendall(json.dumps(message).encode() + b"\n")
            with connection.makefile("rb") as lines:
                line = lines.readline(LINE_LIMIT)
    except TimeoutError as error:
        raise does_not_answer(name) from error
    except OSError as error:
        raise _not_running(name) from error
    return _data(name, line)


def settings_of(name: str) -> RelaySettings:
    """Return the settings of the relay called ``name``, for another process; they may contain passwords.

    Raises ConnectionFailed if no such relay runs, or if its version does not support this, and
    RelayUnresponsive.
    """
    try:
        return RelaySettings.from_json(request(name, {"request": "settings"}))
    except RequestRefused as error:
        if error.reason != UNKNOWN_REQUEST:
            raise
        raise ConnectionFailed(
            f"relay {name} runs an older version of bwtui, which can't report its settings",
            "stop it and start it again with this version, or give its settings",
        ) from error
    except TypeError as error:
        raise ConnectionFailed(
            f"relay {name} runs a newer version of bwtui, with settings that this version does not support",
            "use the version that it was started with, or give its settings",
        ) from error


def begin_audit(name: str) -> str:
    """Return the moment for `report_audit`; "" if the relay does not answer: the audit proves nothing."""
    with contextlib.suppress(ConnectionFailed):
        return str(request(name, {"request": "auditing"}))
    return ""


def report_audit(name: str, verdict: str, details: Mapping[str, Any], began: str) -> None:
    """Report to the relay called ``name`` how an audit of its tables ended.

    ``details``: those of the audit's report; ``began``: see `begin_audit`. Ignores a relay that does not
    answer.
    """
    results = {
        "clean": details.get("complete", []),
        "differing": details.get("differing", []),
        "servers": details.get("servers", []),
    }
    with contextlib.suppress(ConnectionFailed):
        request(name, {"request": "audited", "verdict": verdict, "began": began, **results})


def announce_foreign_records(name: str, topic: str, records: int) -> None:
    """Announce records that this process, not the relay, sends to ``topic``."""
    with contextlib.suppress(ConnectionFailed, RequestRefused):
        request(name, {"request": "sent_beside", "topic": topic, "records": records})


def send_again(name: str, backfill: BackfillRequest) -> str:
    """Request that the relay called ``name`` backfill rows of a table; return the request's id.

    A list of keys is copied and counted before the relay answers. Raises RefusedError if the request can't be
    fulfilled, and ConnectionFailed, also for a relay whose version does not support backfills.
    """
    with _explained_version(name):
        timeout = _LIST_SECONDS if backfill.keys else _SECONDS
        return str(request(name, _submission(backfill), timeout))


def control_backfill(name: str, id: str, command: BackfillCommand) -> BackfillStatus:
    """Pause, resume or end a backfill; return its status. Raises as `send_again` does."""
    with _explained_version(name):
        return BackfillStatus.from_json(request(name, _control(id, command)))


@contextlib.contextmanager
def _explained_version(name: str) -> Iterator[None]:
    """Turn the refusal of a relay that is older than the request into an error that says so."""
    try:
        yield
    except RequestRefused as error:
        if error.reason != UNKNOWN_REQUEST:
            raise
        raise ConnectionFailed(
            f"relay {name} runs an older version of bwtui, which does not support backfills",
            f"run 'bwtui stop {name}', and start it again with this version",
        ) from error


def _submission(backfill: BackfillRequest) -> dict[str, Any]:
    return {"request": "backfill", "of": dataclasses.asdict(backfill)}


def _control(id: str, command: BackfillCommand) -> dict[str, Any]:
    return {"request": "backfill_control", "id": id, "what": command}


class ControlClient:
    """An asynchronous client, for the UI; after a failure, the next request reconnects automatically."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._lock = asyncio.Lock()

    async def status(self) -> Status:
        """Return the relay's status. Raises ConnectionFailed if it does not run."""
        return Status.from_json(await self._ask({"request": "status"}))

    async def changes(self, after: int) -> list[ChangeSample]:
        """Return sampled changes with a sequence above ``after``, oldest first."""
        return [
            ChangeSample.from_json(data) for data in await self._ask({"request": "changes", "after": after})
        ]

    async def history(self, after: float = 0.0) -> RelayHistory:
        """Return the last ten minutes after ``after`` (Unix seconds); empty for an older relay."""
        try:
            return RelayHistory.from_json(await self._ask({"request": "history", "after": after}))
        except RequestRefused as error:
            if error.reason != UNKNOWN_REQUEST:
                raise
            return RelayHistory()

    async def schemas(self) -> list[SchemaEntry]:
        """Return every schema that the relay registered or looked up."""
        return [SchemaEntry(**data) for data in await self._ask({"request": "schemas"})]

    async def fetch_view(self, name: LookName, about: Sequence[str] = (), *, glance: bool = False) -> Look:
        """Return the last service view of that name, and have it polled; a ``glance`` polls it rarely."""
        return look_from_json(
            name, await self._ask({"request": name, "about": list(about), "glance": glance})
        )

    async def stop(self) -> None:
        """Request a clean stop; returns at once, before the relay has stopped."""
        await self._ask({"request": "stop"})

    async def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None

    async def _ask(self, message: dict[str, Any]) -> Any:
        line = b""
        async with self._lock:
            try:
                if self._streams is None:
                    path = str(socket_path(self.name))
                    self._streams = await asyncio.open_unix_connection(path, limit=LINE_LIMIT)
                reader, writer = self._streams
                writer.write(json.dumps(message).encode() + b"\n")
                await writer.drain()
                line = await asyncio.wait_for(reader.readline(), _SECONDS)
            except TimeoutError as error:
                raise does_not_answer(self.name) from error
            except OSError as error:
                raise _not_running(self.name) from error
            finally:
                if not line.endswith(b"\n"):
                    # Otherwise the next request would take the rest of this answer for its own.
                    await self.close()
            return _data(self.name, line)


def _data(name: str, line: bytes) -> Any:
    if not line.endswith(b"\n"):
        # The engine ended in the middle of its answer.
        raise _not_running(name)
    answer = json.loads(line)
    if not answer.get("ok") and "hint" in answer:
        raise RefusedError(str(answer.get("error")), str(answer["hint"]))
    if not answer.get("ok"):
        raise RequestRefused(name, answer.get("error"))
    return answer["data"]


def does_not_answer(name: str) -> RelayUnresponsive:
    """Return the error for a relay that runs and does not answer."""
    last = last_status.read(name)
    if last is None:
        return RelayUnresponsive(
            f"relay {name} runs, but does not answer",
            "its process may be suspended ('kill -CONT' resumes it), or the machine is overloaded",
        )
    verdict = suspended(name, last.pid, time.time() - last.time, is_stopped=_is_stopped(last.pid))
    return RelayUnresponsive(verdict.sentence, verdict.hint)


def _is_stopped(pid: int) -> bool:
    """Return whether the system has stopped a process, as far as /proc reports it ("proc_pid_stat(5)")."""
    try:
        # The command precedes the state in parentheses, and may contain parentheses itself.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][:1] in ("T", "t")
    except OSError:
        return False


def _not_running(name: str) -> ConnectionFailed:
    """Return the error for a relay that does not listen."""
    if is_running(name):
        return RelayInTransition(name)
    return ConnectionFailed(
        f"no relay called {name} is running",
        "start one with 'bwtui connect', or choose another: 'bwtui status' lists the running relays",
    )
