"""The way of bwtui: one relay, with its start; what it used is what the kernel says at its end."""

import contextlib
import os
import resource
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.bench_table import BWTUI, environment
from benchmarks.debezium.runs import Relaying, Run, slot_of
from benchmarks.debezium.source import PUBLICATION
from benchmarks.debezium.topics import NO_FIGURES
from benchmarks.debezium.workloads import Kind
from benchmarks.processes import watched
from bwtui.errors import BwtuiError
from bwtui.signals.parent_death import signalled_with_us

_LOOK_SECONDS = 0.25
_END_SECONDS = 120.0


@contextlib.contextmanager
def bwtui_relays(run: Run) -> Iterator[Relaying]:
    """Run a relay, which ends by itself when it has caught up, or is stopped behind the block.

    Raises BwtuiError if it does not end well.
    """
    with slot_of(run, run.name) as slot:
        child = _Child(run, slot)
        relaying = Relaying(child.check)
        try:
            with watched(child.pid, _LOOK_SECONDS) as seen:
                yield relaying
                child.end(is_asked=run.workload.kind is Kind.LATENCY)
            relaying.used.resident_mb = seen.peak_mb.get("all", 0.0)
            relaying.used.cpu_seconds = child.cpu_seconds
        finally:
            child.kill()


class _Child:
    """The relay's process, of which the kernel says what it and its workers have used."""

    def __init__(self, run: Run, slot: str) -> None:
        self._log = run.folder / "bwtui.log"
        self._usage: resource.struct_rusage | None = None
        self._code = 0
        with self._log.open("wb") as output:
            process = subprocess.Popen(
                [*BWTUI, "connect", *_options(run, slot)],
                env=_environment(run),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=output,
                preexec_fn=signalled_with_us(signal.SIGKILL),  # noqa: PLW1509
            )
        self._process = process
        self.pid = process.pid

    @property
    def cpu_seconds(self) -> float:
        """User's and system's, of the process and of those that it has waited for."""
        return self._usage.ru_utime + self._usage.ru_stime if self._usage is not None else 0.0

    def check(self) -> None:
        """Raise BwtuiError if it ended otherwise than well."""
        if self._has_ended() and self._code:
            raise BwtuiError(
                f"bwtui ended with {self._code}: {self._log.read_text(errors='replace')[-2000:].strip()}",
                NO_FIGURES,
            )

    def end(self, *, is_asked: bool) -> None:
        """Wait until it has ended, by itself or as it ``is_asked`` to. Raises BwtuiError."""
        if is_asked and not self._has_ended():
            os.kill(self.pid, signal.SIGTERM)
        deadline = time.monotonic() + _END_SECONDS
        while not self._has_ended():
            if time.monotonic() > deadline:
                raise BwtuiError(
                    f"bwtui does not end, {_END_SECONDS:.0f} seconds after its last message", "run it again"
                )
            time.sleep(0.02)
        self.check()

    def kill(self) -> None:
        """End it, if it is still there."""
        if not self._has_ended():
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self._process.returncode = -signal.SIGKILL

    def _has_ended(self) -> bool:
        if self._usage is None:
            pid, code, usage = os.wait4(self.pid, os.WNOHANG)
            if pid:
                self._usage, self._code = usage, os.waitstatus_to_exitcode(code)
                self._process.returncode = self._code
        return self._usage is not None


def _options(run: Run, slot: str) -> list[str]:
    options = ["-s", slot, "-p", run.name, "--publication", PUBLICATION, "--headless"]
    options += [] if run.workload.kind is Kind.SNAPSHOT else ["-x"]
    options += [] if run.workload.kind is Kind.LATENCY else ["--until-caught-up"]
    _, _, what = run.way.partition("-")
    if what == "record":
        options += ["--record", str(run.folder / "recording")]
    elif what == "exactly":
        options += ["--exactly-once"]
    elif what:
        options += ["--snapshot-workers", what]
    return options


def _environment(run: Run) -> dict[str, str]:
    """Return that of a relay that has not run before."""
    own: dict[str, str | Path] = {
        "BWTUI_POSTGRES": run.source.dsn,
        "BWTUI_STATE_HOME": run.folder / "state",
    }
    return {**environment(run.services), **{name: str(value) for name, value in own.items()}}
