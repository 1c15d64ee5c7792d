"""``bwtui open``: open the screens for a recording, or for the report of an audit."""

import contextlib
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bwtui.cli.options import relay_options
from bwtui.errors import BwtuiError
from bwtui.terminal import need_screens

if TYPE_CHECKING:
    from bwtui.recording.reading.reader import RecordingReader
    from bwtui.tui.audit.report import AuditReport
    from bwtui.tui.audit.session import Connections

_EPILOG = """\b
Examples:
  bwtui open recordings/shop
  bwtui open recordings/shop --at 12:04:05          a time of day, or 2026-01-31 12:04
  bwtui open recordings/shop --at 0/1A2B3C          everything committed up to an LSN
  bwtui open recordings/shop --at "xid 742"         a transaction, with all its changes
  bwtui open recordings/shop -b kafka:9092 -r http://registry:8081
  bwtui open report.json                            the output of 'bwtui verify … --json'

\b
Space plays, ← and → step, [ and ] step by transactions, : goes to a time, an LSN or an xid,
T shows a transaction, x a key's journey, a a table's rows as of this position, v verifies,
r replays, 5 shows the last audit, ? is help. Only v and r need brokers and registry; their
dialogs suggest those of the recording.
"""


@click.command(epilog=_EPILOG)
@click.argument("recording", metavar="RECORDING|REPORT", type=click.Path(path_type=Path))
@click.option(
    "--at", metavar="PLACE", help="Start position: a time, an LSN, 'xid N', 'N%' or '#N'; default: the end."
)
@relay_options.takes(
    *("broker", "schema-registry", "kafka-config", "readonly"),
    defaults=dict.fromkeys(("broker", "schema-registry"), "the recording's"),
)
def open(recording: Path, at: str | None, **given: Any) -> None:
    """Open RECORDING, or the REPORT of an audit, in the same screens as a running relay.

    A recording can be rewound, verified and replayed. No server is needed to view it. With --readonly, the
    screens can't replay.
    """
    report = None
    if recording.is_file():
        from bwtui.tui.audit.report import read_report

        report = read_report(recording)
        folder = _recording_of(report)
        if folder is None:
            need_screens("'bwtui verify' prints the report as plain text")
            _open_report(recording, report, given)
            return
        recording = folder
    _open_recording(recording, at, report, given)


def _open_recording(
    recording: Path, at: str | None, report: "AuditReport | None", given: dict[str, Any]
) -> None:
    from bwtui.recording.reading.reader import open_recording
    from bwtui.tui.audit.session import RecordingAuditSession
    from bwtui.tui.choices.choices import chosen
    from bwtui.tui.recording_app import run_recording

    view = open_recording(recording)
    try:
        need_screens(f"'bwtui recording info {recording}' works without one")
        choices = chosen(relay_options.load(given))
        services = connections(given, view.source.broker, view.source.registry)
        audit = RecordingAuditSession(recording, services, report)
        run_recording(view, lambda: open_recording(recording), at, _unfinished(view), audit, choices)
    finally:
        view.close()


def _open_report(path: Path, report: "AuditReport", given: dict[str, Any]) -> None:
    from bwtui.tui.audit.session import AuditSession
    from bwtui.tui.choices.choices import chosen
    from bwtui.tui.report_app import run_report

    source = report.raw.get("source") or {}
    services = connections(given, str(source.get("broker", "")), str(source.get("registry", "")))
    run_report(path.name, AuditSession(services, report), chosen(relay_options.load(given)))


def _recording_of(report: "AuditReport") -> Path | None:
    """Return a report's recording if it is still in its place and unchanged."""
    folder = report.recording
    if folder is None or not folder.is_dir():
        return None
    from bwtui.recording.reading.reader import open_recording

    with contextlib.suppress(BwtuiError), contextlib.closing(open_recording(folder)) as view:
        return folder if report.recording_id in ("", view.source.recording) else None
    return None


def connections(given: dict[str, Any], broker: str, registry: str) -> "Connections":
    """Return the Kafka services: from options and settings, or otherwise those of the recording."""
    from bwtui.cli.auditing.single_records import records_by
    from bwtui.setting_origins import DEFAULT
    from bwtui.tui.audit.session import Connections

    config = relay_options.load(given)
    settings = config.settings()
    named = {name: config.values[name].origin != DEFAULT for name in ("broker", "schema-registry")}
    arguments = [part for one in given["kafka_config"] for part in ("-C", one)]
    arguments += ["--profile", given["profile"]] if given["profile"] else []
    return Connections(
        settings.broker if named["broker"] or not broker else broker,
        settings.schema_registry if named["schema-registry"] or not registry else registry,
        tuple(arguments),
        lambda brokers, url: records_by(dataclasses.replace(settings, broker=brokers, schema_registry=url)),
    )


def _unfinished(view: "RecordingReader") -> str:
    """Return a sentence if the recording has no proper end; "" if it has."""
    from bwtui.recording.folder import is_being_written

    if view.segments[-1].is_finished:
        return ""
    if is_being_written(view.folder):
        return "this recording is still being written; the screens show it as it was when it was opened"
    if view.torn:
        return f"this recording is unfinished and its end is torn; all complete data is shown ({view.torn})"
    return "this recording is unfinished; 'bwtui recording recover' finishes it; all data is shown"
