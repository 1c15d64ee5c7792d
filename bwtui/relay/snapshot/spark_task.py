"""The code of a Spark task: start a worker in a separate process, connect it to the relay, and end it.

The worker is the same process that the relay would start on its own machine, and talks to the relay through a
tunnel. The relay can't end a process on another machine, so this process does.
"""

import importlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

from bwtui.crash import package_missing
from bwtui.errors import ConnectionFailed, RefusedError
from bwtui.relay.snapshot.spark_connection import ConnectionTicket, FrameKind, TlsMux, knock
from bwtui.relay.snapshot.worker_handle import COMMAND
from bwtui.signals.parent_death import signalled_with_us
from bwtui.spark.failure import in_task

_KNOCK_SECONDS = 10.0
#: The relay sends a ping every second or so, far more often than this.
_SILENT_SECONDS = 8.0
_TURN_SECONDS = 0.2
#: Timeout for the relay to learn that the worker has ended.
_LAST_SECONDS = 5.0


@in_task
def work(call: ConnectionTicket, _: Iterator[Any]) -> Iterator[None]:
    """Work for the calling relay, until the worker has ended. Raises BwtuiError if it can't begin."""
    machine = socket.gethostname()
    _check_packages(machine)
    try:
        connection = knock(call, machine, _KNOCK_SECONDS)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ConnectionFailed(
            f"the Spark executor on {machine} can't reach the relay at {call.host}:{call.port}: {reason}",
            "allow executors to connect: spark.driver.host sets the relay's address, "
            "spark.bwtui.port a fixed port",
        ) from error
    if connection is None:
        raise RefusedError("the relay rejected this task's token", "each token can be used only once")
    ours, theirs = socket.socketpair()
    with theirs:
        process = _start(theirs)
    _guard(TlsMux(connection, ours), process)
    yield from ()


def _check_packages(machine: str) -> None:
    """Raise RefusedError if a worker would lack a package."""
    try:
        importlib.import_module(COMMAND[-1])
    except ImportError as error:
        missing = package_missing(error)
        name = error.name or "something"
        raise RefusedError(
            f"Python on the Spark executor {machine} lacks {name}, which a worker needs",
            missing.hint if missing else f"install bwtui there, for {sys.executable}",
        ) from error


def _start(theirs: socket.socket) -> "subprocess.Popen[bytes]":
    # The zip that Spark distributed is only on this process's path.
    path = os.pathsep.join(entry for entry in sys.path if entry)
    return subprocess.Popen(
        [sys.executable, *COMMAND[1:]],
        stdin=theirs.fileno(),
        stdout=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": path},
        start_new_session=True,
        preexec_fn=signalled_with_us(signal.SIGKILL),  # noqa: PLW1509  # Two functions of libc.
    )


def _guard(tunnel: TlsMux, process: "subprocess.Popen[bytes]") -> None:
    """Forward data both ways, and end the worker if the relay asks for it, or is gone."""
    try:
        tunnel.send(FrameKind.GUARD, os.getpid())
        tunnel.send(FrameKind.BEGUN, process.pid)
        while tunnel.has_inside and not tunnel.is_over:
            if any(sign.kind == FrameKind.KILL for sign in tunnel.turn(_TURN_SECONDS)):
                break
            if time.monotonic() - tunnel.heard_at > _SILENT_SECONDS:
                break
    finally:
        _end(process, is_hung_up=not tunnel.has_inside)
    tunnel.send(FrameKind.ENDED, process.wait())
    until = time.monotonic() + _LAST_SECONDS
    # Wait until the relay closes the connection: what it has not read before would be lost.
    while not tunnel.is_over and time.monotonic() < until:
        tunnel.turn(_TURN_SECONDS)
    tunnel.close()


def _end(process: "subprocess.Popen[bytes]", *, is_hung_up: bool) -> None:
    try:
        # The exit code of a worker that ends on its own is available a moment later.
        process.wait(1.0 if is_hung_up else 0.0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
