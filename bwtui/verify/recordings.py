"""Compare two recordings change by change, as far as both of them cover the same time.

A change is identified by its commit LSN and ordinal, and each is compared once, in its last pass. A recording
covers everything from its first LSN, which is a snapshot's if it has one, to its last change. Rows of a
snapshot are identified by its consistent point, table and key, and are compared if both recordings have that
snapshot; otherwise they show a different time. Backfilled rows are not compared: one relay was requested to
send them, and they repeat earlier changes. If bytes differ only because of the schemas' IDs (a different
registry), the rows that PostgreSQL sent are compared.
"""

import time
from collections.abc import Callable
from typing import Any

import duckdb

from bwtui.audit.canonical_values import parse_row
from bwtui.audit.classes import (
    READ_ANEW,
    RECORDINGS,
    audit_class,
    balance_classes,
    verdict_of,
)
from bwtui.audit.report import AuditFinding, AuditSummary
from bwtui.errors import UsageError
from bwtui.model.lsn import format_lsn
from bwtui.model.sql import exact
from bwtui.recording.sealed import SealedRecording, check_all, open_sealed
from bwtui.seal.sealing import seal
from bwtui.signals.duckdb_session import session
from bwtui.spark.scratch import scratch
from bwtui.verify.audit_inputs import OpenedRecording, facts_of
from bwtui.verify.engines import DigestEngines
from bwtui.verify.journal_facts import JournalFacts

_MEMORY = "1500MB"
# After Confluent's header of five bytes, which contains the schema's ID; JSON has none.
_BODY = "case when starts_with(hex({0}), '00') then substr(hex({0}), 11) else hex({0}) end"
_ROWS = f"""
create table {{side}} as
select lsn, ordinal, part, op, relation, row_id, nth, max_by(position, pass) as position,
       max_by(md5(coalesce(before, '') || chr(0) || coalesce(after, '')), pass) as said,
       max_by(list_sort(list_concat(coalesce(filled, []), coalesce(unchanged, []))), pass) as unsent,
       max_by(md5(concat_ws('/', coalesce({_BODY.format("key")}, '-'),
                            coalesce({_BODY.format("value")}, '-'))), pass) as sent,
       max_by(topic is not null, pass) as has_message
  from (select * replace (if(op = 'key_change', 'update', op) as op),
               "schema" || '.' || "table" as relation, '' as row_id, 0 as nth
          from read_parquet($files, hive_partitioning = false)
         where op not in ('snapshot', 'cleanup', 'backfill')
        union all by name
        select * replace (0 as ordinal),
               row_number() over (partition by pass, lsn, relation, row_id order by position) as nth
          from (select *, "schema" || '.' || "table" as relation, md5(coalesce(key_json, after, '')) as row_id
                  from read_parquet($files, hive_partitioning = false) where op = 'snapshot'))
 group by all
"""
_COMPARED = """
create table compared as
with snapshots as (select lsn from a where op = 'snapshot' intersect select lsn from b where op = 'snapshot'),
here as (select * from a where case when op = 'snapshot' then lsn in (from snapshots)
                                    else (lsn, ordinal) <= ($high, $ordinal) and lsn >= $low end),
there as (select * from b where case when op = 'snapshot' then lsn in (from snapshots)
                                     else (lsn, ordinal) <= ($high, $ordinal) and lsn >= $low end)
select coalesce(a.lsn, b.lsn) as lsn, coalesce(a.ordinal, b.ordinal) as ordinal,
       coalesce(a.part, b.part) as part, coalesce(a.op, b.op) as op,
       coalesce(a.relation, b.relation) as relation, coalesce(a.position, b.position) as position,
       b.position as other, a.unsent = b.unsent and len(a.unsent) > 0 as is_partial,
       case when b.lsn is null then 'missing' when a.lsn is null then 'extra'
            when a.said <> b.said then 'said_differs'
            when a.has_message and b.has_message and a.sent <> b.sent then 'sent_differs'
            else 'equal' end as class
  from here as a
  full join there as b
    on a.lsn = b.lsn and a.ordinal = b.ordinal and a.part = b.part and a.relation = b.relation
   and a.op = b.op and a.row_id = b.row_id and a.nth = b.nth
"""
_CHANGES = """
select distinct position, before, after, list_concat(coalesce(filled, []), coalesce(unchanged, []))
  from read_parquet($files, hive_partitioning = false) where position in (select unnest($wanted))
"""
_PUT = "select count(*) from read_parquet($files, hive_partitioning = false) where op = 'backfill'"
#: Number of changes to read at a time: these are the ones with large values.
_SOME = 200
# A snapshot is complete if it is there.
_LAST = "case when op = 'snapshot' then 2147483647 else ordinal end"


def verify_recordings(
    first: OpenedRecording,
    second: OpenedRecording,
    *,
    spark_master: str | None,
    samples: int,
    on_phase: Callable[[str], None] = lambda _: None,
) -> AuditSummary:
    """Compare two recordings of the same database. Raises UsageError, RefusedError, DamagedRecording."""
    begin = time.monotonic()
    engines = DigestEngines(spark_master, on_phase)
    with engines.closing():
        opened = [_seal(one, engines, on_phase) for one in (first, second)]
    sides = [sealed for sealed, _ in opened]
    systems = {side.manifest.source.get("system_identifier") for side in sides}
    if len(systems) > 1:
        problem = "the recordings are of different database systems, so their LSNs can't be compared"
        raise UsageError(problem, "name two recordings of the same server, or verify each against Kafka")
    on_phase("comparing")
    with (
        scratch("bwtui-verify-") as work,
        session(memory_limit=_MEMORY, temp_directory=str(work / "spill")) as connection,
    ):
        connection.execute("set preserve_insertion_order = false")
        for name, side in zip("ab", sides, strict=True):
            connection.execute(_ROWS.format(side=name), {"files": exact(side.paths())})
        low, (high, ordinal) = _common(connection)
        connection.execute(_COMPARED, {"low": low, "high": high, "ordinal": ordinal})
        _mark_refetched(connection, *sides)
        report = _report(connection, low, high, samples)
    report.notes = [
        f"the range that both cover was compared: {report.window['first_lsn']} to {report.window['last_lsn']}"
    ]
    if refetched := report.balance["expected"][READ_ANEW]:
        report.notes.append(
            f"{refetched:,} changes differ only in TOAST values that PostgreSQL did not send:"
            " each relay read them from the table at a different time"
        )
    report.notes += [note for sealed, facts in opened for note in _notes(sealed, facts)]
    report.details = {
        "recording": str(first.folder),
        "other": str(second.folder),
        "inputs": {f"{side.folder}/{file.path}": file.sha256
                   for side in sides for file in side.manifest.files},
        "seconds": {"audit": round(time.monotonic() - begin, 2)},
    }  # fmt: skip
    return report


def _seal(
    recorded: OpenedRecording, engines: DigestEngines, on_phase: Callable[[str], None]
) -> tuple[SealedRecording, JournalFacts]:
    """Seal what is not sealed, check every file, and return the recording with its facts."""
    if (sealed := recorded.whole()) is not None:
        check_all(sealed.root, sealed.manifest.files)
        # A relay may have continued while every byte was checked.
        return sealed, facts_of(sealed)
    on_phase(f"sealing {recorded.folder}")
    seal(recorded.folder, lambda: engines.for_sealing(recorded.unsealed_bytes()))
    sealed = open_sealed(recorded.folder)
    return sealed, facts_of(sealed)


def _common(connection: duckdb.DuckDBPyConnection) -> tuple[int, tuple[int, int]]:
    """Return the first LSN, and the last LSN and ordinal, that both recordings cover.

    A recording may end within a transaction: what follows is not covered.
    """
    begins, ends = [], []
    for side in "ab":
        rows = connection.execute(f"select min(lsn), max((lsn, {_LAST})) from {side}").fetchall()
        begins.append(rows[0][0])
        ends.append(rows[0][1])
    if None in begins or max(begins) > min(ends)[0]:
        raise UsageError(
            "the recordings have no LSN in common", "compare two recordings that cover the same time"
        )
    return max(begins), min(ends)


def _mark_refetched(
    connection: duckdb.DuckDBPyConnection, first: SealedRecording, second: SealedRecording
) -> None:
    """Mark changes that differ only in values which PostgreSQL did not send, and each relay fetched
    itself.
    """
    pairs = connection.execute(
        "select position, other from compared where class = 'said_differs' and is_partial"
    ).fetchall()
    for start in range(0, len(pairs), _SOME):
        chunk = pairs[start : start + _SOME]
        first_rows, second_rows = (
            _sent_rows(first, [at for at, _ in chunk]),
            _sent_rows(second, [at for _, at in chunk]),
        )
        refetched = [
            first_at for first_at, second_at in chunk if first_rows[first_at] == second_rows[second_at]
        ]
        connection.execute(
            "update compared set class = $class where is_partial and position in (select unnest($wanted))",
            {"class": READ_ANEW, "wanted": refetched},
        )


def _sent_rows(sealed: SealedRecording, positions: list[int]) -> dict[int, list[dict[str, str | None]]]:
    """Return the old and the new row of changes, without the values that PostgreSQL did not send."""
    with session(temp_directory="") as connection:
        rows = connection.execute(_CHANGES, {"files": exact(sealed.paths()), "wanted": positions}).fetchall()
    return {
        position: [
            {name: text for name, text in parse_row(row).items() if name not in unsent}
            for row in (before, after)
        ]
        for position, before, after, unsent in rows
    }


def _notes(sealed: SealedRecording, facts: JournalFacts) -> list[str]:
    notes, folder = [], sealed.folder
    with session(temp_directory="") as connection:
        (backfilled,) = connection.execute(_PUT, {"files": exact(sealed.paths())}).fetchall()[0]
    if backfilled:
        notes.append(f"{backfilled:,} backfilled rows of {folder} were not compared")
    if facts.later:
        notes.append(f"the last segment of {folder} is unfinished: its changes were not compared")
    if facts.gaps:
        notes.append(f"{folder} has {len(facts.gaps)} gaps: their changes are reported as missing or extra")
    return notes


def _report(connection: duckdb.DuckDBPyConnection, low: int, high: int, samples: int) -> AuditSummary:
    counts = dict(connection.execute("select class, count(*) from compared group by class").fetchall())
    rows = connection.execute(
        "select class, lsn, ordinal, part, op, relation, position from compared"
        f" where class not in ('equal', '{READ_ANEW}')"
        " qualify row_number() over (partition by class order by position) <= ? order by position",
        [samples],
    ).fetchall()
    expected = sum(number for name, number in counts.items() if name != "extra")
    actual = sum(number for name, number in counts.items() if name != "missing")
    wrong = {name: counts.get(name, 0) for name in RECORDINGS}
    return AuditSummary(
        verdict=verdict_of(wrong),
        window={"first_lsn": format_lsn(low), "last_lsn": format_lsn(high)},
        expected=expected,
        actual=actual,
        balance={
            "expected": {name: counts.get(name, 0) for name in balance_classes("recordings", "expected")},
            "actual": {name: counts.get(name, 0) for name in balance_classes("recordings", "actual")},
        },
        classes=wrong,
        without={},
        findings=[_finding(row) for row in rows],
        found={name: number for name, number in wrong.items() if number},
        by_topic=[],
        by_time=[],
        question="recordings",
    )


def _finding(row: tuple[Any, ...]) -> AuditFinding:
    name, lsn, ordinal, part, op, relation, position = row
    return AuditFinding(
        name, lsn=lsn, ordinal=ordinal, part=part, operation=op, table=relation, position=position,
        hop="stream" if name == "said_differs" else "relay", note=audit_class(name).note,
    )  # fmt: skip
