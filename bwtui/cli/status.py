"""``bwtui status``: show the state of one relay, or of all of them."""

import time
from typing import TYPE_CHECKING

import click

from bwtui.cli.inputs.relay_options import all_running, json_option, name_argument, status_of
from bwtui.cli.output.table import as_table, columns, size
from bwtui.console import say, say_json
from bwtui.errors import ConnectionFailed

if TYPE_CHECKING:
    from bwtui.model.proof import UnprovenTable
    from bwtui.model.status import ErrorEntry, ExactlyOnceStatus, Status

_EPILOG = """\b
Examples:
  bwtui status              one relay in detail, several as a table
  bwtui status shop --json | jq .wal_lag_bytes

\b
Exit codes: 0 all selected relays answered · 4 the relay is not running (--json then
prints the last status of its last run, if there is one), or a relay does not answer
(the others are still shown)
"""


@click.command(epilog=_EPILOG)
@name_argument
@json_option("Print one JSON status object per relay.")
def status(name: str | None, as_json: bool) -> None:
    """Show the state of relay NAME, or of all running relays."""
    silent: list[str] = []
    if name is None:
        statuses, silent = all_running()
    else:
        statuses = [_named(name, as_json)]
    if as_json:
        for one in statuses:
            say_json(one.to_json())
    elif len(statuses) == 1:
        say(*_in_full(statuses[0]))
    else:
        say(*_as_table(statuses))
    if silent:
        # Not all running relays are shown, and the exit code tells scripts so.
        raise click.exceptions.Exit(ConnectionFailed.exit_code)


def _named(name: str, as_json: bool) -> "Status":
    from bwtui.relay.process import last_status
    from bwtui.relay.process.control import RelaySilent

    try:
        return status_of(name)
    except RelaySilent:
        raise
    except ConnectionFailed:
        last = last_status.of_ended(name)
        if as_json and last is not None:
            say_json(last.to_json())
        raise


def _as_table(statuses: "list[Status]") -> list[str]:
    from bwtui.model.lsn import format_lsn

    head = ("NAME", "STATE", "SLOT", "CONFIRMED", "LAG", "SECONDS", "TABLES", "ERRORS", "PID")
    rows = [
        (
            s.name,
            _state(s),
            s.slot,
            format_lsn(s.confirmed_lsn),
            size(s.wal_lag_bytes),
            f"{s.wal_lag_seconds:.1f}",
            _captured(s),
            str(sum(e.count for e in s.errors)),
            str(s.pid),
        )
        for s in statuses
    ]
    lines = columns(head, rows, right=frozenset({4, 5, 6, 7, 8}))
    return lines + [f"{s.name}: {s.verdict.sentence}" for s in statuses if s.verdict.is_trouble]


def _in_full(s: "Status") -> list[str]:
    from bwtui.model.lsn import format_lsn

    description = s.verdict.sentence or s.detail
    facts = [
        ("relay", f"{s.name}, pid {s.pid}"),
        ("state", f"{_state(s)}: {description}" if description else _state(s)),
        *([("detail", s.aside)] if s.aside else []),
        *([("hint", s.verdict.hint)] if s.verdict.hint else []),
        ("from", f"{s.database}, slot {s.slot}, publication {s.publication}"),
        ("to", f"{s.broker}, registry {s.registry}"),
        # The server's LSN was queried some time ago; the confirmed LSN is never after the current one.
        ("confirmed", f"{format_lsn(s.confirmed_lsn)} of {format_lsn(max(s.server_lsn, s.confirmed_lsn))}"),
        ("lag", f"{size(s.wal_lag_bytes)}, {s.wal_lag_seconds:.1f} s"),
        ("retained", f"{size(s.retained_wal_bytes)}, {_safety(s)}" if s.wal_status else "unknown so far"),
    ]
    if s.exactly_once:
        facts += _exactly_once(s.exactly_once)
    for label, entry in zip(("unproven", *[""] * len(s.not_proven)), _not_told(s), strict=False):
        # One command may repair several tables.
        proves = f"; run: {entry.command}" if entry.command and not _is_hinted(s, entry.command) else ""
        facts.append((label, f"{entry.table} since {format_lsn(entry.since_lsn)}: {entry.reason}{proves}"))
    if s.comparison and s.not_proven:
        facts.append(("comparing", s.comparison))
    lacking = _lacking(s)
    is_told = "bwtui doctor" in s.verdict.hint and all(table in s.verdict.sentence for table in lacking)
    if lacking and not is_told:
        them = "it" if len(lacking) == 1 else "them"
        doctor = f"run 'bwtui doctor --relay {s.name}': it says what captures {them}"
        facts.append(("lacking", f"{', '.join(lacking)}: not captured; {doctor}"))
    if s.first_snapshot:
        facts.append(("snapshot", s.first_snapshot.sentence))
    for label, worker in zip(("workers", *[""] * len(s.snapshot_workers)), s.snapshot_workers, strict=False):
        reads = ", ".join(worker.tables) or "nothing"
        facts.append((label, f"{worker.place} reads {reads}, {worker.rows:,} rows so far"))
    if s.heal:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(s.heal.since))
        facts.append(("heal", f"pending since {since}: {s.heal.reason}"))
        facts += [("", text) for text in (s.heal.detail, s.heal.hint) if text]
    lines = [f"{label:<10} {text}" for label, text in facts]
    if s.tables:
        lines += ["", *_tables(s), *_notes(s)]
    # The tables of a first snapshot are already listed.
    if again := [b for b in s.backfills if not b.is_over and (b.reason, b.state) != ("first", "waiting")]:
        lines += ["", "backfills:", *(f"  {line}" for line in as_table(again))]
    return lines + _entries(s)


def _entries(s: "Status") -> list[str]:
    """Return the last errors, notices and resolved entries, each group under its title."""
    lines: list[str] = []
    open_entries = [e for e in s.errors if not e.is_over]
    for title, entries in (
        ("last errors:", [e for e in open_entries if e.kind != "notice"]),
        ("notices:", [e for e in open_entries if e.kind == "notice"]),
        ("resolved:", [e for e in s.errors if e.is_over]),
    ):
        if entries:
            lines += ["", title]
        for e in entries[-5:]:
            kind = (
                ""
                if e.kind == "notice" and not e.is_over
                else f"{e.kind}{f' {e.table}' if e.table else ''}: "
            )
            lines.append(f"  {_lasted(e)}{kind}{e.message}")
            lines += [f"    hint: {e.hint}"] if e.hint and not e.is_over else []
    return lines


def _lacking(s: "Status") -> list[str]:
    """Return the tables that are not captured, without those listed as not proven."""
    unproven = {entry.table for entry in s.not_proven}
    return [name for name in s.not_captured if name not in unproven]


def _not_told(s: "Status") -> "list[UnprovenTable]":
    """Return the tables whose reason or command the verdict lacks."""
    return [
        one
        for one in s.not_proven
        if f"{one.table} is not proven" not in s.verdict.sentence
        or one.reason not in s.verdict.sentence
        or (one.command and not _is_hinted(s, one.command))
    ]


def _is_hinted(s: "Status", command: str) -> bool:
    """Return whether the hint already has ``command``, or one that does the same for all tables."""
    hinted = s.verdict.hint.rpartition("run: ")[2]
    return bool(hinted) and f"{command} ".startswith(f"{hinted} ")


def _notes(s: "Status") -> list[str]:
    """Return notes that hold as long as the tables stay as they are, such as updates that are not sent."""
    tables: dict[str, list[str]] = {}
    for name, table in s.tables.items():
        for note in table.notes:
            tables.setdefault(note, []).append(name)
    return (
        ["", "notes:", *(f"  {', '.join(names)}: {note}" for note, names in tables.items())] if tables else []
    )


def _state(s: "Status") -> str:
    return "not proven" if s.verdict.condition == "not_proven" else s.state


def _exactly_once(s: "ExactlyOnceStatus") -> list[tuple[str, str]]:
    """Return the facts about Kafka's transactions."""
    latency = ""
    if s.commit_p50 is not None and s.commit_p99 is not None:
        latency = f", p50 {s.commit_p50 * 1000:.0f} ms, p99 {s.commit_p99 * 1000:.0f} ms"
    return [
        ("kafka", f"exactly once: {s.commits_per_second:g} commits/s{latency}, {s.commits:,} in total"),
        ("", f"transactional.id {s.transactional_id}, position in topic {s.topic}"),
    ]


def _lasted(e: "ErrorEntry") -> str:
    """Return the start and end of an error that is over."""
    if e.since is None or e.until is None:
        return ""
    begin, end = (time.strftime("%H:%M:%S", time.localtime(moment)) for moment in (e.since, e.until))
    return f"{begin} to {end} "


def _captured(s: "Status") -> str:
    """Return the number of captured tables, and the total if some are not."""
    captured = len(s.tables.keys() - set(s.not_captured))
    return f"{captured} of {captured + len(s.not_captured)}" if s.not_captured else str(captured)


def _safety(s: "Status") -> str:
    if s.wal_status == "lost":
        return "lost: PostgreSQL removed WAL that the slot needs"
    if s.safe_wal_bytes is None:
        return f"{s.wal_status}, no limit set"
    return f"{s.wal_status}, {size(s.safe_wal_bytes)} until the slot is at risk"


def _tables(s: "Status") -> list[str]:
    head = (
        "TABLE",
        "TOPIC",
        "SNAPSHOT",
        "INSERTS",
        "UPDATES",
        "DELETES",
        "MESSAGES",
        "BYTES",
        "ROWS/S",
        "ERRORS",
    )
    rows = [
        (
            name,
            t.topic,
            str(t.snapshot_rows),
            str(t.inserts),
            str(t.updates),
            str(t.deletes),
            str(t.messages),
            size(t.bytes),
            f"{t.rows_per_second:.0f}",
            str(t.errors),
        )
        for name, t in sorted(s.tables.items())
    ]
    return columns(head, rows, right=frozenset(range(2, 10)))
