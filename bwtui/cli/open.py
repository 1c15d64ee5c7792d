"""``bwtui open``: open the screens for a recording, or for the report of an audit."""

import contextlib
import dataclasses
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bwtui.cli.inputs import relay_options
from bwtui.errors import BwtuiError
from bwtui.terminal import need_screens

if TYPE_CHECKING:
    from bwtui.recording.reader import RecordingReader
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
T shows a transaction, x the journey of a key, a the rows of a table as of this position,
5 the last audit, ? the help. v verifies and r replays: only these need brokers and registry,
and their dialogs suggest those of the recording.
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
def open(recording: Path, at: str | None, **options: Any) -> None:
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
            need_screens("run the audit again without --json to print it as text")
            _open_report(recording, report, options)
            return
        recording = folder
    _open_recording(recording, at, report, options)


def _open_recording(
    recording: Path, at: str | None, report: "AuditReport | None", options: dict[str, Any]
) -> None:
    from bwtui.recording.reader import open_recording
    from bwtui.tui.audit.session import RecordingAuditSession
    from bwtui.tui.base.choices import chosen
    from bwtui.tui.recording_app import run_recording

    view = open_recording(recording)
    try:
        choices = chosen(relay_options.load(options))
        need_screens(f"'bwtui recording info {recording}' works without one")
        services = connections(options, view.source.broker, view.source.registry)
        audit = RecordingAuditSession(recording, services, report)
        run_recording(view, lambda: open_recording(recording), at, _unfinished(view), audit, choices)
    finally:
        view.close()


def _open_report(path: Path, report: "AuditReport", options: dict[str, Any]) -> None:
    from bwtui.tui.audit.session import AuditSession
    from bwtui.tui.base.choices import chosen
    from bwtui.tui.recording_app import run_report

    source = report.raw.get("source") or {}
    services = connections(options, str(source.get("broker", "")), str(source.get("registry", "")))
    run_report(path.name, AuditSession(services, report), chosen(relay_options.load(options)))


def _recording_of(report: "AuditReport") -> Path | None:
    """Return a report's recording if it is still in its place and unchanged."""
    folder = report.recording
    if folder is None or not folder.is_dir():
        return None
    from bwtui.recording.reader import open_recording

    with contextlib.suppress(BwtuiError), contextlib.closing(open_recording(folder)) as view:
        return folder if report.recording_id in ("", view.source.recording) else None
    return None


def connections(options: dict[str, Any], broker: str, registry: str) -> "Connections":
    """Return the Kafka services: from options and settings, or otherwise those of the recording."""
    from bwtui.cli.inputs.audit_sources import records_by
    from bwtui.options import DEFAULT
    from bwtui.tui.audit.session import Connections

    config = relay_options.load(options)
    settings = config.settings()
    configured = {name: config.values[name].origin != DEFAULT for name in ("broker", "schema-registry")}
    arguments = [part for one in options["kafka_config"] for part in ("-C", one)]
    arguments += ["--profile", options["profile"]] if options["profile"] else []
    return Connections(
        settings.broker if configured["broker"] or not broker else broker,
        settings.schema_registry if configured["schema-registry"] or not registry else registry,
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
    finish = f"bwtui recording recover {shlex.quote(str(view.folder))}"
    return f"this recording is unfinished; '{finish}' finishes it; all data is shown"
