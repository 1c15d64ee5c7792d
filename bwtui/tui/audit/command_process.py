"""Runs a bwtui command in its own process: Spark never runs in the process of the screens."""

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bwtui.signals.parent_death import signalled_with_us

#: The environment variable with a command's arguments, which may include a password: other users can see
#: command lines, but not environments.
_ARGUMENTS = "BWTUI_CHILD_ARGUMENTS"
_RUN = (
    f"import json, os, sys; sys.argv[1:] = json.loads(os.environ.pop({_ARGUMENTS!r})); "
    "from bwtui.entry import main; main()"
)
_COMMAND = (sys.executable, "-P", "-c", _RUN)
#: Seconds that an interrupted command has to end cleanly: its sent messages become durable, its Java process
#: ends.
_END_SECONDS = 20.0
#: Seconds over which the rate is averaged.
_WINDOW = 5.0
_LONGEST_LINE = 1 << 20


@dataclass(frozen=True, slots=True)
class CommandPhase:
    """A phase of the command, finished or under way."""

    name: str
    began: float
    done: int = 0
    total: int = 0


class CommandProgress:
    """The phases of a command, and the speed of the present one."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.began = clock()
        self.phases: list[CommandPhase] = []
        self._points: deque[tuple[float, int]] = deque()

    @property
    def now(self) -> CommandPhase | None:
        """The present phase."""
        return self.phases[-1] if self.phases else None

    @property
    def share(self) -> float | None:
        """The share of the present phase that is done, 0 to 1, or None if unknown."""
        now = self.now
        return now.done / now.total if now is not None and now.total else None

    @property
    def rate(self) -> float | None:
        """Rows per second, or None if unknown."""
        if len(self._points) < 2:
            return None
        (start, first), (_, last) = self._points[0], self._points[-1]
        seconds = self.clock() - start
        return (last - first) / seconds if seconds > 0 else None

    @property
    def left(self) -> float | None:
        """Seconds until the present phase is done at the present rate, or None if unknown."""
        now, rate = self.now, self.rate
        if now is None or not now.total or not rate:
            return None
        return (now.total - now.done) / rate

    def take(self, line: str) -> bool:
        """Parse a line of ``--progress-json``; return whether it was one."""
        try:
            event = json.loads(line)
            name, done, total = str(event["phase"]), int(event.get("done", 0)), int(event.get("total", 0))
        except (ValueError, KeyError, TypeError):
            return False
        moment = self.clock()
        if self.now is None or self.now.name != name:
            self._points.clear()
            self.phases.append(CommandPhase(name, moment))
        self.phases[-1] = CommandPhase(name, self.phases[-1].began, done, total)
        if not self._points and total:
            self._points.append((self.phases[-1].began, 0))
        if total:
            self._points.append((moment, done))
        while len(self._points) > 2 and moment - self._points[0][0] > _WINDOW:
            self._points.popleft()
        return True


@dataclass(frozen=True, slots=True)
class CommandExit:
    """The end of a command."""

    code: int
    output: bytes
    #: The error that it reported, in one sentence, and the hint.
    error: str = ""
    hint: str = ""


class CommandProcess:
    """One run of ``bwtui``; the arguments include ``--progress-json`` if the command has it."""

    def __init__(self, arguments: Sequence[str], command: Sequence[str] = _COMMAND) -> None:
        self.arguments = tuple(arguments)
        self.progress = CommandProgress()
        self.cancelled = False
        self._command = tuple(command)
        self._process: asyncio.subprocess.Process | None = None

    @property
    def only_looks(self) -> bool:
        """True if the command changes nothing in any service and in no file of the user."""
        return self.arguments[0] == "verify" or "--dry-run" in self.arguments

    async def run(self) -> CommandExit:
        """Run it to its end."""
        # Its own session shields it from the terminal's Ctrl-C: the screens end it cleanly.
        process = self._process = await asyncio.create_subprocess_exec(
            *self._command,
            env={**os.environ, _ARGUMENTS: json.dumps(self.arguments)},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=_LONGEST_LINE,
            start_new_session=True,
            preexec_fn=signalled_with_us(signal.SIGINT),
        )
        assert process.stdout is not None and process.stderr is not None
        if self.cancelled:
            process.send_signal(signal.SIGINT)
        try:
            output, messages = await asyncio.gather(process.stdout.read(), self._listen(process.stderr))
            code = await process.wait()
        finally:
            await self.end()
        return CommandExit(code, output, *_error(messages, code))

    def cancel(self) -> None:
        """Interrupt it; `run` returns when it has ended."""
        self.cancelled = True
        self._send(signal.SIGINT)

    async def end(self) -> None:
        """End it now if it is still running, and wait for its exit."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        self.cancel()
        try:
            await asyncio.wait_for(process.wait(), _END_SECONDS)
        except TimeoutError:
            self._send(signal.SIGKILL)
            await process.wait()

    def _send(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def _listen(self, stream: asyncio.StreamReader) -> list[str]:
        """Record the progress, and return all other lines."""
        messages: list[str] = []
        while line := await stream.readline():
            text = line.decode("utf-8", "replace").rstrip()
            if not self.progress.take(text) and text:
                messages.append(text)
        return messages


def _error(messages: list[str], code: int) -> tuple[str, str]:
    error = next((line for line in messages if line.startswith("bwtui: error: ")), "")
    hint = next((line for line in messages if line.startswith("hint: ")), "")
    if not error and code not in (0, 1, 3):
        # Whatever failed, the last line is the most informative.
        return (messages[-1] if messages else f"the command ended with exit code {code} and said nothing"), ""
    return error.removeprefix("bwtui: error: "), hint.removeprefix("hint: ")
