"""The demo as a whole: start, orderly stop, and result."""

import contextlib
import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from bwtui.demo import audits, reset, shop
from bwtui.demo.audits import VerifyRun
from bwtui.demo.interrupts import Interrupts
from bwtui.demo.logs import log_hint
from bwtui.demo.sabotage import PlantedFault, can_sabotage, sabotage
from bwtui.demo.verdict import ShopComparison, compare
from bwtui.errors import BwtuiError, Indeterminate, Interrupted
from bwtui.model.lsn import format_lsn
from bwtui.model.status import Status
from bwtui.packages.setup_progress import SetupProgress
from bwtui.relay.process import launch
from bwtui.relay.process.control import request
from bwtui.sandbox.layout import SandboxLayout, demo_folder, usable
from bwtui.sandbox.sandbox import Sandbox, ServiceAddresses
from bwtui.settings import RelaySettings
from bwtui.source.slot import committed_lsn

# The workload's process.

_STOP_TIMEOUT = 15.0


class WorkloadProcess:
    """A running workload; `latest` is its newest report."""

    def __init__(self, dsn: str, rate: float, seed: int, relay: str) -> None:
        self.latest: dict[str, Any] = {"done": False, "committed": 0, "rolled_back": 0, "rows": 0}
        # Its own session excludes it from the terminal's Ctrl-C: the demo stops its processes in order.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "bwtui.demo.workload"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._errors: list[str] = []
        self._threads = [
            threading.Thread(target=target, daemon=True) for target in (self._read, self._listen)
        ]
        for thread in self._threads:
            thread.start()
        assert self._process.stdin is not None
        # The connection string may contain a password, so it is sent through the pipe instead of an argument.
        with contextlib.suppress(BrokenPipeError):
            settings = {"dsn": dsn, "rate": rate, "seed": seed, "relay": relay}
            self._process.stdin.write(json.dumps(settings) + "\n")
            self._process.stdin.flush()

    def check(self) -> None:
        """Raise BwtuiError if the workload has ended on its own."""
        code = self._process.poll()
        if code is not None and not self.latest["done"]:
            self._join()
            raise BwtuiError(
                f"the workload ended unexpectedly with exit code {code}: {self._last_words()}",
                log_hint("postgres"),
            )

    def stop(self) -> dict[str, Any]:
        """Let the current transaction finish, and return the last report.

        Raises BwtuiError when the workload did not end cleanly, because its counts may then be wrong.
        """
        self._end()
        if not self.latest["done"]:
            raise BwtuiError(
                f"the workload did not end cleanly: {self._last_words()}", "run the demo again with --json"
            )
        return {key: value for key, value in self.latest.items() if key != "done"}

    def kill(self) -> None:
        """End the process unconditionally; does nothing if it has ended."""
        self._end()

    def _end(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(_STOP_TIMEOUT)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._join()

    def _join(self) -> None:
        for thread in self._threads:
            thread.join(5)
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.latest = json.loads(line)

    def _listen(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._errors = [*self._errors[-20:], line.strip()]

    def _last_words(self) -> str:
        return self._errors[-1] if self._errors else "it printed nothing"


NAME = "demo"
SLOT = "bwtui_demo"
PREFIX = "shop"
#: Timeout for the relay's confirmation of the last write.
CATCH_UP_SECONDS = 60.0
_STOP_SECONDS = 30.0
_POLL = 0.1
#: The topic in which the demo plants faults.
_SABOTAGED = next(table.topic(PREFIX) for table in shop.TABLES if table.name == "orders")


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """The options of the demo."""

    rate: float = 300.0
    seed: int = 1
    #: Factor of the shop's initial size; 1 is the usual size.
    scale: float = 1.0
    #: Leave the sandbox running, with all its data.
    keep: bool = False
    #: The folder of the recording; empty for none.
    record: str = ""
    #: Verify the topics at the end with ``bwtui verify``, as after an incident.
    audit: bool = False
    #: Plant faults in a topic before that.
    sabotage: bool = False
    folder: Path = field(default_factory=demo_folder)


@dataclass(frozen=True, slots=True)
class SettledState:
    """The state after the last write, once the relay has confirmed it."""

    workload: dict[str, Any]
    end_lsn: int
    seconds: float
    status: Status

    def to_json(self) -> dict[str, Any]:
        """Return what the demo adds to the comparison's JSON object."""
        status = self.status
        relay = {
            "confirmed_lsn": format_lsn(status.confirmed_lsn),
            "transactions": status.transactions,
            "snapshot_rows": sum(table.snapshot_rows for table in status.tables.values()),
            "messages": sum(table.messages for table in status.tables.values()),
            "errors": sum(entry.count for entry in status.errors if entry.kind != "stalled"),
            "cpu_seconds": status.cpu_seconds,
            "resident_bytes": status.resident_bytes,
        }
        end = {"end_lsn": format_lsn(self.end_lsn), "caught_up_seconds": round(self.seconds, 3)}
        return {"workload": self.workload, "relay": relay, **end}


class Demo:
    """The running demo; `close` ends all of it in order, whatever has happened."""

    def __init__(self, options: DemoOptions, progress: SetupProgress, interrupts: Interrupts) -> None:
        self.options = options
        self.interrupts = interrupts
        self.settled: SettledState | None = None
        self._progress = progress
        self.note = progress.note
        self._abandoned = threading.Event()
        #: True once the writes are being stopped.
        self._settling = False
        self._lock: IO[str] | None = None
        self._sandbox: Sandbox | None = None
        self._services: ServiceAddresses | None = None
        self._dsn = ""
        self._workload: WorkloadProcess | None = None
        #: Folder of the recording, or empty.
        self.recording = options.record
        self._engine: launch.EngineProcess | None = None

    def start(self) -> None:
        """Start everything, from the sandbox to the relay. Raises BwtuiError."""
        self._lock_folder()
        self._sandbox = Sandbox(self.options.folder)
        # An attached sandbox ends with this process, however that ends.
        services = self._services = self._sandbox.up(self._progress, attached=not self.options.keep)
        self.note("recreating the shop: database, topics and schema subjects")
        if self.options.audit and not self.recording:
            # The audit needs a recording; it stays, and can be opened, until the next demo.
            self.recording = str(self.options.folder / "recording")
            shutil.rmtree(self.recording, ignore_errors=True)
        reset.reset_relay(NAME)
        self._dsn = shop.recreate_database(services.postgres, slots=[SLOT])
        topics = [table.topic(PREFIX) for table in shop.TABLES]
        reset.reset_topics(services.broker, PREFIX, topics)
        reset.reset_subjects(services.schema_registry, PREFIX)
        with contextlib.closing(shop.connect(self._dsn)) as connection:
            rows = shop.create(connection, self.options.seed, shop.ShopSize.scaled(self.options.scale))
        self.note(f"seeded {sum(rows.values()):,} rows in {len(rows)} tables")
        # The writes begin before the relay, so that its snapshot is taken during writes.
        with self.interrupts.shielded():
            self._workload = WorkloadProcess(self._dsn, self.options.rate, self.options.seed, NAME)
        self.note(f"{self.options.rate:g} transactions per second; starting the relay")
        with self.interrupts.shielded():
            self._engine = launch.start(self._relay_settings(services))
        self._engine.wait_ready()

    def _relay_settings(self, services: ServiceAddresses) -> RelaySettings:
        return RelaySettings(
            name=NAME,
            slot=SLOT,
            publication=SLOT,
            topic_prefix=PREFIX,
            postgres=self._dsn,
            broker=services.broker,
            schema_registry=services.schema_registry,
            allow_unkeyed=True,
            record=self.recording,
        )

    @property
    def started(self) -> bool:
        """Return whether there is anything to stop."""
        return self._sandbox is not None

    def check(self) -> None:
        """Raise the error with which the workload or the relay ended, if any."""
        assert self._workload is not None and self._engine is not None
        error = self._engine.error()
        if error is not None:
            raise error
        if self._engine.process.poll() is not None and self.settled is None:
            problem = "the relay was stopped from outside the demo, so the topics lack the later changes"
            raise Indeterminate(problem, "do not stop the demo's relay while the demo runs")
        self._workload.check()

    def check_writes(self) -> None:
        """Raise the error with which the workload ended on its own."""
        if self._workload is not None and not self._settling:
            self._workload.check()

    def status(self) -> Status:
        """Return the relay's status. Raises the relay's own error if it has ended with one."""
        try:
            return Status.from_json(request(NAME, {"request": "status"}))
        except BwtuiError:
            self.check()
            raise

    @property
    def writes(self) -> dict[str, Any]:
        """The workload's newest counts."""
        return self._workload.latest if self._workload else {}

    def settle(self, *, quiet: bool = False) -> SettledState:
        """Stop the writes, and wait until the relay has confirmed the last one; later calls do nothing.

        Set ``quiet`` while the screens are shown, since a note would garble them. Raises Indeterminate when
        the relay does not confirm in time: the topics then lack rows for a good reason.
        """
        if self.settled is None:
            assert self._workload is not None
            self._settling = True
            if not quiet:
                self.note("stopping the writes and waiting until the relay confirms the last one")
            counts = self._workload.stop()
            with contextlib.closing(shop.connect(self._dsn)) as connection:
                connection.autocommit = True
                end = committed_lsn(connection)
            start = time.monotonic()
            status = self._wait_until_confirmed(end)
            self.settled = SettledState(counts, end, time.monotonic() - start, status)
        return self.settled

    def _wait_until_confirmed(self, end: int) -> Status:
        deadline = time.monotonic() + CATCH_UP_SECONDS
        while True:
            status = self.status()
            if status.confirmed_lsn >= end:
                return status
            if time.monotonic() > deadline:
                raise Indeterminate(
                    f"the relay confirmed only {format_lsn(status.confirmed_lsn)}, not {format_lsn(end)},"
                    f" within {CATCH_UP_SECONDS:.0f} s after the last write",
                    status.detail or "the machine may be too slow: run the demo again with fewer --seconds",
                )
            if self._abandoned.wait(_POLL):
                raise Interrupted()

    def abandon(self) -> None:
        """Cancel any wait, for instance in a different thread, because the demo ends."""
        self._abandoned.set()

    def stop_relay(self) -> None:
        """Stop the relay cleanly. Raises the error with which it ended instead."""
        assert self._engine is not None
        self._engine.stop(_STOP_SECONDS)
        error = self._engine.error()
        if error is not None:
            raise error

    def audit_tables(self) -> VerifyRun:
        """Verify the topics against the tables; the relay must be running: the audit queries its progress."""
        assert self._services is not None
        self.note("verifying the tables: bwtui verify --database")
        arguments = ["--database", "-s", SLOT, "--publication", SLOT, "-p", PREFIX]
        return audits.run("tables", arguments, self._environment(), self.interrupts)

    def audit_recording(self) -> VerifyRun:
        """Verify the topics against the recording, which must be finished."""
        self.note(f"verifying the recording: bwtui verify {self.recording}")
        return audits.run("recording", [self.recording], self._environment(), self.interrupts)

    def _environment(self) -> dict[str, str]:
        assert self._services is not None
        return {
            "BWTUI_POSTGRES": self._dsn,
            "BWTUI_BROKER": self._services.broker,
            "BWTUI_SCHEMA_REGISTRY": self._services.schema_registry,
        }

    def wait_until_sabotable(self) -> None:
        """Let the writes continue until the topic of the orders has enough records for every fault."""
        assert self._services is not None
        deadline = time.monotonic() + CATCH_UP_SECONDS
        while not can_sabotage(self._services.broker, _SABOTAGED, self.options.seed):
            self.check()
            if time.monotonic() > deadline:
                # `sabotage` raises the error.
                return
            if self._abandoned.wait(_POLL):
                raise Interrupted()

    def sabotage(self) -> list[PlantedFault]:
        """Plant faults in the topic of the orders, and return them."""
        assert self._services is not None
        faults = sabotage(self._services.broker, _SABOTAGED, self.options.seed)
        self.note(f"planted {len(faults)} faults in {_SABOTAGED}")
        return faults

    def compare(self) -> ShopComparison:
        """Compare the topics with the tables, as ``bwtui verify --database`` does; the relay has stopped."""
        assert self._services is not None
        self.note("comparing the topics with the tables")
        return compare(self._relay_settings(self._services), shop.TABLES)

    def close(self) -> None:
        """End workload, relay and sandbox, in this order, each even if ending another one fails."""
        with contextlib.ExitStack() as stack:
            if self._lock is not None:
                stack.callback(self._lock.close)
            if self._sandbox is not None and not self.options.keep:
                stack.callback(self._sandbox.down)
            if self._engine is not None:
                stack.callback(self._engine.stop, _STOP_SECONDS)
            if self._workload is not None:
                stack.callback(self._workload.kill)

    def _lock_folder(self) -> None:
        folder = self.options.folder
        with usable(folder):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = SandboxLayout(folder).lock_demo()


class ForwardedProgress(SetupProgress):
    """Forwards progress, and ignores a closed stderr, which does not end a demo."""

    def __init__(self, progress: SetupProgress) -> None:
        self._progress = progress

    def note(self, text: str) -> None:
        with contextlib.suppress(OSError):
            self._progress.note(text)

    def fetched(self, done: int, total: int) -> None:
        with contextlib.suppress(OSError):
            self._progress.fetched(done, total)


@contextlib.contextmanager
def running(options: DemoOptions, progress: SetupProgress) -> Iterator[Demo]:
    """Start the demo; after the block, or on any signal, end everything that it started."""
    notes = ForwardedProgress(progress)
    with Interrupts() as interrupts:
        demo = Demo(options, notes, interrupts)
        try:
            demo.start()
            yield demo
        finally:
            interrupts.hold()
            if demo.started:
                notes.note("stopping everything")
            demo.close()
