"""The audits of the screens: the last report, the addresses of Kafka, and the running command."""

import contextlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bwtui.durable_files import write_atomically
from bwtui.errors import BwtuiError, UsageError
from bwtui.state_folder import state_root
from bwtui.tui import figures
from bwtui.tui.audit.command_process import CommandExit, CommandProcess
from bwtui.tui.audit.kafka_records import SingleRecordReader
from bwtui.tui.audit.report import AuditReport, parse_report, read_report

#: Options of ``verify`` for the screens: progress as JSON, and up to 10,000 findings per class.
_REPORT = ("--json", "--show-values", "--findings", "10000", "--progress-json")


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
        told = self.ended.code == 1 and bool(self.ended.output)
        return self.ended.code not in (0, 1, 3) or (bool(self.ended.error) and not told)

    def line(self) -> str:
        """Return the progress in a few words."""
        progress = self.child.progress
        share, now = progress.share, progress.now
        what = now.name.partition(":")[0] if now else "starting"
        return f"{self.title}: {what}" + (f" {figures.percent(share)}" if share is not None else "")


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
        """Return a reader of single records, with the addresses from the relay. Raises BwtuiError."""
        return None if self._connect is None else self._connect()

    def verify_arguments(self, tables: str) -> tuple[str, ...]:
        """Return the arguments of an audit; ``tables`` is a regex, or empty for all tables."""
        more = ("--table", tables) if tables else ()
        return ("verify", "--database", "--relay", self._name, *_REPORT, *more)

    def repair_arguments(self, report: AuditReport | None) -> tuple[str, ...]:
        """Return the arguments of a repair, without --dry-run and --yes: of a report's tables, or of all."""
        named = report.raw.get("tables", ()) if report is not None else ()
        tables = [part for table in named for part in ("--table", re.escape(str(table)))]
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
                f"can't save the report in {path.parent}: {error.strerror}",
                "set BWTUI_STATE_HOME to a folder that you may write to",
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
        return ("verify", str(self.folder), *self._services(), *_REPORT, *more)

    def replay_arguments(self, options: dict[str, str], *, mend: bool) -> tuple[str, ...]:
        """Return the arguments of a replay, without --dry-run and --yes."""
        given = [part for name, value in options.items() if value for part in (name, value)]
        if mend and self.report is not None and self.report.path is not None:
            given += ["--only-missing", str(self.report.path)]
        return ("replay", str(self.folder), *self._services(), *given, "--json", "--progress-json")

    def _services(self) -> tuple[str, ...]:
        services = self.connections or Connections("localhost:9092", "http://localhost:8081")
        return ("-b", services.broker, "-r", services.registry, *services.arguments)


def _parsed(output: bytes) -> AuditReport:
    try:
        return parse_report(json.loads(output))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BwtuiError(
            "the audit gave no report that can be read",
            "'bwtui verify' in a terminal says what it has to say",
        ) from error
