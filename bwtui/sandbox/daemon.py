"""The supervisor's process: starts the services, watches them, stops them, and then exits.

`python -m bwtui.sandbox.daemon FOLDER MAJOR BROKERS keep|dispose` is started by `Sandbox.up` in its own
session. It holds an exclusive lock while it lives, publishes its state in status.json, and takes commands,
one JSON object per line, from the pipe `control`. It never restarts anything without a command.

Its standard input is a pipe from the process that started it. If that pipe ends before the byte DETACH
arrives, that process has ended (Ctrl-C, kill -9, an aborted test run), and the supervisor stops everything;
with `dispose` it then removes all data.
"""

import contextlib
import fcntl
import json
import os
import selectors
import signal
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from bwtui.durable_files import write_atomically
from bwtui.packages.artifacts import ArtifactStore
from bwtui.sandbox import kafka, ports, postgres, processes, registry
from bwtui.sandbox.layout import SandboxLayout, SandboxState
from bwtui.sandbox.runner import REMAINS_SECONDS, ServiceRunner
from bwtui.sandbox.service import ServiceProcess

DETACH = b"d"
KEEP, DISPOSE = "keep", "dispose"

#: Seconds between two polls of the services: while something changes, and while nothing does.
BUSY_SECONDS = 0.03
QUIET_SECONDS = 0.5


class SandboxSupervisor:
    """Starts, watches and stops the services, in one loop that also takes commands."""

    def __init__(
        self, layout: SandboxLayout, major: int, endpoints: dict[str, str], services: list[ServiceProcess]
    ) -> None:
        self._layout = layout
        self._major = major
        self._endpoints = endpoints
        self._runners = {service.name: ServiceRunner(service) for service in services}
        self._ending = False
        #: True if the process that started the supervisor has ended without detaching it.
        self.forsaken = False
        self._orders = b""
        self._done: deque[str] = deque(maxlen=50)
        self._published: dict[str, Any] | None = None
        self._selector = selectors.DefaultSelector()

    def run(self) -> None:
        """Start everything; return when everything has stopped."""
        self._layout.clear_temporary()
        self._listen()
        for runner in self._runners.values():
            runner.start()
        while not (self._ending and all(r.pid is None and r.state.settled for r in self._runners.values())):
            self._publish()
            busy = self._ending or not all(runner.state.settled for runner in self._runners.values())
            for key, _ in self._selector.select(BUSY_SECONDS if busy else QUIET_SECONDS):
                key.data()
            for runner in self._runners.values():
                runner.tick()
        self._publish()

    def _listen(self) -> None:
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_read, False)
        os.set_blocking(wake_write, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        # A handler is needed only to interrupt the wait, so that the end of a service is noticed at once.
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        self._layout.control.unlink(missing_ok=True)
        os.mkfifo(self._layout.control, 0o600)
        # Open it for writing too: otherwise it would be at end-of-file whenever no client has it open.
        control = os.open(self._layout.control, os.O_RDWR | os.O_NONBLOCK)
        self._watch(wake_read, lambda: self._drain(wake_read))
        self._watch(control, lambda: self._on_control(control))
        self._watch(sys.stdin.fileno(), self._on_starter)

    def _watch(self, descriptor: int, handler: Callable[[], object]) -> None:
        self._selector.register(descriptor, selectors.EVENT_READ, handler)

    def _drain(self, descriptor: int) -> bytes:
        with contextlib.suppress(BlockingIOError):
            return os.read(descriptor, 65536)
        return b""

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._end()

    def _on_starter(self) -> None:
        self._selector.unregister(sys.stdin.fileno())
        if os.read(sys.stdin.fileno(), 1) != DETACH:
            self.forsaken = True
            self._end()

    def _end(self) -> None:
        if not self._ending:
            self._ending = True
            for runner in self._runners.values():
                runner.stop()

    def _on_control(self, control: int) -> None:
        *lines, self._orders = (self._orders + self._drain(control)).split(b"\n")
        for line in lines:
            order = json.loads(line)
            runner = self._runners[order["service"]]
            if not self._ending:
                {"start": runner.start, "stop": runner.stop, "kill": runner.kill}[order["do"]]()
            self._done.append(order["id"])

    def _publish(self) -> None:
        status = {
            "supervisor": os.getpid(),
            "postgres_major": self._major,
            "endpoints": self._endpoints,
            "orders": list(self._done),
            "services": {name: _describe(runner) for name, runner in self._runners.items()},
        }
        if status != self._published:
            write_atomically(self._layout.status, json.dumps(status, indent=1))
            self._published = status


def _describe(runner: ServiceRunner) -> dict[str, Any]:
    return {
        "title": runner.service.title,
        "state": str(runner.state),
        "pid": runner.pid,
        "reason": runner.death.reason,
        "hint": runner.death.hint,
        "log": str(runner.service.log),
    }


def _wait_for_remains(*folders: Path) -> None:
    deadline = time.monotonic() + REMAINS_SECONDS
    while any(processes.working_in(folder) for folder in folders) and time.monotonic() < deadline:
        time.sleep(BUSY_SECONDS)


def _services(layout: SandboxLayout, memory: SandboxState, major: int, brokers: int) -> list[ServiceProcess]:
    store = ArtifactStore()
    return [
        *kafka.services(layout, memory, store, brokers),
        registry.service(layout, memory, store),
        postgres.service(layout, memory, store, major),
    ]


def main() -> None:
    """Run the supervisor until it is asked to stop, or the process that started it has ended."""
    layout, major, brokers = SandboxLayout(Path(sys.argv[1])), int(sys.argv[2]), int(sys.argv[3])
    # The environment's PG* variables are for the user's servers, not for checks of this one.
    for name in [name for name in os.environ if name.startswith("PG")]:
        del os.environ[name]
    with layout.lock.open("r+") as lock:
        # Clients take a shared lock for a moment to check it; so wait.
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.truncate()
        lock.write(str(os.getpid()))
        lock.flush()
        memory = layout.recall()
        _wait_for_remains(layout.data, Path(memory.postgres_place or layout.data))
        names = (*kafka.ports(brokers), *registry.PORTS, *postgres.PORTS)
        memory.ports |= ports.choose(names, memory.ports)
        layout.remember(memory)
        endpoints = {
            "postgres": postgres.dsn(memory),
            "broker": kafka.addresses(memory, brokers),
            "schema_registry": registry.url(memory),
        }
        supervisor = SandboxSupervisor(layout, major, endpoints, _services(layout, memory, major, brokers))
        supervisor.run()
        layout.control.unlink(missing_ok=True)
        if supervisor.forsaken and sys.argv[4] == DISPOSE:
            layout.wipe()


if __name__ == "__main__":
    main()
