"""``bwtui repair``: the keys in which topics and tables differ are sent again, and nothing else."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from bwtui.cli.options import relay_options
from bwtui.cli.options.relay_name import relay_option
from bwtui.cli.output.progress import progress_json_option, view_of
from bwtui.console import say, say_json

_EPILOG = """\b
Examples:
  bwtui repair --relay shop --dry-run
  bwtui repair --relay shop
  bwtui repair --relay shop --table 'public\\.orders' --yes
  bwtui verify --database --relay shop --json > report.json
  bwtui repair report.json
  bwtui repair --database -d service=shop -s shop -b kafka:9092 -r http://registry:8081

\b
A report only says which tables and which relay are meant: all is compared anew. The relay
reads each row as it is when it is sent. Exit codes: 0 clean, 1 differences are left,
2 refused, 3 indeterminate, 4 a relay or a server can't be reached, 130 interrupted.
"""


@click.command(epilog=_EPILOG)
@click.argument("report", required=False, metavar="[REPORT.json]", type=click.Path(path_type=Path))
@relay_options.takes(
    *("postgres", "slot", "broker", "schema-registry", "topic-prefix", "kafka-config"),
    *("publication", "table", "exclude-table"),
)
@click.option("--database", is_flag=True, help="Compare the tables of the relay that runs with this slot.")
@relay_option("The relay that is to send, and all of its settings; --table and --exclude-table narrow them.")
@click.option("--dry-run", is_flag=True, help="Say what would be sent.")
@click.option("-y", "--yes", is_flag=True, help="Don't ask before it is sent.")
@click.option("--show-values", is_flag=True, help="Show keys of rows, which are masked otherwise.")
@click.option("--json", "as_json", is_flag=True, help="The result as a JSON object.")
@click.option("--lost-slot", is_flag=True, hidden=True, help="Asked by a relay whose slot was lost.")
@progress_json_option
def repair(
    report: Path | None,
    database: bool,
    relay: str | None,
    dry_run: bool,
    yes: bool,
    show_values: bool,
    as_json: bool,
    lost_slot: bool,
    progress_json: bool,
    **given: Any,
) -> None:
    """Send exactly the keys again in which tables and topics differ.

    The topics' latest values are compared with the tables while writes and the relay go on. What differs is
    shown; after a yes the running relay sends these rows as they are then, and tombstones for keys without a
    row, each at its right place in the stream. Then all is compared once more.
    """
    from bwtui.cli.auditing.registry import ask_registry
    from bwtui.cli.auditing.relay import without_variables
    from bwtui.cli.auditing.target import target_of
    from bwtui.cli.output.repair_view import Screen, summary, to_json
    from bwtui.repair.repairing import Repair

    target = replace(target_of(report, relay, given, database=database), only_carried=lost_slot)
    view = view_of(as_json=as_json, progress_json=progress_json)
    screen = Screen(target.relay, view, yes=yes or lost_slot, is_dry=dry_run)
    with view, without_variables():
        run = Repair(
            target.relay,
            target.settings,
            target.compare,
            ask_registry(target.settings),
            screen,
            is_whole=target.is_whole,
            is_heal=lost_slot,
            is_dry=dry_run,
            show_values=show_values,
        )
        outcome = run.run()
    outcome.notes = [*target.notes, *outcome.notes]
    if as_json:
        say_json(to_json(target, outcome))
    else:
        say(*summary(target.relay, outcome))
    raise click.exceptions.Exit(outcome.exit_code)
