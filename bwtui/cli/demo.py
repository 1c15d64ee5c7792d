"""``bwtui demo``: show everything at once, without installing anything."""

import asyncio
import dataclasses
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bwtui.cli.inputs.relay_options import NumberType, json_option
from bwtui.console import say, say_json, terminal
from bwtui.errors import BwtuiError, Indeterminate, Interrupted, UsageError
from bwtui.terminal import need_screens

if TYPE_CHECKING:
    from bwtui.demo.audits import VerifyRun
    from bwtui.demo.run import Demo, DemoOptions
    from bwtui.demo.sabotage import Judgement, PlantedFault
    from bwtui.demo.verdict import ShopComparison
    from bwtui.packages.setup_progress import SetupProgress

_SECONDS = 20.0
_WIDTH = 160

_EPILOG = """\b
Examples:
  bwtui demo                              with the screens; q leaves and compares
  bwtui demo --headless --seconds 20      exit code 0 only if every topic equals its table
  bwtui demo --headless --sabotage        plants faults for the audit to find; exit code 1
  bwtui demo --headless --json            the verdict as one JSON object
  bwtui demo --record ./shop              and 'bwtui open ./shop' afterwards
  bwtui demo --rate 1000 --keep           higher load; the services keep running
"""


@click.command(epilog=_EPILOG)
@click.option(
    "--headless", is_flag=True, help="Show no screens: print one line per second, and the verdict at the end."
)
@click.option(
    "--seconds",
    type=NumberType(0.001, 10**6),
    help=f"With --headless: seconds of writes to the shop.  [default: {_SECONDS:.0f}]",
)
@click.option(
    "--rate",
    type=NumberType(0.001, 10**6),
    default=300.0,
    show_default=True,
    help="Transactions per second.",
)
@click.option(
    "--seed",
    type=NumberType(0, 2**63 - 1, whole=True),
    default=1,
    show_default=True,
    help="Seed of the random data; the same seed produces the same rows.",
)
@click.option(
    "--scale",
    type=NumberType(0.001, 100),
    default=1.0,
    show_default=True,
    help="Initial size of the shop; 1 means 24,000 rows.",
)
@click.option(
    "--keep",
    is_flag=True,
    help="Leave PostgreSQL, Kafka and the schema registry running; a message shows how to stop them.",
)
@click.option("--record", metavar="DIR", help="Record the relayed changes into DIR, a new folder.")
@click.option(
    "--audit/--no-audit",
    default=None,
    help="Audit tables and recording at the end with 'bwtui verify'.  [default: with --headless]",
)
@click.option("--sabotage", is_flag=True, help="With --headless: plant faults, which the audit must find.")
@json_option("Print the verdict as one JSON object.")
def demo(
    headless: bool,
    seconds: float | None,
    rate: float,
    seed: int,
    scale: float,
    keep: bool,
    record: str | None,
    audit: bool | None,
    sabotage: bool,
    as_json: bool,
) -> int:
    """Run everything at once: real services, a sample shop, the relay, its screens, and a comparison.

    The demo starts PostgreSQL, Kafka and a schema registry on this machine, in its own folder. It writes to a
    sample shop at a steady rate while the relay copies the tables and streams their changes. At the end the
    writes stop, the relay catches up, and every topic is compared with its table: exit code 0 if the
    latest value of each key equals its row, 1 if not, 3 if the comparison was impossible. With --headless,
    'bwtui verify' then audits the topics twice: against the tables, and against a recording of the run.
    """
    _check_modes(headless, seconds, audit, sabotage)
    from bwtui.demo.run import DemoOptions
    from bwtui.packages.setup_progress import for_stderr

    # The relay is a separate process, which may run in a different folder.
    recording = _recording(record)
    audit = headless if audit is None else audit
    options = DemoOptions(rate, seed, scale, keep, recording, audit, sabotage)
    show = _headless(seconds or _SECONDS) if headless else _with_screens
    with for_stderr() as progress:
        try:
            result = _play(options, show, progress)
        except Indeterminate as undecided:
            if as_json:
                say_json({"verdict": "indeterminate", "sentence": undecided.message})
            raise
    return report(*result, as_json=as_json)


def _check_modes(headless: bool, seconds: float | None, audit: bool | None, sabotage: bool) -> None:
    if sabotage and audit is False:
        raise UsageError("--sabotage requires the audit", "omit --no-audit")
    if headless:
        return
    if audit or sabotage:
        option = "--sabotage" if sabotage else "--audit"
        raise UsageError(
            f"{option} requires --headless", "with the screens, use --record and then 'bwtui verify'"
        )
    if seconds is not None:
        raise UsageError(
            "--seconds requires --headless", "with the screens, the demo runs until you leave it"
        )
    need_screens("add --headless")


def _recording(record: str | None) -> str:
    """Return the folder to record into, or "". Raises the error if recording there is impossible."""
    from bwtui.recording.resume import check_ahead

    if record is None:
        return ""
    if not record:
        raise UsageError("--record has an empty value", "give the folder of the recording: --record DIR")
    check_ahead(Path(record).absolute())
    return str(Path(record).absolute())


def _headless(seconds: float) -> "Callable[[Demo], None]":
    from bwtui.demo.headless import run_for

    return lambda demo: run_for(demo, seconds, demo.note)


def _with_screens(demo: "Demo") -> None:
    from bwtui.cli.inputs.audit_sources import records_of
    from bwtui.cli.inputs.relay_options import load
    from bwtui.demo.screens import DemoSource
    from bwtui.tui.app import RelayApp
    from bwtui.tui.audit.session import RelayAuditSession
    from bwtui.tui.base.choices import chosen
    from bwtui.tui.sources.model import ViewSettings
    from bwtui.tui.sources.relay_model import RelayModel

    # Not run_source, which says how to return to a relay that was left running: this one ends here.
    source = DemoSource(demo)
    audit = RelayAuditSession(source.name, lambda: records_of(source.name))
    # The demo ends with its screens, so they must be able to stop it.
    choices = dataclasses.replace(chosen(load({})), readonly=False)
    app = RelayApp(RelayModel(source), ViewSettings(owned=True, detachable=False, choices=choices), audit)

    def leave() -> None:
        demo.abandon()
        asyncio.get_running_loop().call_soon_threadsafe(app.exit)

    def hang_up() -> None:
        try:
            demo.close()
        finally:
            os._exit(Interrupted.exit_code)

    with demo.interrupts.diverted(leave, hang_up):
        app.run()
    if app.return_code:
        raise BwtuiError("the screens failed", "run the demo without them: 'bwtui demo --headless'")


def _play(
    options: "DemoOptions", show: "Callable[[Demo], None]", progress: "SetupProgress"
) -> "tuple[ShopComparison, dict[str, Any], DemoAudits]":
    from bwtui.demo.run import running

    with running(options, progress) as demo:
        show(demo)
        demo.check()
        if options.sabotage:
            demo.wait_until_sabotable()
        settled = demo.settle()
        audited = DemoAudits()
        if options.audit:
            audited.audits.append(demo.audit_tables())
        demo.stop_relay()
        faults = demo.sabotage() if options.sabotage else None
        comparison = demo.compare()
        if options.audit:
            audited.audits.append(demo.audit_recording())
        if faults is not None:
            audited.judge(faults)
        if options.audit and not options.record:
            demo.note(f"the recording is kept until the next demo: bwtui open {demo.recording}")
        if options.keep:
            demo.note(
                f"the services are still running: BWTUI_SANDBOX_HOME={options.folder} bwtui sandbox down"
            )
    return comparison, settled.to_json(), audited


@dataclass(slots=True)
class DemoAudits:
    """The results of the audits at the end, and their assessment."""

    audits: "list[VerifyRun]" = field(default_factory=list)
    judgement: "Judgement | None" = None

    def judge(self, faults: "list[PlantedFault]") -> None:
        """Compare the findings of the last audit with the planted faults."""
        from bwtui.demo.sabotage import judge

        self.judgement = judge(faults, self.audits[-1].report)

    def to_json(self) -> dict[str, Any]:
        """Return the additions to the comparison's JSON object."""
        result: dict[str, Any] = {"audits": {audit.subject: audit.to_json() for audit in self.audits}}
        if self.judgement is not None:
            result["sabotage"] = self.judgement.to_json()
        return result

    def lines(self) -> list[str]:
        """Return the lines that are printed below the comparison."""
        sentences = [audit.sentence for audit in self.audits]
        return sentences + ([self.judgement.sentence] if self.judgement is not None else [])

    def error(self) -> BwtuiError | None:
        """Return the error that decides the exit code, or None if all audits were clean."""
        if self.judgement is not None and not self.judgement.holds:
            return BwtuiError(
                self.judgement.sentence,
                "the report of --json lists the planted faults; please report this as a bug",
            )
        errors = [error for audit in self.audits if (error := audit.error()) is not None]
        # A difference takes precedence over an undecided comparison.
        return min(errors, key=lambda error: error.exit_code, default=None)


def report(
    comparison: "ShopComparison",
    details: dict[str, Any],
    audited: "DemoAudits | None" = None,
    *,
    as_json: bool,
) -> int:
    """Print the verdict on stdout, and return its exit code."""
    audited = audited or DemoAudits()
    if as_json:
        say_json({**comparison.to_json(), **details, **audited.to_json()})
    else:
        # Wide enough for the table if the width is unknown.
        width = None if sys.stdout.isatty() else _WIDTH
        console = terminal(soft_wrap=True, width=width)
        console.print(comparison.grid())
        say(comparison.sentence, *audited.lines())
    error = audited.error() or comparison.error()
    return error.exit_code if error else 0
