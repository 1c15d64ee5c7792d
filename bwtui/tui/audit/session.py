"""The commands that audit, replay and repair, each in its own process, and the audits that start them."""

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bwtui.durable_files import write_atomically
from bwtui.errors import BwtuiError, UsageError
from bwtui.signals.parent_death import signalled_with_us
from bwtui.state_folder import STATE_HOME_HINT, state_root
from bwtui.tui.audit.records import SingleRecordReader
from bwtui.tui.audit.report import AuditReport, parse_report, read_report
from bwtui.tui.base import figures

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
    def is_read_only(self) -> bool:
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
        silent = f"the command ended with exit code {code} and without an error message"
        return messages[-1] if messages else silent, ""
    return error.removeprefix("bwtui: error: "), hint.removeprefix("hint: ")


#: Options of ``verify`` for the screens: progress as JSON, and up to 10,000 findings per class.
_REPORT_OPTIONS = ("--json", "--show-values", "--findings", "10000", "--progress-json")


@dataclass(frozen=True, slots=True)
class Connections:
    """Addresses of Kafka and the schema registry, from the command line, the environment or a file."""

    broker: str
    registry: str
    #: Other options that are passed on: -C and --profile.
    arguments: tuple[str, ...] = ()
    #: Create a reader of single records for a broker and a registry.
    connect: Callable[[str, str], SingleRecordReader] | None = None


@dataclass(slots=True)
class BackgroundJob:
    """A command that runs in the background."""

    #: "Verify", "Dry run", "Replay" or "Try DDL".
    title: str
    child: CommandProcess
    #: Called with its result, and with whether its dialog was in front when it ended.
    then: Callable[[Any, bool], None] = field(repr=False)
    ended: CommandExit | None = None

    @property
    def failed(self) -> bool:
        """True if it ended with an error."""
        if self.ended is None:
            return False
        # A command that found differences reports that on stderr, in addition to its result.
        has_report = self.ended.code == 1 and bool(self.ended.output)
        return self.ended.code not in (0, 1, 3) or (bool(self.ended.error) and not has_report)

    def line(self) -> str:
        """Return the progress in a few words."""
        progress = self.child.progress
        share, now = progress.share, progress.now
        phase = now.name.partition(":")[0] if now else "starting"
        return f"{self.title}: {phase}" + (f" {figures.percent(share)}" if share is not None else "")


class AuditSession:
    """The report, and the command that runs in the background."""

    def __init__(self, connections: Connections | None = None, report: AuditReport | None = None) -> None:
        self.connections = connections
        self.report = report
        self.job: BackgroundJob | None = None
        #: The last audit that ended without a report.
        self.failed: CommandExit | None = None

    def side(self) -> SingleRecordReader | None:
        """Return a reader of single records, or None without the addresses of Kafka. Raises BwtuiError."""
        services = self.connections
        if services is None or services.connect is None:
            return None
        return services.connect(services.broker, services.registry)

    def take(self, output: bytes) -> AuditReport:
        """Parse and keep the output of ``verify --json``. Raises BwtuiError."""
        self.report, self.failed = _parsed(output), None
        return self.report


class RelayAuditSession(AuditSession):
    """The audits of a running relay, which compare its tables with its topics."""

    def __init__(self, name: str, connect: Callable[[], SingleRecordReader] | None = None) -> None:
        super().__init__()
        self._name = name
        self._connect = connect

    def side(self) -> SingleRecordReader | None:
        return None if self._connect is None else self._connect()

    def verify_arguments(self, tables: str) -> tuple[str, ...]:
        """Return the arguments of an audit; ``tables`` is a regex, or empty for all tables."""
        more = ("--table", tables) if tables else ()
        return ("verify", "--database", "--relay", self._name, *_REPORT_OPTIONS, *more)

    def repair_arguments(self, report: AuditReport | None) -> tuple[str, ...]:
        """Return the arguments of a repair, without --dry-run and --yes: of a report's tables, or of all."""
        listed_tables = report.raw.get("tables", ()) if report is not None else ()
        tables = [part for table in listed_tables for part in ("--table", re.escape(str(table)))]
        return ("repair", "--relay", self._name, *tables, "--json", "--progress-json")

    def trial_arguments(self, script: str) -> tuple[str, ...]:
        """Return the arguments of a trial of the DDL file ``script``; if empty, of the tables as they are."""
        more = ("--ddl", script) if script else ()
        return ("schema", "check", "--relay", self._name, "--json", *more)


class RecordingAuditSession(AuditSession):
    """The audits of an open recording, and the commands that audit and replay it."""

    def __init__(
        self, folder: Path, connections: Connections | None = None, report: AuditReport | None = None
    ) -> None:
        super().__init__(connections, report)
        self.folder = folder
        #: The recording's id, after which the file of its last report is named.
        self.recording = ""
        #: The result of a dry run that has not been shown yet, with the arguments of the actual run.
        self.plan: tuple[dict[str, Any], tuple[str, ...]] | None = None

    # -- the last report -----------------------------------------------------------------------------------

    @property
    def report_path(self) -> Path:
        """The file of this recording's last report."""
        name = "".join(letter for letter in self.recording if letter.isalnum()) or self.folder.name
        return state_root() / "audits" / f"{name}.json"

    def remember(self) -> None:
        """Load the last report of this recording, if there is one."""
        with contextlib.suppress(UsageError):
            if self.report is None:
                self.report = read_report(self.report_path)

    def take(self, output: bytes) -> AuditReport:
        """Save the output of ``verify --json``, and return it as a report. Raises BwtuiError."""
        report = _parsed(output)
        path = self.report_path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, output.decode())
        except OSError as error:
            raise BwtuiError(
                f"can't save the report in {path.parent}: {error.strerror}", STATE_HOME_HINT
            ) from error
        self.report, self.failed = parse_report(report.raw, path), None
        if self.plan is not None and "--only-missing" in self.plan[1]:
            # The plan belongs to the previous report, and would send what the new one finds missing.
            self.plan = None
        return self.report

    # -- commands ------------------------------------------------------------------------------------------

    def verify_arguments(self, *, deep: bool) -> tuple[str, ...]:
        """Return the arguments of an audit."""
        more = ("--deep",) if deep else ()
        return ("verify", str(self.folder), *self._services(), *_REPORT_OPTIONS, *more)

    def replay_arguments(self, options: dict[str, str], *, mend: bool) -> tuple[str, ...]:
        """Return the arguments of a replay, without --dry-run and --yes."""
        arguments = [part for name, value in options.items() if value for part in (name, value)]
        if mend and self.report is not None and self.report.path is not None:
            arguments += ["--only-missing", str(self.report.path)]
        return ("replay", str(self.folder), *self._services(), *arguments, "--json", "--progress-json")

    def _services(self) -> tuple[str, ...]:
        services = self.connections or Connections("localhost:9092", "http://localhost:8081")
        return ("-b", services.broker, "-r", services.registry, *services.arguments)


def _parsed(output: bytes) -> AuditReport:
    try:
        return parse_report(json.loads(output))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BwtuiError(
            "the audit returned no readable report", "run 'bwtui verify' in a terminal to see its messages"
        ) from error
