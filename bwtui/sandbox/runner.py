"""Run one service: the commands before it, the process itself, the wait until it is ready, the stop."""

import contextlib
import enum
import os
import signal
import subprocess
import threading
import time
from pathlib import Path

from bwtui.sandbox import processes
from bwtui.sandbox.service import ServiceFailure, ServiceProcess

#: Timeout in seconds for a service to answer after its start.
START_SECONDS = 90.0
#: Timeout in seconds, before a start, for other processes to leave the service's folder. One may be a user's
#: shell, so this wait is limited.
REMAINS_SECONDS = 10.0
#: Seconds for a fast stop, after a clean one took too long.
HASTE_SECONDS = 5.0
PROBE_SECONDS = 0.05
#: Additional seconds for a clean stop of a Java program that writes its class archive.
ARCHIVE_SECONDS = 20.0
#: Maximum size of the log's end that is searched for the reason of a failure, in bytes.
_LOG_TAIL = 256 * 1024


class ServiceState(enum.StrEnum):
    """The state of a service."""

    STOPPED = "stopped"
    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"
    #: It ended without a command; it is started again only by a command.
    DIED = "died"

    @property
    def settled(self) -> bool:
        """Return whether it stays so until a command arrives or the process dies."""
        return self not in (ServiceState.STARTING, ServiceState.STOPPING)


class ServiceRunner:
    """Runs one service. Every method returns at once, `tick` makes progress; only for the main thread."""

    def __init__(self, service: ServiceProcess) -> None:
        self.service = service
        self.state = ServiceState.STOPPED
        #: The reason why it died.
        self.death = ServiceFailure("")
        self._log_start = 0
        self._before = list(service.before)
        self._preparing = False
        self._process: subprocess.Popen[bytes] | None = None
        self._answered = threading.Event()
        self._deadline = 0.0
        self._patience = 0.0
        self._harshest = False

    @property
    def pid(self) -> int | None:
        """Process id, or None when nothing runs."""
        return self._process.pid if self._process else None

    def start(self) -> None:
        """Begin to start the service, unless it is running."""
        if self.state in (ServiceState.STOPPED, ServiceState.DIED):
            self.state, self.death = ServiceState.STARTING, ServiceFailure("")
            self._deadline = time.monotonic() + START_SECONDS
            self._patience = time.monotonic() + REMAINS_SECONDS
            self.tick()

    def stop(self) -> None:
        """Ask the service to stop cleanly; a fast stop and a kill follow if it does not."""
        self._end(self.service.stop_signal)

    def kill(self) -> None:
        """Kill the service with SIGKILL, like a crash."""
        self._end(signal.SIGKILL)

    def tick(self) -> None:
        """Check what has happened since the last call, and react."""
        code = self._process.poll() if self._process else None
        if code is not None:
            self._process = None
            if self.service.classes:
                self.service.classes.keep(code)
            self._ended(code)
        elif self.state is ServiceState.STARTING:
            self._go_on_starting()
        elif self.state is ServiceState.STOPPING:
            self._go_on_stopping()

    def _go_on_starting(self) -> None:
        if time.monotonic() > self._deadline:
            self._died(f"was not ready after {START_SECONDS:.0f} seconds")
            if self._process:
                self._process.kill()
        elif self._process is None:
            if time.monotonic() > self._patience or not processes.working_in(self.service.folder):
                self._launch()
        elif self._answered.is_set():
            self.state = ServiceState.READY

    def _go_on_stopping(self) -> None:
        if self._process is None:
            if not processes.working_in(self.service.folder) or time.monotonic() > self._deadline:
                self.state = ServiceState.STOPPED
        elif time.monotonic() > self._deadline:
            # First the service's own signal for a fast stop, then SIGKILL.
            self._signal(signal.SIGKILL if self._harshest else self.service.kill_signal)
            self._harshest = True
            self._deadline = time.monotonic() + HASTE_SECONDS

    def _launch(self) -> None:
        service = self.service
        self._log_start = service.log.stat().st_size if service.log.exists() else 0
        self._preparing = bool(self._before)
        self._process = processes.start(
            self._before[0] if self._preparing else self._command(),
            service.log,
            service.folder,
            environment=service.environment,
            user=service.user,
            group=service.group,
            parent_death=service.kill_signal,
        )
        if not self._preparing:
            self._answered = threading.Event()
            probe = threading.Thread(target=self._probe, args=(self._process, self._answered), daemon=True)
            probe.start()

    def _command(self) -> tuple[str, ...]:
        program, *rest = self.service.command
        return (program, *(self.service.classes.options() if self.service.classes else ()), *rest)

    def _probe(self, process: subprocess.Popen[bytes], answered: threading.Event) -> None:
        while process.returncode is None and self.state is ServiceState.STARTING:
            # While it starts, any error is possible: the deadline decides, not the probe.
            with contextlib.suppress(Exception):
                if self.service.ready():
                    answered.set()
                    return
            time.sleep(PROBE_SECONDS)

    def _ended(self, code: int) -> None:
        if self.state is ServiceState.STOPPING:
            self._go_on_stopping()
        elif self._preparing and code == 0 and self.state is ServiceState.STARTING:
            del self._before[0]
            if not self._before:
                for path in self.service.passing:
                    path.unlink(missing_ok=True)
            self._launch()
        elif self.state is not ServiceState.DIED:
            program = Path(self._before[0][0]).name if self._preparing else "it"
            how = f"with exit code {code}" if code >= 0 else f"by {signal.Signals(-code).name}"
            self._died(f"{program} ended {how}")

    def _died(self, reason: str) -> None:
        self.state, self.death = (
            ServiceState.DIED,
            self.service.explain(self._logged()) or ServiceFailure(reason),
        )

    def _logged(self) -> str:
        """Return the end of the output of the last process."""
        with contextlib.suppress(OSError), self.service.log.open("rb") as log:
            end = log.seek(0, os.SEEK_END)
            log.seek(max(self._log_start, end - _LOG_TAIL))
            return log.read().decode(errors="replace")
        return ""

    def _end(self, how: signal.Signals) -> None:
        if self._process is None:
            self.state = ServiceState.STOPPED
            return
        self.state = ServiceState.STOPPING
        self._harshest = False
        self._deadline = time.monotonic() + self.service.stop_seconds
        if self.service.classes and self.service.classes.exit_seconds:
            self._deadline += ARCHIVE_SECONDS
        self._signal(how)

    def _signal(self, how: signal.Signals) -> None:
        if self._process:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(how)
