"""``bwtui repair``: re-send only the keys in which topics and tables differ."""

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bwtui.cli.inputs import relay_options
from bwtui.cli.inputs.relay_options import dry_run_option, json_option, relay_option
from bwtui.cli.output.progress import progress_json_option, view_of
from bwtui.console import say, say_json
from bwtui.errors import mutually_exclusive

if TYPE_CHECKING:
    from bwtui.cli.inputs.repair_target import RepairTarget
    from bwtui.repair.repair import RepairObserver, RepairOutcome

_EPILOG = """\b
Examples:
  bwtui repair --relay shop --dry-run
  bwtui repair --relay shop
  bwtui repair --relay shop --table 'public\\.orders' --yes
  bwtui verify --database --relay shop --json > report.json
  bwtui repair report.json
  bwtui repair --database -d service=shop -s shop -b kafka:9092 -r http://registry:8081
  bwtui repair --without-relay -d service=shop -s theirs --publication theirs \\
    -b kafka:9092 -r http://registry:8081

\b
A report only selects tables and relay; they are compared again. The relay reads the
current state of each row when it sends it. Exit codes: 0 clean, 1 differences remain,
2 refused, 3 indeterminate, 4 a relay or a server can't be reached, 130 interrupted.
"""


@click.command(epilog=_EPILOG)
@click.argument("report", required=False, metavar="[REPORT.json]", type=click.Path(path_type=Path))
@relay_options.takes(
    *("postgres", "slot", "broker", "schema-registry", "topic-prefix", "kafka-config"),
    *("publication", "table", "exclude-table", "output-format", "toast", "headers"),
    *("namespace", "connect-names"),
)
@click.option("--database", is_flag=True, help="Compare the tables of the running relay that uses this slot.")
@relay_option(
    "The relay that sends, and whose settings apply; --table and --exclude-table select fewer tables."
)
@click.option(
    "--without-relay",
    is_flag=True,
    help="Send without a relay, if a relay on a different machine writes the topics; -s is its slot.",
)
@dry_run_option("Only show what would be sent.")
@click.option("-y", "--yes", is_flag=True, help="Send without asking for confirmation.")
@click.option("--show-values", is_flag=True, help="Show keys of rows, which are masked by default.")
@json_option("Print the result as a JSON object.")
@click.option("--lost-slot", is_flag=True, hidden=True, help="For a relay whose slot was lost.")
@progress_json_option
def repair(
    report: Path | None,
    database: bool,
    relay: str | None,
    without_relay: bool,
    dry_run: bool,
    yes: bool,
    show_values: bool,
    as_json: bool,
    lost_slot: bool,
    progress_json: bool,
    **options: Any,
) -> None:
    """Send only the keys that differ between tables and topics.

    Compares the topics' latest values with the tables, while writes and the relay continue, and shows the
    differences. After a confirmation, the running relay sends the current rows, and tombstones for keys
    without a row, in the order of its stream. Then everything is compared once more. With --without-relay,
    this command sends alongside a relay on a different machine; the confirmation states the limits of that.
    """
    from bwtui.cli.inputs.audit_sources import without_variables
    from bwtui.cli.inputs.repair_target import target_of, target_without_relay
    from bwtui.cli.output.repair_console import RepairConsole, summary, to_json

    if without_relay:
        if relay is not None:
            raise mutually_exclusive("--relay", "--without-relay")
        target = target_without_relay(report, options, database=database)
    else:
        target = target_of(report, relay, options, database=database)
        target = replace(target, only_captured=lost_slot)
    from bwtui.cycles import collect_rarely
    from bwtui.spark.arrow import leave_pandas_out

    collect_rarely()
    leave_pandas_out()
    view = view_of(as_json=as_json, progress_json=progress_json)
    screen = RepairConsole(target.relay, view, yes=yes or lost_slot, is_dry=dry_run)
    switches = {"is_dry": dry_run, "show_values": show_values}
    with view, contextlib.nullcontext() if without_relay else without_variables():
        if without_relay:
            outcome = _alone(target, screen, switches)
        else:
            outcome = _over_relay(target, screen, switches, is_heal=lost_slot)
    outcome.notes = [*target.notes, *outcome.notes]
    if as_json:
        say_json(to_json(target, outcome))
    else:
        say(*summary(target.relay, outcome, is_shown=screen.has_asked))
    raise click.exceptions.Exit(outcome.exit_code)


def _over_relay(
    target: "RepairTarget", watch: "RepairObserver", switches: dict[str, Any], *, is_heal: bool
) -> "RepairOutcome":
    from bwtui.encode.registry import ask_registry
    from bwtui.repair.relay_repair import RelayRepair

    ask = ask_registry(target.settings)
    repair = RelayRepair(target.settings, target.compare, ask, watch, relay=target.relay, **switches)
    repair.is_whole, repair.is_heal = target.is_whole, is_heal
    return repair.run()


def _alone(target: "RepairTarget", watch: "RepairObserver", switches: dict[str, Any]) -> "RepairOutcome":
    from bwtui.cli.inputs.repair_target import refuse_local_relays
    from bwtui.encode.registry import ask_registry
    from bwtui.repair.producer import RowProducer
    from bwtui.repair.standalone_repair import StandaloneRepair

    topics = target.topics()
    with contextlib.closing(RowProducer(target.settings)) as producer:
        return StandaloneRepair(
            target.settings,
            target.compare,
            ask_registry(target.settings),
            watch,
            producer=producer,
            topics=topics,
            refuse_local_relays=lambda: refuse_local_relays(target, topics.values()),
            **switches,
        ).run()
