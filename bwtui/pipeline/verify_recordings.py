"""Do two recordings say the same? Change by change, in what both of them cover.

A change is known by its commit LSN and ordinal, a row of a snapshot by its consistent point, table and key;
each is compared once, in its last pass. Where the bytes differ only because the schemas' ids do (another
registry), what PostgreSQL said decides.
"""

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb

from bwtui.audit.report import Finding, Report
from bwtui.errors import UsageError
from bwtui.lsn import format_lsn
from bwtui.pipeline.seal import seal
from bwtui.pipeline.session import spark_session
from bwtui.recording.sealed import Sealed, open_sealed

_ROWS = """
create table {side} as
select lsn, ordinal, part, op, "schema" || '.' || "table" as relation, max_by(position, pass) as position,
       case when op in ('snapshot', 'cleanup') then md5(coalesce(key_json, after, '')) else '' end as row_id,
       max_by(md5(coalesce(before, '') || chr(0) || coalesce(after, '')), pass) as said,
       max_by(md5(concat_ws('/', coalesce(hex(substr(key, 6)), '-'), coalesce(hex(substr(value, 6)), '-'))),
              pass) as sent,
       max_by(topic is not null, pass) as has_message
  from read_parquet(?) where op <> 'cleanup'
 group by all
"""
_COMPARED = """
create table compared as
select coalesce(a.lsn, b.lsn) as lsn, coalesce(a.ordinal, b.ordinal) as ordinal,
       coalesce(a.part, b.part) as part, coalesce(a.op, b.op) as op,
       coalesce(a.relation, b.relation) as relation, coalesce(a.position, b.position) as position,
       case when b.lsn is null then 'missing' when a.lsn is null then 'extra'
            when a.said <> b.said then 'said_differs'
            when a.has_message and b.has_message and a.sent <> b.sent then 'sent_differs'
            else 'equal' end as class
  from (select * from a where lsn between $low and $high) as a
  full join (select * from b where lsn between $low and $high) as b
    on a.lsn = b.lsn and a.ordinal = b.ordinal and a.part = b.part and a.relation = b.relation
   and a.op = b.op and a.row_id = b.row_id
"""
_NOTES = {
    "missing": "only the first recording has it",
    "extra": "only the second recording has it",
    "said_differs": "the recordings do not have the same row",
    "sent_differs": "the same row was sent with other bytes",
}


def verify_recordings(
    first: Path,
    second: Path,
    *,
    spark_master: str,
    samples: int,
    told: Callable[[str], None] = lambda _: None,
) -> Report:
    """Compare two recordings of the same database. Raises UsageError, RefusedError, DamagedRecording."""
    begin = time.monotonic()
    sides = [_open(folder, spark_master, told) for folder in (first, second)]
    systems = {side.manifest.source.get("system_identifier") for side in sides}
    if len(systems) > 1:
        raise UsageError("the recordings are of two database systems: their LSNs have nothing in common")
    told("comparing")
    with contextlib.closing(duckdb.connect()) as connection:
        for name, side in zip("ab", sides, strict=True):
            connection.execute(_ROWS.format(side=name), [[str(path) for path in side.paths()]])
        low, high = _common(connection)
        connection.execute(_COMPARED, {"low": low, "high": high})
        report = _report(connection, low, high, samples)
    report.details = {
        "recording": str(first),
        "other": str(second),
        "inputs": {f"{folder}/{file.path}": file.sha256
                   for folder, side in zip((first, second), sides, strict=True)
                   for file in side.manifest.files},
        "seconds": {"audit": round(time.monotonic() - begin, 2)},
    }  # fmt: skip
    return report


def _open(folder: Path, spark_master: str, told: Callable[[str], None]) -> Sealed:
    with contextlib.suppress(UsageError):
        sealed = open_sealed(folder)
        if not sealed.behind:
            return sealed
    told(f"sealing {folder}")
    seal(folder, lambda: spark_session(spark_master, "bwtui verify", memory="512m"))
    return open_sealed(folder)


def _common(connection: duckdb.DuckDBPyConnection) -> tuple[int, int]:
    row = connection.execute(
        "select greatest((select min(lsn) from a), (select min(lsn) from b)),"
        " least((select max(lsn) from a), (select max(lsn) from b))"
    ).fetchone()
    if row is None or row[0] is None or row[0] > row[1]:
        raise UsageError("the recordings have no LSN in common", "name two that cover the same time")
    return row[0], row[1]


def _report(connection: duckdb.DuckDBPyConnection, low: int, high: int, samples: int) -> Report:
    counts = dict(connection.execute("select class, count(*) from compared group by class").fetchall())
    rows = connection.execute(
        "select class, lsn, ordinal, part, op, relation, position from compared where class <> 'equal'"
        " qualify row_number() over (partition by class order by position) <= ? order by position",
        [samples],
    ).fetchall()
    expected = sum(number for name, number in counts.items() if name != "extra")
    actual = sum(number for name, number in counts.items() if name != "missing")
    wrong = {name: counts.get(name, 0) for name in _NOTES}
    return Report(
        verdict="anomalies" if any(wrong.values()) else "clean",
        window={"first_lsn": format_lsn(low), "last_lsn": format_lsn(high)},
        expected=expected,
        actual=actual,
        balance={
            "expected": {name: counts.get(name, 0) for name in ("equal", *_NOTES) if name != "extra"},
            "actual": {name: counts.get(name, 0) for name in ("equal", *_NOTES) if name != "missing"},
        },
        classes=wrong,
        without={},
        findings=[_finding(row) for row in rows],
        found={name: number for name, number in wrong.items() if number},
        by_topic=[],
        by_time=[],
    )


def _finding(row: tuple[Any, ...]) -> Finding:
    name, lsn, ordinal, part, op, relation, position = row
    return Finding(
        name, lsn=lsn, ordinal=ordinal, part=part, operation=op, table=relation, position=position,
        hop="stream" if name == "said_differs" else "relay", note=_NOTES[name],
    )  # fmt: skip
