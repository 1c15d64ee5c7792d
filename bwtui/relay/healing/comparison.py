"""The comparison after a lost slot: run ``bwtui repair --lost-slot`` in a separate process.

The memory of Spark and DuckDB then does not count against the relay, and the relay uses the same command as a
person would. Only the relay clears the pending heal, once the command reports a clean comparison.
"""

import json
import logging
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from bwtui.errors import Indeterminate
from bwtui.model.backfill_texts import snapshot_command
from bwtui.model.events import event
from bwtui.model.heal import HealStatus
from bwtui.relay.healing.heal_state import HealStateStore
from bwtui.relay.process.control import name_if_several
from bwtui.signals.parent_death import signalled_with_us

_COMMAND = (sys.executable, "-P", "-m", "bwtui")
#: Pause between failed attempts, in seconds: the first and the maximum.
_PAUSE_SECONDS, _MOST_SECONDS = 2.0, 300.0
#: Timeout for an interrupted command to end in order.
_END_SECONDS = 20.0
_log = logging.getLogger(__name__)
#: The hint after an unexpected failure of an attempt.
_LOG = "see the relay's log; the comparison is retried automatically"


class HealComparison:
    """Runs the command in its own thread, until the heal is done or somebody has to decide."""

    def __init__(
        self, relay: str, due: HealStateStore, on_end: Callable[[Indeterminate | None], None]
    ) -> None:
        """``on_end`` is called in that thread: with None once the heal is done, or with why it can't be."""
        self._relay = relay
        self._due = due
        self._on_end = on_end
        self._stop = threading.Event()
        self._command = RepairCommand(relay)
        self._thread = threading.Thread(target=self._work, name="heal", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def is_at_work(self) -> bool:
        """True if the heal is neither done nor given up."""
        return self._thread.is_alive()

    def interrupt(self) -> None:
        """Interrupt the command without waiting for it to end."""
        self._stop.set()
        self._command.interrupt()

    def stop(self) -> None:
        """Interrupt the command, wait for it to end, and kill it after a timeout."""
        self.interrupt()
        self._thread.join(_END_SECONDS)
        self._command.signal(signal.SIGKILL)

    def _work(self) -> None:
        pause = _PAUSE_SECONDS
        while not self._stop.is_set():
            try:
                if self._is_over():
                    return
            except Exception as error:
                # Without this handler the heal would never end, and nothing would report that.
                _log.warning("the comparison failed", exc_info=True, extra=event("comparison_failed"))
                self._command.signal(signal.SIGKILL)
                tries = self._due.status.tries + 1 if self._due.status is not None else 0
                kind = type(error).__name__
                self._tell(state="waiting", tries=tries, detail=f"the comparison failed: {kind}", hint=_LOG)
            self._stop.wait(pause)
            pause = min(2 * pause, _MOST_SECONDS)

    def _is_over(self) -> bool:
        """Run the command once; return whether this thread has nothing left to do."""
        self._tell(state="comparing", detail="comparing tables with topics", hint="")
        code, result, lines = self._command.run(["--lost-slot"], lambda detail: self._tell(detail=detail))
        due = self._due.status
        if due is None:
            self._on_end(None)
        elif self._stop.is_set():
            return True
        elif untrusted := result.get("untrusted"):
            self._give_up(due, list(map(str, untrusted)), result)
        else:
            why, hint = _why(code, result, lines), _hint(lines)
            self._tell(state="waiting", tries=due.tries + 1, detail=why, hint=hint)
            return False
        return True

    def _give_up(self, due: HealStatus, tables: list[str], result: dict[str, Any]) -> None:
        notes = [
            f"{one['table']}: {note}"
            for one in result["tables"]
            if not one["trusted"]
            for note in one["notes"]
        ]
        detail = "the comparison can't be trusted: " + "; ".join(notes)
        command = snapshot_command(
            tables,
            relay=name_if_several(self._relay),
            unkeyed=any(one["unkeyed"] for one in result["tables"] if not one["trusted"]),
        )
        hint = (
            f"run '{command}' to send these tables completely, then 'bwtui repair --relay "
            f"{self._relay}' to end the heal; or run 'bwtui slots drop' and start again for a new "
            "snapshot"
        )
        self._tell(state="undecided", tries=due.tries + 1, detail=detail, hint=hint)
        self._on_end(Indeterminate(f"the heal is not complete: {detail}", hint))

    def _tell(self, **changed: Any) -> None:
        now = self._due.status
        if now is not None:
            self._due.tell(replace(now, **changed))


class RepairCommand:
    """Runs ``bwtui repair`` in a separate process and reads its JSON output; one at a time."""

    def __init__(self, relay: str) -> None:
        self._relay = relay
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None

    def interrupt(self) -> None:
        """Interrupt the command, and prevent a new one, without waiting for it to end."""
        if not self._stop.is_set():
            self._stop.set()
            self.signal(signal.SIGINT)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the command, if it runs."""
        with self._lock:
            if self._child is not None and self._child.poll() is None:
                self._child.send_signal(number)

    def run(
        self, arguments: Sequence[str], on_progress: Callable[[str], None]
    ) -> tuple[int, dict[str, Any], list[str]]:
        """Run the command; return its exit code, its result, and its lines on stderr.

        The calling thread has to outlive the command, which gets a signal when that thread ends.
        """
        command = [*_COMMAND, "repair", "--relay", self._relay, "--json", "--progress-json", *arguments]
        with self._lock:
            if self._stop.is_set():
                return 130, {}, []
            child = self._child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                preexec_fn=signalled_with_us(signal.SIGINT),  # noqa: PLW1509
            )
        lines: list[str] = []
        assert child.stdout is not None and child.stderr is not None
        listener = threading.Thread(target=_listen, args=[child.stderr, on_progress, lines], daemon=True)
        listener.start()
        output = child.stdout.read()
        code = child.wait()
        listener.join()
        child.stdout.close()
        child.stderr.close()
        try:
            result = json.loads(output)
        except ValueError:
            result = {}
        return code, result if isinstance(result, dict) else {}, lines


def _listen(stream: Any, on_progress: Callable[[str], None], lines: list[str]) -> None:
    """Report progress, and collect all other lines."""
    for line in stream:
        text = line.decode("utf-8", "replace").rstrip()
        try:
            event = json.loads(text)
            done, total = int(event.get("done", 0)), int(event.get("total", 0))
            counted = f": {done:,} of {total:,}" if total else ""
            on_progress(f"{event['phase']}{counted}")
        except (ValueError, KeyError, TypeError, AttributeError):
            lines.append(text)


def _why(code: int, result: dict[str, Any], lines: list[str]) -> str:
    error = next((line for line in lines if line.startswith("bwtui: error: ")), "")
    if error:
        return error.removeprefix("bwtui: error: ")
    after = result.get("after") or result.get("before") or {}
    if result:
        return f"the comparison ended {after.get('verdict')}: {after.get('classes')}; it will be repeated"
    return lines[-1] if lines else f"the comparison ended with exit code {code}"


def _hint(lines: list[str]) -> str:
    hint = next((line for line in lines if line.startswith("hint: ")), "")
    return hint.removeprefix("hint: ")
