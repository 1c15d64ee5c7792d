"""The engine's side of the workers on a Spark cluster.

The engine can't end processes on other machines. It asks the guard process there to do so, and until a worker
is known to have ended it counts as one that may still send rows. It is known to have ended once its guard
says so, within TLS, or once its end has closed the connection and Spark reports the task as ended. Spark's
report alone proves nothing, because Spark gives up an executor that it does not hear from. Neither does a
connection that only broke.
"""

import logging
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import psycopg2.extensions

from bwtui.crash import frames
from bwtui.errors import ConnectionFailed, RefusedError
from bwtui.model.events import event
from bwtui.relay.snapshot.spark_connection import (
    ConnectionTicket,
    FrameKind,
    SparkFailed,
    SparkReady,
    TaskEnded,
    TaskRequest,
    TlsMux,
    WorkerListener,
    is_loopback,
)
from bwtui.relay.snapshot.worker_handle import WorkerHandle
from bwtui.relay.snapshot.worker_protocol import (
    Heartbeat,
    NonBlockingChannel,
    SerializedError,
    StartWorker,
    WorkerFailed,
)
from bwtui.relay.state.run_state import RunState
from bwtui.signals.parent_death import signalled_with_us
from bwtui.source.connection import Connection

_DRIVER = (sys.executable, "-P", "-m", "bwtui.relay.snapshot.spark_driver")
#: Maximum workers by default, if the cluster has that many cores.
_MOST_WORKERS = 8
#: Timeout of a task that waits for a core while no worker has one.
_NO_CORE_SECONDS = 120.0
#: Timeout of Spark's start: its Java, an application that waits for room, and the first executor.
_OPEN_SECONDS = 300.0
#: Timeout of an orderly end of Spark.
_END_SECONDS = 30.0
_TURN_SECONDS = 0.1
_PING_SECONDS = 1.0
_WAIT_SECONDS = 0.05
_log = logging.getLogger("bwtui.relay.snapshot.spark_worker_pool")


class SparkWorkerPool:
    """Owns Spark, the listener for workers, and the workers that connect."""

    def __init__(self, report: RunState, settings: Mapping[str, Any]) -> None:
        """``settings`` are those that workers get."""
        self._report = report
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None
        self._end: NonBlockingChannel | None = None
        self._door: WorkerListener | None = None
        self._members: dict[int, SparkWorkerHandle] = {}
        #: When a worker was last connected.
        self._connected_at = 0.0
        self._is_local = self._is_end_reported = False
        self.parallelism = 0

    def open(self, master: str, pulse: Callable[[float], None]) -> None:
        """Start Spark, and wait for it. Raises BwtuiError, and the errors of ``pulse(seconds)``."""
        ours, theirs = socket.socketpair()
        self._end = NonBlockingChannel(ours)
        with theirs:
            try:
                self._process = subprocess.Popen(
                    (*_DRIVER, master),
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    # It reports errors over the socket.
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                    preexec_fn=signalled_with_us(signal.SIGTERM),  # noqa: PLW1509  # Two functions of libc.
                )
            except OSError as error:
                raise ConnectionFailed(
                    f"Spark can't be started: {error.strerror}", "free memory on this machine"
                ) from error
        until = time.monotonic() + _OPEN_SECONDS
        while not (messages := self._end.messages()):
            if time.monotonic() > until:
                raise ConnectionFailed(
                    f"Spark has not started within {_OPEN_SECONDS:.0f} s",
                    "check whether the cluster has free cores and memory",
                )
            if self._end.is_over:
                raise ConnectionFailed(
                    "the process that starts Spark ended unexpectedly", "start the relay again"
                )
            pulse(_WAIT_SECONDS)
        if isinstance(messages[0], SparkFailed):
            raise messages[0].fault.error
        opened: SparkReady = messages[0]
        if not is_loopback(opened.host):
            # With a master on loopback, executors reach this machine there.
            _refuse_local_source(self._settings["postgres"])
        try:
            self._door = WorkerListener(opened.host, opened.port)
        except OSError as error:
            place = f"{opened.host}:{opened.port or 'a port'}"
            raise ConnectionFailed(
                f"can't listen for Spark executors at {place}: {error.strerror}",
                "set spark.driver.host to this machine's address, and spark.bwtui.port to a free "
                "port, or omit it",
            ) from error
        self._is_local = master.startswith("local")
        self.parallelism = max(1, min(opened.parallelism, _MOST_WORKERS))

    def member(self, begin: StartWorker) -> WorkerHandle:
        """Start a worker."""
        assert self._door is not None and self._end is not None
        number = len(self._members) + 1
        worker_begin = replace(begin, settings=self._settings)
        member = SparkWorkerHandle(
            worker_begin, self._door, number, self.check_tasks, is_local=self._is_local
        )
        self._members[number] = member
        self._end.send(TaskRequest(number, member.call))
        return member

    def check_tasks(self) -> None:
        """Handle Spark's reports about tasks, and report rejected connections."""
        assert self._door is not None and self._end is not None
        for message in self._end.messages():
            if isinstance(message, TaskEnded):
                self._members[message.number].note_task_ended(message.fault)
        if self._end.is_over:
            error = ConnectionFailed(
                "Spark's process has ended: workers whose connections are closed count as ended",
                "check whether this machine ran out of memory",
            )
            if not self._is_end_reported:
                self._is_end_reported = True
                self._report.error("worker", error)
            end_fault = SerializedError.of(error)
            for member in self._members.values():
                member.note_task_ended(end_fault)
        while self._door.refusals:
            why = self._door.refusals.popleft()
            hint = (
                "Spark repeated a task, or an unknown client connected, which received no settings "
                "and no rows"
            )
            self._report.error("worker", RefusedError(why, hint))
        if any(member.is_connected for member in self._members.values()):
            self._connected_at = time.monotonic()
        for member in self._members.values():
            member.check_timeout(self._connected_at)

    def end(self, pulse: Callable[[float], None]) -> None:
        """Let Spark end in order, once no worker is left. Raises the errors of ``pulse(seconds)``."""
        assert self._process is not None and self._end is not None
        self._report.detail = "stopping Spark"
        self._end.close()
        until = time.monotonic() + _END_SECONDS
        while self._process.poll() is None and time.monotonic() < until:
            pulse(_WAIT_SECONDS)

    def close(self) -> None:
        """End Spark and the listener, whatever they are doing."""
        if self._door is not None:
            self._door.close()
        if self._end is not None:
            self._end.close()
        if self._process is None:
            return
        # Spark then ends its Java, and leaves no files.
        self._process.terminate()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class SparkWorkerHandle(WorkerHandle):
    """A worker on an executor."""

    def __init__(
        self,
        begin: StartWorker,
        door: WorkerListener,
        number: int,
        check_tasks: Callable[[], None],
        *,
        is_local: bool = False,
    ) -> None:
        """``is_local``: the executor runs on this machine."""
        ours, self._theirs = socket.socketpair()
        super().__init__(NonBlockingChannel(ours), begin)
        self._door = door
        self._number = number
        self._check_tasks = check_tasks
        self._is_local = is_local
        self._called_at = time.monotonic()
        self._has_failed = False
        self._is_dismissed = False
        self._is_never = False
        # Set by the thread of the connection.
        self._tunnel: TlsMux | None = None
        self._exit_code: int | None = None
        self._guard_pid = 0
        self._fault: SerializedError | None = None
        self._is_over = False
        self.call: ConnectionTicket = door.expect(self._carry)

    # -- overrides of Member ---------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The worker's process or task, for messages."""
        if not self.pid:
            return f"task {self._number} on the Spark cluster"
        return f"process {self.pid} on {self.host}" if self.host else super().name

    def poll(self) -> list[Heartbeat]:
        """Take the messages that it has sent; return the heartbeats among them."""
        self._check_tasks()
        beats = super().poll()
        if self._tunnel is None:
            # It is waiting for a core.
            self._silent = 0.0
        return beats

    def kill(self) -> str:
        """End the worker, if it has not ended; `has_ended` returns whether that is known."""
        self._is_dismissed = True
        self._withdraw()
        self.end.close()
        if self._exit_code is None:
            # Spark's report may follow later, or never.
            return f"was lost ({self._fault.message})" if self._fault is not None else "was lost"
        return f"was killed by signal {-self._exit_code}" if self._exit_code < 0 else "ended"

    @property
    def has_ended(self) -> bool:
        """True if it has ended for sure, or never began."""
        self._check_tasks()
        if self._is_dismissed and self._tunnel is None:
            # It may have been killed between its token and the welcome, which the listener notices later.
            self._withdraw()
        tunnel = self._tunnel
        hung_up = tunnel is not None and tunnel.is_closed
        return self._is_never or self._exit_code is not None or (hung_up and self._is_over)

    def _withdraw(self) -> None:
        if not self._is_never and self._door.withdraw(self.call):
            self._is_never = True
            self._theirs.close()

    @property
    def is_cut_off(self) -> bool:
        """True if its end will never be reported."""
        return self._tunnel is not None and self._tunnel.is_broken and not self.has_ended

    def awaited_end_error(self) -> ConnectionFailed:
        """Return what to report while the relay waits for its end, and how to end that."""
        if (tunnel := self._tunnel) is not None and tunnel.is_closed:
            return ConnectionFailed(
                f"{self.name} has closed its connection, but Spark has not yet reported the end of "
                "its task, so the stream can't start yet",
                "Spark reports it within two minutes; otherwise check whether its process on this "
                "machine, bwtui.relay.snapshot.spark_driver, or its JVM is stuck",
            )
        return ConnectionFailed(
            f"{self.name} may still send rows of the snapshot, so the stream can't start yet",
            "it ends on its own once it runs again and receives the request to end; otherwise run "
            f"'kill -KILL {self._guard_pid}' there, which also ends the worker: Spark then reports it to the "
            "relay within two minutes",
        )

    # -- Spark -----------------------------------------------------------------------------------------------

    @property
    def is_connected(self) -> bool:
        """True if it is connected, and its connection works."""
        return self._tunnel is not None and not self._tunnel.is_over and not self._is_dismissed

    def note_task_ended(self, fault: SerializedError | None) -> None:
        """Handle Spark's report that its task has ended, or is lost."""
        self._is_over = True
        self._fault = self._fault or fault
        if fault is not None and self._tunnel is None:
            self._fail(fault)

    def check_timeout(self, somebody_at: float) -> None:
        """Give it up if it has waited too long; ``somebody_at`` is when any worker last had a core."""
        if time.monotonic() - max(self._called_at, somebody_at) > _NO_CORE_SECONDS:
            reason = f"the Spark cluster assigned no core to the worker within {_NO_CORE_SECONDS:.0f} s"
            self._fail(
                SerializedError.of(
                    ConnectionFailed(
                        reason,
                        "check what else runs on the cluster, or use fewer workers with --snapshot-workers",
                    )
                )
            )

    def _fail(self, fault: SerializedError) -> None:
        if not self._has_failed and not self._is_dismissed:
            self._has_failed = True
            self.messages.append(WorkerFailed(fault, at_start=True))

    # -- its connection, in a thread of the listener ---------------------------------------------------------

    def _carry(self, connection: ssl.SSLSocket, machine: str) -> None:
        self.host = "" if self._is_local else machine
        self._tunnel = tunnel = TlsMux(connection, self._theirs)
        try:
            self._carry_through(tunnel)
        except Exception as error:
            _log.error("unexpected exception\n%s", frames(error), extra=event("crashed"))
            # No thread forwards its messages any more.
            tunnel.is_broken = True
        tunnel.close()

    def _carry_through(self, tunnel: TlsMux) -> None:
        pinged_at, is_kill_sent = 0.0, False
        while self._exit_code is None and not tunnel.is_over:
            for sign in tunnel.turn(_TURN_SECONDS):
                if sign.kind == FrameKind.BEGUN:
                    self.pid = sign.value
                elif sign.kind == FrameKind.GUARD:
                    self._guard_pid = sign.value
                elif sign.kind == FrameKind.ENDED:
                    self._exit_code = sign.value
            if self._is_dismissed and not is_kill_sent:
                tunnel.send(FrameKind.KILL)
                is_kill_sent = True
            if (now := time.monotonic()) - pinged_at > _PING_SECONDS:
                tunnel.send(FrameKind.PING)
                pinged_at = now
        while not (tunnel.is_drained or self._is_dismissed):
            tunnel.turn(_TURN_SECONDS)


def reachable(connection: Connection) -> str:
    """Return the connection string of a session as other machines need it, with its password."""
    parameters = dict(connection.info.dsn_parameters)
    # These are paths of this machine, and options that each session gets anyway.
    for name in ("passfile", "service", "servicefile", "client_encoding"):
        parameters.pop(name, None)
    password = connection.info.password
    return psycopg2.extensions.make_dsn(**parameters, **({"password": password} if password else {}))


def _refuse_local_source(dsn: str) -> None:
    """Raise RefusedError if a connection string means a different server, or none, on another machine."""
    parameters = psycopg2.extensions.parse_dsn(dsn)
    for host in (parameters.get("hostaddr") or parameters.get("host") or "").split(","):
        if not host or host[0] in "/@" or is_loopback(host):
            raise RefusedError(
                "executors would look for PostgreSQL on their own machine: the host in its "
                "connection string is " + (host or "not set"),
                "set the host to a name or address that other machines can reach",
            )
