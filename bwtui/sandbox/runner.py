"""Runs one service: the commands before it, the process itself, the wait until it is ready, the end."""

import contextlib
import enum
import os
import signal
import subprocess
import threading
import time
from pathlib import Path

from bwtui.sandbox import processes
from bwtui.sandbox.service import Death, Service

#: Seconds a service may take from its start until it answers.
START_SECONDS = 90.0
#: Seconds to wait, before a start, until nobody works in the service's folder any more. It may also be
#: a user's shell, so it is not waited for without end.
REMAINS_SECONDS = 10.0
#: Seconds for a hasty end, where the clean one took too long.
HASTE_SECONDS = 5.0
PROBE_SECONDS = 0.05
#: More for a clean end of a Java program that leaves the archive of its classes.
ARCHIVE_SECONDS = 20.0
#: So much of the log's end is looked at for the reason of a death, in bytes.
_LOG_TAIL = 256 * 1024


class State(enum.StrEnum):
    """Where a service is in its life."""

    STOPPED = "stopped"
    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"
    #: It ended by itself; nobody starts it again without being asked.
    DIED = "died"

    @property
    def settled(self) -> bool:
        """Say whether it stays so until somebody asks for something or the process dies."""
        return self not in (State.STARTING, State.STOPPING)


class Runner:
    """One service. Every method returns at once, and `tick` moves things on; for the main thread only."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.state = State.STOPPED
        #: Why it died.
        self.death = Death("")
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
        """Begin to start the service; does nothing when it runs already."""
        if self.state in (State.STOPPED, State.DIED):
            self.state, self.death = State.STARTING, Death("")
            self._deadline = time.monotonic() + START_SECONDS
            self._patience = time.monotonic() + REMAINS_SECONDS
            self.tick()

    def stop(self) -> None:
        """Ask the service to end cleanly; haste and force follow when it does not."""
        self._end(self.service.stop_signal)

    def kill(self) -> None:
        """End the service as a crash would, with SIGKILL."""
        self._end(signal.SIGKILL)

    def tick(self) -> None:
        """Notice what happened since the last call, and do what follows."""
        code = self._process.poll() if self._process else None
        if code is not None:
            self._process = None
            if self.service.classes:
                self.service.classes.keep(code)
            self._ended(code)
        elif self.state is State.STARTING:
            self._go_on_starting()
        elif self.state is State.STOPPING:
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
            self.state = State.READY

    def _go_on_stopping(self) -> None:
        if self._process is None:
            if not processes.working_in(self.service.folder) or time.monotonic() > self._deadline:
                self.state = State.STOPPED
        elif time.monotonic() > self._deadline:
            # First what the service itself has for haste, then what nothing withstands.
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
        while process.returncode is None and self.state is State.STARTING:
            # Whatever is wrong while it starts: the deadline judges, not the probe.
            with contextlib.suppress(Exception):
                if self.service.ready():
                    answered.set()
                    return
            time.sleep(PROBE_SECONDS)

    def _ended(self, code: int) -> None:
        if self.state is State.STOPPING:
            self._go_on_stopping()
        elif self._preparing and code == 0 and self.state is State.STARTING:
            del self._before[0]
            if not self._before:
                for path in self.service.passing:
                    path.unlink(missing_ok=True)
            self._launch()
        elif self.state is not State.DIED:
            what = Path(self._before[0][0]).name if self._preparing else "it"
            how = f"with exit code {code}" if code >= 0 else f"by {signal.Signals(-code).name}"
            self._died(f"{what} ended {how}")

    def _died(self, reason: str) -> None:
        self.state, self.death = State.DIED, self.service.explain(self._logged()) or Death(reason)

    def _logged(self) -> str:
        """Return the end of what the process that ran last has written."""
        with contextlib.suppress(OSError), self.service.log.open("rb") as log:
            end = log.seek(0, os.SEEK_END)
            log.seek(max(self._log_start, end - _LOG_TAIL))
            return log.read().decode(errors="replace")
        return ""

    def _end(self, how: signal.Signals) -> None:
        if self._process is None:
            self.state = State.STOPPED
            return
        self.state = State.STOPPING
        self._harshest = False
        self._deadline = time.monotonic() + self.service.stop_seconds
        if self.service.classes and self.service.classes.exit_seconds:
            self._deadline += ARCHIVE_SECONDS
        self._signal(how)

    def _signal(self, how: signal.Signals) -> None:
        if self._process:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(how)
