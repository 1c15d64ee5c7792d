"""Measures one run: its way relays, what came is counted to the last row, and compared with the table."""

import contextlib
import os

from benchmarks import recvlogical
from benchmarks.debezium.bwtui_way import bwtui_relays
from benchmarks.debezium.connect import debezium_relays
from benchmarks.debezium.latency import Arrivals, measure
from benchmarks.debezium.runs import Figures, Relaying, Run, Way
from benchmarks.debezium.source import PUBLICATION
from benchmarks.debezium.topics import Counted, Topics, check, check_values, decoded
from benchmarks.debezium.workloads import BWTUI, RECVLOGICAL, Kind

_WAYS: dict[str, Way] = {BWTUI: bwtui_relays, "debezium": debezium_relays}


def measured(run: Run) -> Figures:
    """Return what a run came to. Raises BwtuiError unless every row was sent, once and as it is."""
    load = round(os.getloadavg()[0], 1)
    if run.way == RECVLOGICAL:
        return {**_by_postgresql_alone(run), "load": load}
    whose = run.way.partition("-")[0]
    schema = "" if whose == BWTUI else "public."
    names = {table: f"{run.name}.{schema}{table}" for table in run.workload.table_names}
    topics = Topics(run.services, names, run.workload.partitions)
    with topics.made():
        if run.workload.kind is Kind.LATENCY:
            figures = _latency(run, topics, names["bench"], _WAYS[whose])
        else:
            figures = _throughput(run, topics, _WAYS[whose])
    return {**figures, "load": load}


def _by_postgresql_alone(run: Run) -> Figures:
    program = recvlogical.program()
    assert program is not None
    with run.source.slot(run.name) as slot:
        seconds = recvlogical.seconds(program, run.source.dsn, slot, PUBLICATION, run.source.end_of_wal())
    return {"seconds": round(seconds, 3), "rows_per_second": round(run.rows / seconds)}


def _throughput(run: Run, topics: Topics, way: Way) -> Figures:
    with way(run) as relaying:
        topics.wait_for(run.rows, relaying.check)
    counted = topics.read()
    _check(run, counted)
    # A clock of milliseconds tells no shorter time.
    seconds = max(counted.last - counted.first, 0.001)
    return {
        "seconds": round(seconds, 3),
        "rows_per_second": round(run.rows / seconds),
        **_used(relaying, run.rows),
        "value_bytes": counted.value_bytes,
    }


def _latency(run: Run, topics: Topics, topic: str, way: Way) -> Figures:
    with (
        contextlib.closing(Arrivals(run.services.broker, topic, run.workload.partitions)) as arrivals,
        way(run) as relaying,
    ):
        figures = measure(run.source.dsn, run.workload.values, arrivals, run.rows, relaying.check)
    counted = topics.read()
    _check(run, counted)
    return {**figures, **_used(relaying, run.rows)}


def _used(relaying: Relaying, rows: int) -> Figures:
    used = relaying.used
    return {
        "cpu_seconds": round(used.cpu_seconds, 2),
        "cpu_us_per_row": round(used.cpu_seconds / rows * 1e6, 2),
        "resident_mb": round(used.resident_mb),
    }


def _check(run: Run, counted: Counted) -> None:
    check(counted, run.rows)
    values = decoded(run.services, counted.samples)
    names = [str(name) for (name,) in run.source.run(_COLUMNS, run.workload.table_names[0])]
    one = "select * from {} where id = any (%s)"
    everywhere = " union all ".join(one.format(table) for table in run.workload.table_names)
    rows = run.source.run(everywhere, *([list(values)] * run.workload.tables))
    check_values(rows, names, values)


_COLUMNS = """
select attname from pg_attribute
 where attrelid = %s::regclass and attnum > 0 and not attisdropped order by attnum"""
