"""The relay's metrics: their names and labels; unknown values are left out."""

import ast
import re
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.parser import text_string_to_metric_families as plain_families

from bwtui.model.backfill import BackfillStatus, FirstSnapshot
from bwtui.model.gaps import with_gaps
from bwtui.model.heal import HealStatus
from bwtui.model.histogram import BOUNDS, Distribution, Histogram
from bwtui.model.proof import UnprovenTable
from bwtui.model.status import (
    ErrorEntry,
    ExactlyOnceStatus,
    RecordingStatus,
    SnapshotWorker,
    StageStatus,
    State,
    Status,
    TableStatus,
)
from bwtui.model.verdict import WORDS, RelayVerdict
from bwtui.relay.serving.health import PATIENCE, health, readiness
from bwtui.relay.serving.metrics import (
    BY_NAME,
    METRICS,
    MOST_TABLES,
    OPENMETRICS,
    OTHERS,
    Exposition,
    TableSeriesSelection,
    label,
    of_tables,
)
from bwtui.relay.state.activity_clock import Activity, ActivityClock, MainThreadActivity
from bwtui.relay.state.measures import Measures

HOSTILE = ('a"b', "a\\b", "a\nb", "a\\nb", "\x1b[2Jclean", "\udcff", "\u202ex", 'x",y="1', "{}=,", "ä", "")
STREAMING = Status(
    "streaming",
    "one",
    "slot",
    phase="streaming",
    verdict=RelayVerdict("healthy", safe_bytes=70, safe_seconds=7.0),
    confirmed_lsn=90,
    received_lsn=95,
    server_lsn=100,
    restart_lsn=50,
    wal_lag_bytes=10,
    wal_lag_seconds=0.5,
    retained_wal_bytes=50,
    wal_status="reserved",
    safe_wal_bytes=70,
    spill_bytes=3,
    stages={name: StageStatus(1.0, 2, 30, 100, 0.5) for name in ("read", "encode", "produce", "acknowledge")},
    tables={
        "public.orders": TableStatus(
            "orders", 5, inserts=3, messages=8, value_schema_id=7, snapshot_state="done", snapshot_estimate=6
        )
    },
    errors=(ErrorEntry(1.0, "outage", None, "no row value here", since=1.0),),
    not_proven=(UnprovenTable("public.orders", 7, "its topic was deleted"),),
    heal=HealStatus(1.0, "slot slot was dropped"),
    first_snapshot=FirstSnapshot(3, 1),
    recording=RecordingStatus("/x", free_bytes=7, seconds_left=60.0, durable_lsn=80),
    exactly_once=ExactlyOnceStatus("id", "positions", 4, 1.0, 0.1, 0.2),
    backfills=(BackfillStatus("1", "public.orders", "repair", state="running", rows=4, estimate=9),),
)

MEASURED = Measures(STREAMING, audited_at=1.0, activities={"work": 1.0}, slot_age=0.1)


def text_of(measures: Measures, kind: str = OPENMETRICS, exposition: Exposition | None = None) -> str:
    exposition = exposition or Exposition()
    return exposition.text(measures, exposition.content_type(kind)).decode()


def samples_of(measures: Measures) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text_of(measures))
        for sample in family.samples
        if sample.name.startswith("bwtui_")
    }


def test_every_metric_is_exported_and_follows_the_rules_of_names() -> None:
    families = {family.name: family for family in text_string_to_metric_families(text_of(MEASURED))}
    for metric in METRICS:
        family = families[metric.family]
        assert family.type == metric.kind
        assert re.fullmatch(r"bwtui(_[a-z0-9]+)+", metric.name)
        assert metric.name.endswith("_total") == (metric.kind == "counter")
        assert family.unit == metric.unit
        assert metric.help.endswith(".")
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(metric.labels)
        assert family.samples, metric.name
    assert {name for name in families if name.startswith("bwtui_")} == {one.family for one in METRICS}
    assert {"process_resident_memory", "process_cpu"} & {name.rpartition("_")[0] for name in families}


def test_the_older_format_says_the_same() -> None:
    exposition, measures = Exposition(), Measures(STREAMING)
    names = {
        sample.name
        for family in plain_families(text_of(measures, "text/plain", exposition))
        for sample in family.samples
        if sample.name.startswith("bwtui_")
    }
    assert names == {name for name, _ in samples_of(measures)}


def test_what_is_not_known_has_no_sample() -> None:
    told = {name for name, _ in samples_of(Measures(Status("starting", "one", "slot", phase="starting")))}
    absent = {
        "bwtui_wal_lag_bytes",
        "bwtui_wal_lag_seconds",
        "bwtui_slot_runway_seconds",
        "bwtui_slot_safe_wal_bytes",
        "bwtui_slot_retained_wal_bytes",
        "bwtui_slot_look_age_seconds",
        "bwtui_slot_wal_status",
        "bwtui_lsn_bytes",
        "bwtui_recording_state",
        "bwtui_kafka_transactions_total",
        "bwtui_audit_last_timestamp_seconds",
    }
    assert not told & absent
    hung = Measures(replace(STREAMING, recording=RecordingStatus("/x")))
    assert ("bwtui_recording_free_bytes", ()) not in samples_of(hung)
    # Before any confirmation, a sampled lag of zero is not reported.
    early = Measures(replace(STREAMING, confirmed_lsn=0, wal_lag_bytes=0), slot_age=0.1)
    assert ("bwtui_wal_lag_bytes", ()) not in samples_of(early)
    assert samples_of(Measures(STREAMING, slot_age=0.1))["bwtui_wal_lag_bytes", ()] == 10


def test_hostile_names_of_tables_stay_apart_and_harm_nobody() -> None:
    tables = {name: TableStatus(name, inserts=number) for number, name in enumerate(HOSTILE)}
    measures = Measures(replace(STREAMING, tables=tables))
    text = text_of(measures)
    assert text.replace("\n", "").isprintable()
    found = samples_of(measures)
    for number, name in enumerate(HOSTILE):
        key = (("kind", "insert"), ("table", label(name)))
        assert found["bwtui_table_changes_total", key] == number
    assert len({label(name) for name in HOSTILE}) == len(HOSTILE)
    assert label("public.orders") == "public.orders"


def test_a_counter_never_falls() -> None:
    exposition = Exposition()

    def acknowledged(total: int) -> str:
        status = replace(STREAMING, stages={**STREAMING.stages, "acknowledge": StageStatus(total=total)})
        text = text_of(Measures(status), exposition=exposition)
        return re.findall(r"^bwtui_messages_acknowledged_total (.*)$", text, re.M)[0]

    assert [acknowledged(total) for total in (10, 7, 9, 12)] == ["10.0", "10.0", "10.0", "12.0"]


def test_what_the_server_counts_begins_with_zero_and_goes_on_when_the_server_begins_anew() -> None:
    exposition = Exposition()
    told = []
    for spilled in (None, 1000, 1500, 0, 200, 100):
        text = text_of(Measures(replace(STREAMING, spill_bytes=spilled)), exposition=exposition)
        told += re.findall(r"^bwtui_slot_spilled_bytes_total (\S+)$", text, re.MULTILINE)
    assert [float(value) for value in told] == [0, 500, 500, 700, 800]


def test_each_kind_of_error_is_counted_from_the_beginning() -> None:
    kinds = {
        node.args[0].value
        for path in (Path(__file__).parents[2] / "bwtui").rglob("*.py")
        if ".error(" in (text := path.read_text())
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "error"
        if len(node.args) > 1 and isinstance(node.args[0], ast.Constant)
        if re.fullmatch(r"[a-z]+", str(node.args[0].value))
    }
    assert len(kinds) > 5
    told = {dict(labels)["kind"] for name, labels in samples_of(MEASURED) if name == "bwtui_errors_total"}
    assert kinds <= told


def test_time_of_the_main_thread_is_never_counted_twice() -> None:
    account = ActivityClock()
    seen: list[float] = []

    class Watched(dict[Activity, float]):
        """Lets another thread read in the middle of a turn."""

        def __setitem__(self, activity: Activity, seconds: float) -> None:
            super().__setitem__(activity, seconds)
            seen.append(sum(account.totals(time.monotonic()).values()))

    account._seconds = Watched(account._seconds)
    begun = account.current[1]
    time.sleep(0.05)
    account.turn_to("work")
    time.sleep(0.05)
    account.turn_to("read")
    assert len(seen) == 2
    assert max(seen) <= time.monotonic() - begun


def test_the_first_error_and_the_first_dead_letter_are_an_increase() -> None:
    found = samples_of(Measures(STREAMING))
    assert found["bwtui_errors_total", (("kind", "row"),)] == 0
    assert found["bwtui_table_dead_letters_total", (("table", "public.orders"),)] == 0
    assert found["bwtui_errors_open", ()] == 1


def test_rows_that_an_earlier_run_has_copied_are_no_increase() -> None:
    measures = Measures(STREAMING, copied_before={"public.orders": 4})
    key = (("kind", "snapshot"), ("table", "public.orders"))
    assert samples_of(measures)["bwtui_table_changes_total", key] == 1


def test_a_histogram_has_the_counts_of_the_relays_own() -> None:
    histogram = Histogram()
    for value in (-0.5, 0.0, 0.0001, 0.0011, 0.3, 0.3, 5.0, 1e6):
        histogram.add(value)
    distribution = histogram.distribution()
    assert distribution.count == 8
    assert distribution.sum == pytest.approx(0.0001 + 0.0011 + 0.6 + 5 + 1e6)
    below = dict(zip(BOUNDS, distribution.below, strict=True))
    assert (below[BOUNDS[0]], below[2.0**-9], below[0.25], below[0.5], below[8], below[4096]) == (
        3,
        4,
        4,
        6,
        7,
        7,
    )
    found = samples_of(Measures(STREAMING, {"total": distribution, "encoded": distribution}))
    assert found["bwtui_latency_seconds_bucket", (("le", "0.5"),)] == 6
    assert found["bwtui_latency_seconds_count", ()] == 8
    assert found["bwtui_stage_latency_seconds_count", (("stage", "encoded"),)] == 8
    assert found["bwtui_stage_latency_seconds_count", (("stage", "received"),)] == 0
    assert Histogram().distribution() == Distribution()


def test_merged_histograms_have_the_sum_of_both() -> None:
    one, other = Histogram(), Histogram()
    one.add(1.5, 2)
    other.add(0.25, 4)
    one.merge(other)
    assert one.distribution().sum == 4.0


def inserts(most: int, *moments: dict[str, int]) -> list[dict[str, float]]:
    """Return the exported inserts by table at each moment; ``most`` tables have their own series."""
    listing, told = TableSeriesSelection(most), []
    for moment in moments:
        tables = {name: TableStatus("", inserts=number) for name, number in moment.items()}
        found = of_tables(listing.part(tables), {})
        told.append(
            {
                labels[0]: value
                for name, labels, value in found
                if name == "bwtui_table_changes_total" and labels[1] == "insert"
            }
        )
    return told


def test_tables_beyond_so_many_are_added_up() -> None:
    few, quiet, some, more = inserts(
        2,
        {"s.a": 0, "s.b": 0},
        {"s.a": 0, "s.b": 0, "s.c": 0},
        {"s.a": 1, "s.b": 0, "s.c": 5, "s.d": 7},
        {"s.a": 1, "s.b": 3, "s.c": 6, "s.d": 7, "s.e": 1},
    )
    assert few == {"s.a": 0, "s.b": 0}
    assert quiet == {"s.a": 0, "s.b": 0, OTHERS: 0}
    assert some == {"s.a": 1, "s.b": 0, OTHERS: 12}
    assert more == {"s.a": 1, "s.b": 3, OTHERS: 14}


def test_of_too_many_tables_those_with_rows_have_series_and_keep_them() -> None:
    none, first, then = inserts(
        2,
        {f"s.{name}": 0 for name in "abcd"},
        {"s.a": 0, "s.b": 0, "s.c": 2, "s.d": 0},
        {"s.a": 1, "s.b": 4, "s.c": 2, "s.d": 9},
    )
    assert none == {OTHERS: 0}
    assert first == {"s.c": 2, OTHERS: 0}
    assert then == {"s.a": 1, "s.c": 2, OTHERS: 13}


def test_the_page_says_how_many_tables_are_added_up() -> None:
    tables = {f"s.t{number}": TableStatus("", deletes=1) for number in range(MOST_TABLES + 3)}
    found = samples_of(Measures(replace(STREAMING, tables=tables)))
    assert found["bwtui_tables", ()] == MOST_TABLES + 3
    assert found["bwtui_tables_added_up", ()] == 3
    deletes = [value for (name, labels), value in found.items() if ("kind", "delete") in labels]
    assert len(deletes) == MOST_TABLES + 1
    assert sum(deletes) == MOST_TABLES + 3


def test_workers_of_a_snapshot_count_in_memory_and_processor_time() -> None:
    workers = (SnapshotWorker(1, ("a",), 5, 1000, 2.0), SnapshotWorker(2))
    found = samples_of(
        Measures(replace(STREAMING, snapshot_workers=workers, resident_bytes=9000, cpu_seconds=3.5))
    )
    assert found["bwtui_snapshot_workers", ()] == 2
    assert found["bwtui_resident_bytes", ()] == 9000
    assert found["bwtui_cpu_seconds_total", ()] == 3.5


# -- the page about them -------------------------------------------------------------------------------------


def test_the_page_has_every_metric_with_its_labels_and_its_name_has_its_kind() -> None:
    page = (Path(__file__).parents[2] / "docs" / "operate.md").read_text()
    table = page.partition("| Metric and its labels |")[2].partition("\n\n")[0]
    found = re.findall(r"`(bwtui_[a-z0-9_]+)(?:\{([a-z_,]+)\})?`", table)
    assert found == [(one.name, ",".join(one.labels)) for one in METRICS]
    kinds = {"_total": "counter", "_info": "info", "latency_seconds": "histogram"}
    for one in METRICS:
        assert one.kind == next((kind for end, kind in kinds.items() if one.name.endswith(end)), "gauge")
    for name in re.findall(r"bwtui_[a-z0-9_]+", page):
        assert name in BY_NAME or name.removesuffix("_bucket") in BY_NAME, name


# -- probes --------------------------------------------------------------------------------------------------

READY = replace(STREAMING, heal=None, first_snapshot=None)
STARTING = replace(READY, state="starting", phase="starting", detail="checking PostgreSQL")
COPYING = replace(READY, state="snapshot", phase="snapshot", detail="snapshot of a")
FAILED = replace(READY, state="failed", phase="failed", verdict=RelayVerdict("failed", "the slot is gone"))
STALLED = replace(READY, state="stalled", verdict=RelayVerdict("stalled", "Kafka is silent", "kafka"))


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (STARTING, "the relay is starting: checking"),
        (COPYING, "the first snapshot is in"),
        (STALLED, "Kafka is silent"),
        (FAILED, "the slot is gone"),
        (replace(READY, first_snapshot=FirstSnapshot(3, 1)), "the first snapshot is incomplete: 1 of 3"),
        (replace(READY, heal=HealStatus(1.0, "it was dropped")), "topics may differ from tables, because"),
        (replace(READY, verdict=RelayVerdict("waiting", "Kafka has not answered", "kafka")), "Kafka has not"),
        (
            replace(READY, state="stopped", phase="stopped", verdict=RelayVerdict("stopped", "")),
            "the relay has stopped",
        ),
    ],
)
def test_a_relay_that_is_not_ready_says_why(status: Status, reason: str) -> None:
    answer = readiness(Measures(status))
    assert not answer.is_yes
    assert any(told.startswith(reason) for told in answer.body["reasons"]), answer.body
    assert samples_of(Measures(status))["bwtui_ready", ()] == 0


@pytest.mark.parametrize("condition", ["healthy", "behind"])
def test_a_relay_whose_rows_pass_is_ready(condition: str) -> None:
    measures = Measures(replace(READY, verdict=RelayVerdict(condition, "rows pass")))  # type: ignore[arg-type]
    answer = readiness(measures)
    assert answer.is_yes, answer.body
    assert answer.body["verdict"] == "rows pass"
    assert answer.body["verdict_code"] == ("streaming" if condition == "healthy" else "catching_up")
    assert not readiness(replace(measures, is_stopping=True)).is_yes


def test_tables_that_are_not_proven_are_named_and_leave_a_relay_ready() -> None:
    entries = tuple(UnprovenTable(f"public.t{n}", 7, "its topic was deleted") for n in range(MOST_TABLES + 1))
    measures = Measures(with_gaps(replace(READY, not_proven=entries)))
    answer = readiness(measures)
    assert answer.is_yes
    assert answer.body["condition"] == "not_proven"
    assert answer.body["verdict"].startswith("public.t0 is not proven since 0/7: its topic was deleted")
    assert answer.body["not_proven"][0] == entries[0].to_json()
    found = samples_of(measures)
    words = {word: found["bwtui_verdict", (("verdict", word),)] for word in WORDS}
    assert words == {word: word == "not_proven" for word in WORDS}
    assert found["bwtui_tables_not_proven", ()] == MOST_TABLES + 1
    assert found["bwtui_table_not_proven", (("table", "public.t0"),)] == 1
    assert sum(name == "bwtui_table_not_proven" for name, _ in found) == MOST_TABLES
    assert samples_of(Measures(replace(READY, not_proven=())))["bwtui_tables_not_proven", ()] == 0


def test_a_main_thread_that_turns_no_more_is_told_from_one_that_waits_for_postgresql() -> None:
    frozen = MainThreadActivity("work", PATIENCE + 1)
    assert not health(frozen).is_yes
    assert "has made no progress for 1 m 01 s (work)" in health(frozen).body["reason"]
    assert not readiness(Measures(READY, turn=frozen)).is_yes
    assert health(replace(frozen, idle_seconds=PATIENCE - 1)).is_yes
    assert health(replace(frozen, activity="locks")).is_yes


def test_only_the_main_thread_itself_says_that_it_turns() -> None:
    account = ActivityClock()
    before = account.turn().idle_seconds
    other = threading.Thread(target=account.turned)
    other.start()
    other.join()
    assert account.turn().idle_seconds > before
    waited = account.turn().idle_seconds
    account.turned()
    assert account.turn().idle_seconds < waited
    account.turn_to("read")
    assert account.turn().activity == "read"


def test_every_state_is_told() -> None:
    for state in get_args(State):
        found = samples_of(Measures(replace(STREAMING, state=state)))
        ones = [key for key, value in found.items() if key[0] == "bwtui_state" and value == 1]
        assert ones == [("bwtui_state", (("state", state),))]
    assert BY_NAME["bwtui_state"].labels == ("state",)
