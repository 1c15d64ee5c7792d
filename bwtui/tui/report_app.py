"""The app over an audit report alone, where its recording is not available."""

import time
from collections.abc import Callable, Mapping
from typing import ClassVar

from bwtui.tui.action import Kind
from bwtui.tui.app import RelayApp
from bwtui.tui.audit.session import AuditSession
from bwtui.tui.choices.choices import Choices
from bwtui.tui.host import ScreenHost
from bwtui.tui.screens.audit.report import ReportScreen
from bwtui.tui.screens.base import RelayScreen
from bwtui.tui.state import Model, ViewSettings
from bwtui.tui.terminal_session import run_app


class ReportModel(Model):
    """Samples nothing, because a report never changes."""

    kind: Kind = "report"


class ReportApp(RelayApp):
    """Shows one screen, and the expected and actual message as far as the report and Kafka have them."""

    MODE_SCREENS: ClassVar[Mapping[str, Callable[[ScreenHost], RelayScreen]]] = {"audit": ReportScreen}
    DEFAULT_MODE = "audit"

    def __init__(
        self,
        name: str,
        audit: AuditSession,
        clock: Callable[[], float] = time.time,
        choices: Choices | None = None,
    ) -> None:
        is_recorded = audit.report is not None and audit.report.question == "recording"
        remark = "the recording is not open: the report alone" if is_recorded else "the report alone"
        model = ReportModel(name, clock)
        super().__init__(model, ViewSettings(rate=1, choices=choices or Choices()), audit)
        model.remark = remark

    def ask_to_leave(self) -> None:
        """Leave without a question, because nothing is running."""
        self.exit("quit")


def run_report(name: str, audit: AuditSession, choices: Choices | None = None) -> None:
    """Show a report until the user leaves."""
    run_app(ReportApp(name, audit, choices=choices), "the report is as it was: 'bwtui open' shows it again")
