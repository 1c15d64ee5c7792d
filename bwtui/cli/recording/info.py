"""``bwtui recording info``: show the content of a recording."""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bwtui.cli.inputs.relay_options import json_option
from bwtui.cli.output.table import columns, size
from bwtui.console import say, say_json
from bwtui.model.lsn import format_lsn
from bwtui.model.number_format import plural

if TYPE_CHECKING:
    from bwtui.recording.info import Notice, PassInfo, RecordingGap, RecordingInfo

_EPILOG = """\b
Examples:
  bwtui recording info recordings/shop
  bwtui recording info recordings/shop --json | jq .tables
"""
_COUNTERS = (
    *("snapshot_rows", "backfill_rows", "inserts", "updates", "deletes", "truncates"),
    *("messages", "dropped"),
)
#: The column of this rare counter is shown only if it is not zero everywhere.
_RARE = "backfill_rows"


@click.command(epilog=_EPILOG)
@click.argument("recording", type=click.Path(path_type=Path))
@json_option("Print one JSON object.")
def info(recording: Path, as_json: bool) -> None:
    """Show the content of RECORDING: source, ranges, tables, sessions, gaps and size."""
    from bwtui.recording.info import info as look

    summary = look(recording)
    if as_json:
        say_json(summary.to_json())
        return
    for name, text in _facts(summary):
        say(f"{name:13} {text}")
    say("", *_tables(summary))
    for title, lines in (
        ("PASSES", [_pass(one) for one in summary.passes]),
        ("GAPS", [_gap(one) for one in summary.gaps]),
        ("ERRORS AND NOTICES", [_notice(one) for one in summary.told]),
    ):
        if lines:
            say("", title, *lines)


def _facts(summary: "RecordingInfo") -> list[tuple[str, str]]:
    source = summary.source
    servers = [f"cluster {source.cluster}" if source.cluster else source.broker, source.registry]
    schemas = sum(summary.schemas.values())
    missing_text = plural(summary.missing_segments, "segment")
    missing = [("missing", f"the first {missing_text}, with {plural(summary.missing_changes, 'change')}")]
    return [
        ("recording", f"{summary.name}, {summary.state}{', sealed' if summary.sealed else ''}"),
        ("database", f"{source.database}, system {source.system_identifier}, slot {source.slot}"),
        ("sent to", ", ".join(filter(None, servers)) or "nowhere"),
        ("format", source.output_format),
        ("time", f"{_time(summary.first_time)} to {_time(summary.last_time)}"),
        ("LSN", f"{format_lsn(summary.first_lsn)} to {format_lsn(summary.last_lsn)}{_part(summary)}"),
        ("changes", f"{summary.changes:,} in {_transactions(summary)}"),
        ("schemas", f"{schemas} of {plural(len(summary.schemas), 'subject')}"),
        ("sessions", str(len(summary.sessions))),
        ("errors", f"{summary.errors:,}, and {plural(summary.notices, 'notice')}"),
        *(missing if summary.missing_segments else ()),
        ("size", f"{size(summary.bytes)} in {plural(summary.segments, 'segment')}"),
    ]


def _transactions(summary: "RecordingInfo") -> str:
    passes = f"{len(summary.passes)} pass{'' if len(summary.passes) == 1 else 'es'}"
    return f"{plural(summary.transactions, 'transaction')} and {passes}"


def _part(summary: "RecordingInfo") -> str:
    if not summary.open_lsn or summary.state == "being written":
        return ""
    return f"; only the beginning of the transaction at {format_lsn(summary.open_lsn)} is recorded"


def _notice(one: "Notice") -> str:
    where = f"{one.table}: " if one.table else ""
    hint = f"; {one.hint}" if one.hint else ""
    return f"{one.count:>4}  {_time(one.last_time)}  {one.kind:9}  {where}{one.message}{hint}"


def _tables(summary: "RecordingInfo") -> list[str]:
    has_rare = any(getattr(table, _RARE) for table in summary.tables.values())
    counters = [name for name in _COUNTERS if name != _RARE or has_rare]
    head = ("TABLE", "TOPIC", *(name.replace("_", " ").upper() for name in counters), "BYTES")
    rows = [
        (name, table.topic, *(f"{getattr(table, one):,}" for one in counters), size(table.bytes))
        for name, table in sorted(summary.tables.items())
    ]
    return columns(head, rows, right=frozenset(range(2, len(head))))


def _pass(one: "PassInfo") -> str:
    repeats = f", repeats up to {format_lsn(one.repeats_until)}" if one.repeats_until else ""
    where = f"from {format_lsn(one.start_lsn)}, change {one.first_position:,}"
    return f"{one.number:>4}  {_time(one.time)}  {one.kind:8}  {where}{repeats}"


def _gap(one: "RecordingGap") -> str:
    return f"      {_time(one.time)}  {format_lsn(one.from_lsn)} to {format_lsn(one.to_lsn)} was not recorded"


def _time(microseconds: int) -> str:
    if not microseconds:
        return "-"
    return datetime.fromtimestamp(microseconds / 1_000_000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
