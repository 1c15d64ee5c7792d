"""The audits at the end of the demo: ``bwtui verify`` in a separate process, as a user would run it."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bwtui.demo.interrupts import Interrupts
from bwtui.errors import BwtuiError, DifferencesFound, Indeterminate

_STOP_SECONDS = 10.0
#: Exit codes of runs that print a report: clean, anomalies, indeterminate.
_REPORTED = (0, 1, 3)


@dataclass(frozen=True, slots=True)
class VerifyRun:
    """The result of one run of ``bwtui verify``."""

    #: The subject of the audit, in a word or two.
    subject: str
    #: The command as a user would type it.
    command: str
    report: Mapping[str, Any]

    @property
    def verdict(self) -> str:
        """clean, anomalies or indeterminate."""
        return str(self.report["verdict"])

    @property
    def sentence(self) -> str:
        """The verdict, with the classes of anomalies found."""
        sides = f"{self.report['expected']:,} expected, {self.report['actual']:,} found in Kafka"
        counts = {name: count for name, count in self.report["findings_total"].items() if count}
        classes = ", ".join(f"{count:,} {name}" for name, count in sorted(counts.items()))
        return f"{self.subject}: {self.verdict}: {sides}" + (f"; {classes}" if classes else "")

    def error(self) -> BwtuiError | None:
        """Return the error that ends the command with the right exit code, or None if it was clean."""
        if self.verdict == "clean":
            return None
        if self.verdict == "anomalies":
            return DifferencesFound(self.sentence, "'bwtui demo --headless --json' shows each of them")
        return Indeterminate(self.sentence, "'bwtui demo --headless --json' lists what could not be decided")

    def to_json(self) -> dict[str, Any]:
        """Return the audit's part of the demo's JSON object."""
        names = ("verdict", "expected", "actual", "balance", "classes", "findings", "seconds")
        return {"command": self.command, **{name: self.report.get(name) for name in names}}


def run(
    subject: str, arguments: Sequence[str], services: Mapping[str, str], interrupts: Interrupts
) -> VerifyRun:
    """Run ``bwtui verify`` with ``arguments`` on ``services``, which are passed through the environment.

    Raises Indeterminate when it could not decide, and BwtuiError when it ended with any other error.
    """
    command = [sys.executable, "-P", "-m", "bwtui", "verify", *arguments, "--json"]
    environment = {**os.environ, **services}
    with interrupts.shielded():
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,
        )
    try:
        out, err = process.communicate()
    finally:
        _end(process)
    typed = " ".join(["bwtui verify", *arguments])
    if process.returncode in _REPORTED and out.strip():
        return VerifyRun(subject, typed, json.loads(out))
    lines = [line.removeprefix("bwtui: error: ") for line in err.strip().splitlines()]
    sentence = (
        f"'{typed}' ended with exit code {process.returncode}: {lines[-2:][0] if lines else 'no message'}"
    )
    kind = Indeterminate if process.returncode == Indeterminate.exit_code else BwtuiError
    hints = [line.removeprefix("hint: ") for line in lines if line.startswith("hint: ")]
    raise kind(sentence, hints[-1] if hints else "run that command separately to see its messages")


def _end(process: subprocess.Popen[str]) -> None:
    """End the process and its Java if they are still running because the demo was interrupted."""
    if process.poll() is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGINT)
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
