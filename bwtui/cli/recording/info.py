"""``bwtui recording info``: what a recording holds."""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bwtui.cli.output.table import columns, plural, size
from bwtui.console import say, say_json
from bwtui.model.lsn import format_lsn

if TYPE_CHECKING:
    from bwtui.recording.info import Gap, Info, PassInfo, Told

_EPILOG = """\b
Examples:
  bwtui recording info recordings/shop
  bwtui recording info recordings/shop --json | jq .tables
"""
_COUNTERS = ("snapshot_rows", "inserts", "updates", "deletes", "truncates", "messages", "dropped")


@click.command(epilog=_EPILOG)
@click.argument("recording", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="One object.")
def info(recording: Path, as_json: bool) -> None:
    """Tell what RECORDING holds: where it comes from, ranges, tables, sessions, gaps, size."""
    from bwtui.recording.info import info as look

    found = look(recording)
    if as_json:
        say_json(found.to_json())
        return
    for name, text in _facts(found):
        say(f"{name:13} {text}")
    say("", *_tables(found))
    for title, lines in (
        ("PASSES", [_pass(one) for one in found.passes]),
        ("GAPS", [_gap(one) for one in found.gaps]),
        ("ERRORS AND NOTICES", [_told(one) for one in found.told]),
    ):
        if lines:
            say("", title, *lines)


def _facts(found: "Info") -> list[tuple[str, str]]:
    source = found.source
    servers = [f"cluster {source.cluster}" if source.cluster else source.broker, source.registry]
    schemas = sum(found.schemas.values())
    gone = plural(found.missing_segments, "segment")
    missing = [("missing", f"the first {gone}, with {plural(found.missing_changes, 'change')}")]
    return [
        ("recording", f"{found.name}, {found.state}{', sealed' if found.sealed else ''}"),
        ("database", f"{source.database}, system {source.system_identifier}, slot {source.slot}"),
        ("sent to", ", ".join(filter(None, servers)) or "nowhere"),
        ("format", source.output_format),
        ("time", f"{_time(found.first_time)} to {_time(found.last_time)}"),
        ("LSN", f"{format_lsn(found.first_lsn)} to {format_lsn(found.last_lsn)}{_part(found)}"),
        ("changes", f"{found.changes:,} in {_transactions(found)}"),
        ("schemas", f"{schemas} of {plural(len(found.schemas), 'subject')}"),
        ("sessions", str(len(found.sessions))),
        ("errors", str(found.errors)),
        *(missing if found.missing_segments else ()),
        ("size", f"{size(found.bytes)} in {plural(found.segments, 'segment')}"),
    ]


def _transactions(found: "Info") -> str:
    passes = f"{len(found.passes)} pass{'' if len(found.passes) == 1 else 'es'}"
    return f"{plural(found.transactions, 'transaction')} and {passes}"


def _part(found: "Info") -> str:
    if not found.open_lsn or found.state == "being written":
        return ""
    return f"; of the transaction at {format_lsn(found.open_lsn)} only the beginning is recorded"


def _told(one: "Told") -> str:
    where = f"{one.table}: " if one.table else ""
    hint = f"; {one.hint}" if one.hint else ""
    return f"{one.count:>4}  {_time(one.last_time)}  {one.kind:9}  {where}{one.message}{hint}"


def _tables(found: "Info") -> list[str]:
    head = ("TABLE", "TOPIC", *(name.replace("_", " ").upper() for name in _COUNTERS), "BYTES")
    rows = [
        (name, table.topic, *(f"{getattr(table, one):,}" for one in _COUNTERS), size(table.bytes))
        for name, table in sorted(found.tables.items())
    ]
    return columns(head, rows, right=frozenset(range(2, len(head))))


def _pass(one: "PassInfo") -> str:
    repeats = f", repeats up to {format_lsn(one.repeats_until)}" if one.repeats_until else ""
    where = f"from {format_lsn(one.start_lsn)}, change {one.first_position:,}"
    return f"{one.number:>4}  {_time(one.time)}  {one.kind:8}  {where}{repeats}"


def _gap(one: "Gap") -> str:
    return f"      {_time(one.time)}  {format_lsn(one.from_lsn)} to {format_lsn(one.to_lsn)} was not recorded"


def _time(microseconds: int) -> str:
    if not microseconds:
        return "-"
    return datetime.fromtimestamp(microseconds / 1_000_000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
