"""Start ``bwtui`` in processes forked from one that has already imported the relay.

The imports of ``bwtui connect`` take 0.7 s of CPU, and the tests start it hundreds of times. A forked process
has its own arguments, environment, folder, standard streams and random numbers, is a child of the tests'
process, and ends as Python ends: the tests may wait for it, send it signals and kill it. Other processes do
not see its command line and environment, however: tests of those use `fresh`.
"""

import atexit
import ctypes
import functools
import itertools
import json
import os
import random
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_PR_SET_CHILD_SUBREAPER = 36
#: The interpreter reads these only when it starts.
_READ_AT_START = ("PYTHON", "LC_", "LANG", "LD_", "MALLOC_")
#: Options of Popen that a forked process supports; it would silently ignore the others.
_GIVEN = frozenset(("stdin", "stdout", "stderr", "cwd", "text", "bufsize"))
#: A forked process hashes texts as the one that forks. So data written in the order of a set, and read in it
#: by the next process, would never fail if always the same one forked. A random one of these does, and every
#: sixteenth process has an interpreter of its own. Campaigns of thousands need fewer: see the Makefile.
_SERVERS = 2
_FRESH = int(os.environ.get("BWTUI_TEST_FRESH", "16"))
_numbers = itertools.count()
_chance = random.Random()
_lock = threading.Lock()

#: Reads a request for each process, with its streams, and answers with its id. A forked process leaves the
#: loop, and its parent exits immediately, so that the tests' own process adopts it.
_SERVER = """
import json, os, socket, sys, time
import bwtui.cli.connect, bwtui.cli.output.headless, bwtui.relay.engine
from bwtui.cli.main import main

orders = socket.socket(fileno=int(sys.argv[1]))
while True:
    size, streams, _, _ = socket.recv_fds(orders, 8, 3)
    if not size:
        os._exit(0)
    order = orders.recv(int.from_bytes(size, "big"), socket.MSG_WAITALL)
    answers, answer = os.pipe()
    between = os.fork()
    if not between:
        if not os.fork():
            break
        os._exit(0)
    os.waitpid(between, 0)
    for fd in (*streams, answer):
        os.close(fd)
    orders.sendall(os.read(answers, 8))
    os.close(answers)
for target, fd in enumerate(streams):
    os.dup2(fd, target)
arguments, folder, environment = json.loads(order)
os.chdir(folder)
os.environ.clear()
os.environ.update(environment)
time.tzset()
sys.argv = ["bwtui", *arguments]
os.write(answer, os.getpid().to_bytes(8, "big"))
orders.close()
for fd in (*streams, answers, answer):
    os.close(fd)
main()
"""


@functools.cache
def _server(_number: int) -> socket.socket:
    """Start a process that forks; it ends with the tests' process."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-c", _SERVER, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
    atexit.register(_end, ours, process)
    return ours


def _end(server: socket.socket, process: "subprocess.Popen[bytes]") -> None:
    server.close()
    process.wait()


class _Forked(subprocess.Popen[Any]):
    """A Popen whose process is forked elsewhere, but adopted by us."""

    def _execute_child(
        self, args: Sequence[str], _1: Any, _2: Any, _3: Any, _4: Any, cwd: Any, env: Any, *more: Any
    ) -> None:
        # A request for a missing folder would never be answered.
        folder = Path(cwd or ".").absolute()
        if not folder.is_dir():
            raise FileNotFoundError(folder)
        pipes = more[3:9]
        ends = [end if end != -1 else number for number, end in enumerate((pipes[0], pipes[3], pipes[5]))]
        order = json.dumps([list(args), str(folder), dict(env)]).encode()
        with _lock:
            server = _server(_chance.randrange(_SERVERS))
            _adopt(True)
            try:
                socket.send_fds(server, [len(order).to_bytes(8, "big")], ends)
                server.sendall(order)
                self.pid = int.from_bytes(server.recv(8), "big")
            finally:
                _adopt(False)
        assert self.pid, "the process that forks has ended"
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]


def _adopt(wanted: bool) -> None:
    """Start or stop being the parent of orphaned descendants."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(wanted), 0, 0, 0)


def begin(
    arguments: Sequence[str], env: Mapping[str, str] | None = None, **given: Any
) -> "subprocess.Popen[Any]":
    """Start ``bwtui`` with these arguments; the other parameters are those of `subprocess.Popen`."""
    environment = dict(os.environ if env is None else env)
    changed = {name for name, _ in environment.items() ^ os.environ.items()}
    needs_its_own = any(name.startswith(_READ_AT_START) for name in changed) or not given.keys() <= _GIVEN
    if sys.platform != "linux" or needs_its_own or next(_numbers) % _FRESH == _FRESH - 1:
        return fresh(arguments, environment, **given)
    return _Forked(arguments, env=environment, **given)


def fresh(
    arguments: Sequence[str], env: Mapping[str, str] | None = None, **given: Any
) -> "subprocess.Popen[Any]":
    """Start ``bwtui`` in an interpreter of its own, whose command line and environment are visible."""
    command = [sys.executable, "-c", "from bwtui.cli.main import main; main()", *arguments]
    return subprocess.Popen(command, env=env, **given)
