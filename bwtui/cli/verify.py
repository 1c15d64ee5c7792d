"""``bwtui verify``: check Kafka against a recording or tables, or one recording against another."""

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bwtui.cli.inputs import relay_options
from bwtui.cli.inputs.audit_sources import (
    open_all,
    refuse_replaced,
    refuse_unused,
    refuse_unwritable,
    running_settings,
    unwritable,
    without_variables,
)
from bwtui.cli.inputs.relay_options import NumberType, json_option, relay_option
from bwtui.cli.output.progress import ProgressView, progress_json_option, silence_reported, view_of
from bwtui.console import say_json
from bwtui.errors import BwtuiError, UsageError

if TYPE_CHECKING:
    from bwtui.audit.report import AuditSummary
    from bwtui.settings import RelaySettings
    from bwtui.verify.audit_inputs import OpenedRecording

_EPILOG = """\b
Examples:
  bwtui verify recordings/shop -b kafka:9092
  bwtui verify recordings/shop -b kafka:9092 --json --html report.html
  bwtui verify before/ after/
  bwtui verify --database -d service=shop -b kafka:9092 -r http://registry:8081 --table 'public\\.orders'
  bwtui verify --database --relay shop

\b
One RECORDING is compared with the topics in Kafka, two are compared with each other.
Finished segments that are not sealed yet are sealed first, in the recording's folder,
as by 'bwtui recording seal'.

\b
docs/audit.md defines every class. Exit codes: 0 clean, 1 anomalies, 2 an error,
3 indeterminate, 4 a server can't be reached, 6 a damaged or unfinished recording.
"""


@click.command(epilog=_EPILOG)
@click.argument("recordings", nargs=-1, metavar="[RECORDING [RECORDING]]", type=click.Path(path_type=Path))
@relay_options.takes(
    *("postgres", "slot", "broker", "schema-registry", "topic-prefix", "kafka-config"),
    *("publication", "table", "exclude-table"),
)
@click.option(
    "--database", is_flag=True, help="Compare the topics' latest values with the current rows of the tables."
)
@relay_option(
    "Take every setting from the running relay NAME; --table and --exclude-table select fewer tables."
)
@click.option(
    "--deep",
    is_flag=True,
    help="Compare every message with PostgreSQL's data, not only a sample of each table.",
)
@click.option(
    "--show-values", is_flag=True, help="Show keys and values of rows, which are masked by default."
)
@click.option(
    "--findings",
    metavar="N",
    type=NumberType(0, 10**9, whole=True),
    default=1_000,
    show_default=True,
    help="Maximum findings listed per class.",
)
@json_option("Print the report as one JSON object.")
@click.option(
    "--html", metavar="FILE", type=click.Path(path_type=Path), help="Write the report as one HTML page."
)
@progress_json_option
@click.option(
    "--spark-master",
    metavar="MASTER",
    help="Spark master. Default: local[*] on this machine, or no Spark for a small audit.",
)
@click.option(
    "--work-folder",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for digests during the audit; on a cluster, all workers must have access to it.",
)
def verify(
    recordings: tuple[Path, ...],
    database: bool,
    relay: str | None,
    deep: bool,
    show_values: bool,
    findings: int,
    as_json: bool,
    html: Path | None,
    progress_json: bool,
    spark_master: str | None,
    work_folder: Path | None,
    **options: Any,
) -> None:
    """Verify that nothing was lost, duplicated, changed or reordered; report every anomaly and its place."""
    from bwtui.cli.inputs.librdkafka import check
    from bwtui.cycles import collect_rarely
    from bwtui.relay.process.control import begin_audit, report_audit

    _check(recordings, database)
    refuse_unused(recordings, database)
    if relay is not None:
        refuse_replaced()
    # With --relay, the options only select its tables.
    narrower = relay_options.load(options, alone=relay is not None).settings()
    settings = narrower if relay is None else running_settings(relay)
    check(settings)
    if html is not None:
        refuse_unwritable(html)
    if spark_master is not None and not database:
        from bwtui.spark.session import check_master

        check_master(spark_master)
    opened = open_all(recordings)
    from bwtui.spark.arrow import leave_pandas_out

    collect_rarely()
    leave_pandas_out()
    view = view_of(as_json=as_json, progress_json=progress_json)
    began = begin_audit(relay) if relay is not None else ""
    variables = without_variables() if relay is not None else contextlib.nullcontext()
    with view, silence_reported(view), variables:
        if database:
            report = _database(settings, narrower, relay, view.phase, findings, show_values)
        else:
            audit_options: dict[str, Any] = {"spark_master": spark_master, "samples": findings}
            if len(opened) == 1:
                audit_options |= {"deep": deep, "show_values": show_values, "work_folder": work_folder}
            report = _recordings(opened, settings, view, **audit_options)
    report.details["command"] = _command()
    # Two recordings are compared without showing values.
    report.details["masked"] = not show_values and report.question != "recordings"
    if relay is not None:
        report_audit(relay, report.verdict, report.details, began)
    _tell(report, as_json, html)
    raise click.exceptions.Exit(report.exit_code)


def _check(recordings: tuple[Path, ...], database: bool) -> None:
    if database and recordings:
        raise UsageError("--database takes no recording", "give either a recording or --database")
    if not database and not recordings:
        raise UsageError("nothing was selected to verify", "give a recording, or --database")
    if len(recordings) > 2:
        problem = f"verify takes at most two recordings, not {len(recordings)}"
        raise UsageError(problem, "compare two at a time: bwtui verify A B")


def _recordings(
    recordings: "list[OpenedRecording]", settings: "RelaySettings", view: ProgressView, **audit_options: Any
) -> "AuditSummary":
    if len(recordings) == 2:
        from bwtui.verify.recordings import verify_recordings

        return verify_recordings(*recordings, on_phase=view.phase, **audit_options)
    from bwtui.encode.registry import ask_registry
    from bwtui.kafka.client import client_config
    from bwtui.verify.recording import VerifyOptions, verify_recording

    report = verify_recording(
        recordings[0],
        client_config(settings),
        VerifyOptions(**audit_options),
        ask_registry(settings),
        view.phase,
        view.count,
    )
    report.notes += _of_letters(report)
    return report


def _of_letters(report: "AuditSummary") -> list[str]:
    """Return how many recorded changes are in dead letters, and how to send their rows."""
    from bwtui.cli.inputs.compared_tables import slot_letters
    from bwtui.model.lsn import parse_lsn

    first, last = (parse_lsn(report.window[name]) for name in ("first_lsn", "last_lsn"))
    notes = []
    for relay, letters in slot_letters(report.details["source"]).items():
        if number := sum(first <= parse_lsn(letter.commit_lsn) <= last for letter in letters):
            notes.append(
                f"{number:,} of the recorded changes are in open dead letters: 'bwtui dead-letters "
                f"retry --relay {relay} --all' has the relay send their rows"
            )
    return notes


def _database(
    settings: "RelaySettings",
    narrower: "RelaySettings",
    relay: str | None,
    on_phase: Callable[[str], None],
    samples: int,
    show_values: bool,
) -> "AuditSummary":
    from bwtui.cli.inputs.compared_tables import request_of, source_of
    from bwtui.encode.registry import ask_registry
    from bwtui.verify.database import verify_database

    source = source_of(settings)
    request = request_of(
        settings, narrower, of_relay=relay is not None, samples=samples, show_values=show_values
    )
    report = verify_database(request, ask_registry(settings), on_phase)
    report.details["source"] = source
    return report


def _command() -> str:
    """Return the command line, masked: values of -d and -C may be secret."""
    import shlex

    from bwtui.masking import mask_connection

    return mask_connection("bwtui " + shlex.join(sys.argv[1:]))


def _tell(report: "AuditSummary", as_json: bool, html: Path | None) -> None:
    # The findings were expensive: they are reported even if the page can't be written.
    failed = None if html is None else _write(report, html)
    if as_json:
        say_json(report.to_json(), default=str)
    else:
        from bwtui.audit.terminal import show

        show(report)
    if failed is not None:
        raise failed


def _write(report: "AuditSummary", html: Path) -> BwtuiError | None:
    """Write the report as a page; return the error if that fails."""
    from bwtui.audit.html_report import page
    from bwtui.durable_files import private_file

    try:
        # It shows rows, so only its owner may read it, like the recording.
        private_file(html).write_text(page(report), encoding="utf-8")
    except OSError as error:
        return unwritable(html, error.strerror)
    return None
