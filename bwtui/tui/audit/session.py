"""What the screens know of audits: the last report, where Kafka is, and the command that runs beside them."""

import contextlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bwtui.durable import write_whole
from bwtui.errors import BwtuiError, UsageError
from bwtui.state_folder import state_root
from bwtui.tui import figures
from bwtui.tui.audit.child import Child, Ended
from bwtui.tui.audit.kafka import KafkaSide
from bwtui.tui.audit.report import AuditReport, parse_report, read_report

#: What makes ``verify`` tell the screens: how far it is, and all that was found, up to so many of a class.
_REPORT = ("--json", "--show-values", "--findings", "10000", "--progress-json")


@dataclass(frozen=True, slots=True)
class Connections:
    """Where Kafka and the schema registry are, as the command line, the environment or a file say."""

    broker: str
    registry: str
    #: What else was given on the command line and is handed on: -C and --profile.
    arguments: tuple[str, ...] = ()
    #: Make a reader of single records, for a broker and a registry.
    connect: Callable[[str, str], KafkaSide] | None = None


@dataclass(slots=True)
class Job:
    """A command that runs beside the screens."""

    #: "Verify", "Dry run", "Replay" or "Try DDL".
    title: str
    child: Child
    #: Told of its result, and whether its dialog was in front at its end.
    then: Callable[[Any, bool], None] = field(repr=False)
    ended: Ended | None = None

    @property
    def failed(self) -> bool:
        """Whether it ended on an error."""
        if self.ended is None:
            return False
        # One that found differences says so beside its result.
        told = self.ended.code == 1 and bool(self.ended.output)
        return self.ended.code not in (0, 1, 3) or (bool(self.ended.error) and not told)

    def line(self) -> str:
        """Say in a few words how far it is."""
        progress = self.child.progress
        share, now = progress.share, progress.now
        what = now.name.partition(":")[0] if now else "starting"
        return f"{self.title}: {what}" + (f" {figures.percent(share)}" if share is not None else "")


class AuditSession:
    """The report, and the command that runs beside the screens."""

    def __init__(self, connections: Connections | None = None, report: AuditReport | None = None) -> None:
        self.connections = connections
        self.report = report
        self.job: Job | None = None
        #: The last audit that was tried and gave no report.
        self.failed: Ended | None = None

    def side(self) -> KafkaSide | None:
        """Return what reads single records, where it is known where Kafka is. Raises BwtuiError."""
        services = self.connections
        if services is None or services.connect is None:
            return None
        return services.connect(services.broker, services.registry)

    def take(self, output: bytes) -> AuditReport:
        """Take what ``verify --json`` wrote, and return it. Raises BwtuiError."""
        self.report, self.failed = _parsed(output), None
        return self.report


class RelayAuditSession(AuditSession):
    """The report of a relay that runs, of its tables against its topics."""

    def __init__(self, name: str, connect: Callable[[], KafkaSide] | None = None) -> None:
        super().__init__()
        self._name = name
        self._connect = connect

    def side(self) -> KafkaSide | None:
        """Return what reads single records; asks the relay where they are. Raises BwtuiError."""
        return None if self._connect is None else self._connect()

    def verify_arguments(self, tables: str) -> tuple[str, ...]:
        """Return the arguments of an audit; ``tables`` is a regex, or empty for all."""
        more = ("--table", tables) if tables else ()
        return ("verify", "--database", "--relay", self._name, *_REPORT, *more)

    def repair_arguments(self, report: AuditReport | None) -> tuple[str, ...]:
        """Return the arguments of a repair of a report's tables, or of all, without --dry-run and --yes."""
        named = report.raw.get("tables", ()) if report is not None else ()
        tables = [part for table in named for part in ("--table", re.escape(str(table)))]
        return ("repair", "--relay", self._name, *tables, "--json", "--progress-json")

    def trial_arguments(self, script: str) -> tuple[str, ...]:
        """Return the arguments of a trial of the DDL in file ``script``; empty: of the tables as they are."""
        more = ("--ddl", script) if script else ()
        return ("schema", "check", "--relay", self._name, "--json", *more)


class RecordingAuditSession(AuditSession):
    """The report of a recording that is open, and the commands that audit and replay it."""

    def __init__(
        self, folder: Path, connections: Connections | None = None, report: AuditReport | None = None
    ) -> None:
        super().__init__(connections, report)
        self.folder = folder
        #: The recording's id, which names the file of its last report.
        self.recording = ""
        #: A dry run whose result was not looked at yet, with the arguments to do it.
        self.plan: tuple[dict[str, Any], tuple[str, ...]] | None = None

    # -- the last report -----------------------------------------------------------------------------------

    @property
    def report_path(self) -> Path:
        """Where the last report of this recording is kept."""
        name = "".join(letter for letter in self.recording if letter.isalnum()) or self.folder.name
        return state_root() / "audits" / f"{name}.json"

    def remember(self) -> None:
        """Take the last report of this recording, if there is one."""
        with contextlib.suppress(UsageError):
            if self.report is None:
                self.report = read_report(self.report_path)

    def take(self, output: bytes) -> AuditReport:
        """Keep what ``verify --json`` wrote, and return it. Raises BwtuiError."""
        report = _parsed(output)
        path = self.report_path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, output.decode())
        except OSError as error:
            raise BwtuiError(
                f"the report can't be kept in {path.parent}: {error.strerror}",
                "set BWTUI_STATE_HOME to a folder that you may write to",
            ) from error
        self.report, self.failed = parse_report(report.raw, path), None
        if self.plan is not None and "--only-missing" in self.plan[1]:
            # It is of the report that was here before, and would send what this one misses.
            self.plan = None
        return self.report

    # -- commands ------------------------------------------------------------------------------------------

    def verify_arguments(self, *, deep: bool) -> tuple[str, ...]:
        """Return the arguments of an audit."""
        more = ("--deep",) if deep else ()
        return ("verify", str(self.folder), *self._services(), *_REPORT, *more)

    def replay_arguments(self, options: dict[str, str], *, mend: bool) -> tuple[str, ...]:
        """Return the arguments of a replay, with neither --dry-run nor --yes."""
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
