"""The control socket of a running engine; the protocol is described in relay/process/control.py.

One thread serves all clients without ever blocking on one. It requests only immutable snapshots from the
engine (`StatusSource`), so the engine never waits for a client. The cost of a client is bounded: it gets no
new answer before it has read the last one, and a client that stops reading, or sends endless lines, is
dropped.
"""

import contextlib
import dataclasses
import json
import logging
import selectors
import socket
import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Protocol, Self, cast, get_args

from bwtui.errors import BwtuiError, RefusedError
from bwtui.model.backfill import BackfillCommand, BackfillReason, BackfillRequest, BackfillStatus, to_json
from bwtui.model.events import event
from bwtui.model.history import RelayHistory
from bwtui.model.service_views import LOOKS, Look, LookName
from bwtui.model.status import ChangeSample, SchemaEntry, Status
from bwtui.relay.process.control import UNKNOWN_REQUEST, socket_path
from bwtui.relay.process.lock import private_folder
from bwtui.relay.state.activity_clock import MainThreadActivity
from bwtui.relay.state.measures import Measures
from bwtui.settings import RelaySettings
from bwtui.state_folder import STATE_HOME_HINT

MAX_CHANGES = 500
VERDICTS = ("clean", "anomalies", "indeterminate")
_MAX_CLIENTS = 64
_MAX_REQUEST = 64 * 1024
#: Maximum seconds that a client may leave an answer unread.
_PATIENCE = 5.0
#: Maximum interval between checks for clients that are stuck, and the time without accepting connections
#: after the system ran out of resources for one (seconds).
_LOOK_SECONDS, _REST_SECONDS = 1.0, 1.0
_log = logging.getLogger(__name__)


class StatusSource(Protocol):
    """The engine's interface for the server; any thread may call its methods, which return at once."""

    def status(self) -> Status:
        """Return an immutable status of the relay."""

    def measures(self) -> Measures:
        """Return the current counts and measurements, with the status."""

    def turn(self) -> MainThreadActivity:
        """Return the main thread's current activity."""

    def changes(self, after: int) -> list[ChangeSample]:
        """Return the sampled changes with a sequence above ``after``, oldest first."""

    def history(self, after: float) -> RelayHistory:
        """Return the history of the last ten minutes after ``after`` (Unix seconds)."""

    def schemas(self) -> list[SchemaEntry]:
        """Return every schema that the relay registered or looked up."""

    def settings(self) -> RelaySettings:
        """Return settings that are valid in another process; they may contain passwords."""

    def view(self, name: LookName, about: Sequence[str] = (), *, glance: bool = False) -> Look:
        """Return the last service view of that name, and schedule another poll.

        For a ``glance``, polls are less frequent.
        """

    def auditing(self) -> str:
        """Return the moment at which an audit of the relay's tables begins."""

    def audited(
        self,
        verdict: str,
        clean: Sequence[str],
        began: str,
        servers: Sequence[Sequence[Any]],
        differing: Sequence[str] = (),
    ) -> None:
        """Record that an audit of the relay's tables has ended.

        It began at that moment, read from ``servers`` (see `bwtui.source.raw_stream`), found the
        topics of the tables ``clean`` equal to them, and those of ``differing`` different. Raises
        StateFailed.
        """

    def backfill(self, request: BackfillRequest) -> str:
        """Take a request to backfill rows; return its id. Raises BwtuiError."""

    def backfill_control(self, id: str, command: BackfillCommand) -> BackfillStatus:
        """Pause, resume or end a backfill; return its status. Raises BwtuiError."""

    def sent_beside(self, topic: str, records: int) -> None:
        """Record that a repair is about to send tombstones itself to a topic of this relay."""

    def healed(self, lsn: str) -> bool:
        """Record that topics equal tables since the slot was recreated at ``lsn``; return True if it was due.

        Raises StateFailed.
        """

    def stop(self) -> None:
        """Request a clean stop."""


def answer(source: StatusSource, line: bytes) -> dict[str, Any]:
    """Return the answer to one request line; a bad request gets an error, never an exception."""
    try:
        message = json.loads(line)
        if not isinstance(message, dict):
            return _refusal("a request must be a JSON object")
        return {"ok": True, "data": _data(source, message)}
    except (ValueError, RecursionError) as error:
        return _refusal("the request is not valid JSON" if not isinstance(error, _BadRequest) else str(error))
    except BwtuiError as error:
        return {**_refusal(error.message), "hint": error.hint}
    except Exception as error:
        # The text of an unexpected exception may contain anything, even a row value: send only its type.
        _log.error("control request failed: %s", type(error).__name__, extra=event("answer_failed"))
        return _refusal(f"the engine failed to answer ({type(error).__name__})")


class _BadRequest(ValueError):
    """A request that this version does not support."""


def _refusal(reason: str) -> dict[str, Any]:
    return {"ok": False, "error": reason}


def _data(source: StatusSource, message: dict[str, Any]) -> Any:
    kind = message.get("request")
    if kind == "status":
        return source.status().to_json()
    if kind == "changes":
        after = message.get("after", 0)
        if not isinstance(after, int):
            raise _BadRequest("'after' is not a number")
        return [dataclasses.asdict(change) for change in source.changes(after)[-MAX_CHANGES:]]
    if kind == "history":
        after = message.get("after", 0)
        if not isinstance(after, int | float):
            raise _BadRequest("'after' is not a number")
        return source.history(after).to_json()
    if kind == "schemas":
        return [dataclasses.asdict(schema) for schema in source.schemas()]
    if kind == "settings":
        return source.settings().to_json()
    if kind in LOOKS:
        about = message.get("about", [])
        if not isinstance(about, list) or not all(isinstance(one, str) for one in about):
            raise _BadRequest("'about' is not a list of strings")
        return dataclasses.asdict(source.view(kind, about, glance=bool(message.get("glance"))))
    if kind == "healed":
        lsn = message.get("lsn")
        if not isinstance(lsn, str):
            raise _BadRequest("'lsn' is not an LSN")
        return source.healed(lsn)
    if kind == "sent_beside":
        topic, records = message.get("topic"), message.get("records")
        if not isinstance(topic, str) or not isinstance(records, int):
            raise _BadRequest("'topic' is not a string, or 'records' is not a number")
        source.sent_beside(topic, records)
        return None
    if kind == "auditing":
        return source.auditing()
    if kind == "audited":
        _audited(source, message)
        return None
    if kind == "backfill":
        return source.backfill(_backfill(message.get("of")))
    if kind == "backfill_control":
        id, command = message.get("id"), message.get("what")
        if (
            not isinstance(id, str)
            or not isinstance(command, str)
            or command not in get_args(BackfillCommand)
        ):
            raise _BadRequest("'id' is not a string, or 'what' is not pause, resume or cancel")
        return to_json(source.backfill_control(id, cast(BackfillCommand, command)))
    if kind == "stop":
        source.stop()
        return None
    raise _BadRequest(UNKNOWN_REQUEST)


def _backfill(data: Any) -> BackfillRequest:
    try:
        request = BackfillRequest.from_json(data)
    except (TypeError, AttributeError):
        raise _BadRequest("'of' is not a backfill request") from None
    texts = (request.table, request.where, request.keys)
    if (
        not isinstance(request.key_columns, tuple)
        or not all(isinstance(text, str) for text in (*texts, *request.key_columns))
        or request.reason not in get_args(BackfillReason)
        or not isinstance(request.unkeyed, bool)
    ):
        raise _BadRequest("'of' is not a backfill request")
    return request


@dataclasses.dataclass(slots=True)
class _ControlConnection:
    """One connection's received data that is not answered yet, and the answer that it has not read yet."""

    received: bytes = b""
    pending: memoryview = dataclasses.field(default_factory=lambda: memoryview(b""))
    progress: float = 0.0


class ControlServer:
    """Serves the control socket of the relay called ``name`` from `start` to `close`.

    The caller holds the relay's lock, so an existing socket was left by a killed engine.
    """

    def __init__(self, name: str, source: StatusSource) -> None:
        self.path = socket_path(name)
        self._source = source
        self._clients: dict[socket.socket, _ControlConnection] = {}
        self._selector = selectors.DefaultSelector()
        self._wake, self._waker = socket.socketpair()
        self._wake.setblocking(False)
        self._thread = threading.Thread(target=self._serve, name="control", daemon=True)
        self._listener = socket.socket(socket.AF_UNIX)
        #: Until when no connection is accepted, or 0.
        self._resting = 0.0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Bind the socket and start serving. Raises RefusedError."""
        try:
            private_folder(self.path.parent)
            self.path.unlink(missing_ok=True)
            self._listener.bind(str(self.path))
            self.path.chmod(0o600)
            self._listener.listen(_MAX_CLIENTS)
        except BaseException as error:
            self.close()
            if not isinstance(error, OSError):
                raise
            raise RefusedError(
                f"can't listen on {self.path}: {error.strerror}",
                STATE_HOME_HINT,
            ) from error
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._thread.start()

    def close(self) -> None:
        """Stop serving, close every connection and remove the socket."""
        self._waker.close()
        if self._thread.ident is not None:
            self._thread.join()
            self.path.unlink(missing_ok=True)
        for connection in list(self._clients):
            self._drop(connection)
        self._listener.close()
        self._selector.close()
        self._wake.close()

    # -- the thread ----------------------------------------------------------------------------------------

    def _serve(self) -> None:
        while True:
            for key, _ in self._selector.select(_LOOK_SECONDS):
                if key.fileobj is self._wake:
                    return
                if key.fileobj is self._listener:
                    self._accept()
                elif isinstance(key.fileobj, socket.socket):
                    self._continue(key.fileobj)
            now = time.monotonic()
            for connection, client in list(self._clients.items()):
                if client.pending and now - client.progress > _PATIENCE:
                    self._drop(connection)
            if self._resting and now >= self._resting:
                self._resting = 0.0
                self._selector.register(self._listener, selectors.EVENT_READ)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, ConnectionError):
            return
        except OSError:
            # Out of descriptors: accepting would be retried immediately, and forever.
            self._rest()
            return
        if len(self._clients) >= _MAX_CLIENTS:
            connection.close()
            return
        connection.setblocking(False)
        try:
            self._selector.register(connection, selectors.EVENT_READ)
        except OSError:
            # The system can't watch more sockets.
            connection.close()
            self._rest()
            return
        self._clients[connection] = _ControlConnection()

    def _rest(self) -> None:
        """Accept no connections for a while; the system queues some."""
        self._selector.unregister(self._listener)
        self._resting = time.monotonic() + _REST_SECONDS

    def _continue(self, connection: socket.socket) -> None:
        """Let a client whose socket is ready take its next step; an error ends only that client."""
        client = self._clients[connection]
        try:
            if not client.pending:
                received = connection.recv(65536)
                if not received:
                    self._drop(connection)
                    return
                client.received += received
            self._reply(connection, client)
        except BlockingIOError:
            pass
        except Exception as error:
            if not isinstance(error, OSError):
                # The exception's text may contain anything, even a row value.
                text = "a client of control failed: %s"
                _log.error(text, type(error).__name__, extra=event("answer_failed"))
            self._drop(connection)
            return
        if len(client.received) > _MAX_REQUEST and not client.pending:
            self._drop(connection)
            return
        self._selector.modify(connection, selectors.EVENT_WRITE if client.pending else selectors.EVENT_READ)

    def _reply(self, connection: socket.socket, client: _ControlConnection) -> None:
        while True:
            while client.pending:
                sent = connection.send(client.pending)
                client.pending = client.pending[sent:]
                client.progress = time.monotonic()
            line, newline, rest = client.received.partition(b"\n")
            if not newline:
                return
            client.received = rest
            client.pending = memoryview(json.dumps(answer(self._source, line)).encode() + b"\n")
            client.progress = time.monotonic()

    def _drop(self, connection: socket.socket) -> None:
        """Close a connection."""
        del self._clients[connection]
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(connection)
        connection.close()


def _audited(source: StatusSource, message: dict[str, Any]) -> None:
    verdict = message.get("verdict")
    if verdict not in VERDICTS:
        raise _BadRequest("'verdict' is not a known verdict")
    began = message.get("began", "")
    clean, differing, servers = (message.get(name, []) for name in ("clean", "differing", "servers"))
    if not all(isinstance(one, list) for one in (clean, differing, servers)) or not isinstance(began, str):
        raise _BadRequest("'clean', 'differing' or 'servers' is not a list, or 'began' is not a string")
    source.audited(verdict, list(map(str, clean)), began, servers, list(map(str, differing)))
