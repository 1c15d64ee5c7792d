"""The report of an audit alone, where its recording is not at hand."""

import time
from collections.abc import Callable, Mapping
from typing import ClassVar

from bwtui.model.status import ChangeSample, SchemaEntry, Status
from bwtui.tui.actions import Kind
from bwtui.tui.app import RelayApp
from bwtui.tui.audit.session import AuditSession
from bwtui.tui.host import Host
from bwtui.tui.running import run_app
from bwtui.tui.screens.audit.report import ReportScreen
from bwtui.tui.screens.base import RelayScreen
from bwtui.tui.state import DataSource, Link, Model, Session


class NoSource:
    """Nothing is sampled: a report stays what it is."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def status(self) -> Status:
        """Return nothing of interest."""
        return Status("stopped", self.name, "")

    async def changes(self, after: int) -> list[ChangeSample]:
        """Return nothing."""
        return []

    async def schemas(self) -> list[SchemaEntry]:
        """Return nothing."""
        return []

    async def stop(self) -> None:
        """Do nothing."""

    async def close(self) -> None:
        """Do nothing."""


class ReportModel(Model):
    """Never stale, and never gone."""

    kind: Kind = "report"

    @property
    def link(self) -> Link:
        """A report is neither live nor gone."""
        return "recorded"

    async def sample_status(self) -> None:
        """Do nothing."""

    async def sample_schemas(self) -> None:
        """Do nothing."""


class ReportApp(RelayApp):
    """One screen, and both sides of a message as far as the report and Kafka know them."""

    MODE_SCREENS: ClassVar[Mapping[str, Callable[[Host], RelayScreen]]] = {"audit": ReportScreen}
    DEFAULT_MODE = "audit"

    def __init__(self, name: str, audit: AuditSession, clock: Callable[[], float] = time.time) -> None:
        is_recorded = audit.report is not None and audit.report.question == "recording"
        remark = "the recording is not open: the report alone" if is_recorded else "the report alone"
        super().__init__(NoSource(name), Session(rate=1), clock, audit)
        self.model.remark = remark

    def make_model(self, source: DataSource, clock: Callable[[], float]) -> Model:
        """Return a model that samples nothing."""
        return ReportModel(source, clock)

    def ask_to_leave(self) -> None:
        """Just leave: nothing runs."""
        self.exit("quit")


def run_report(name: str, audit: AuditSession) -> None:
    """Show a report until the user leaves."""
    run_app(ReportApp(name, audit), "the report is as it was: 'bwtui open' shows it again")
