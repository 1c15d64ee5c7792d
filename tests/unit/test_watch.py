"""Stalls that are kept as history."""

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from bwtui.errors import ConnectionFailed, RefusedError
from bwtui.model.proof import UnprovenTable
from bwtui.model.verdict import Cause, RelayVerdict
from bwtui.relay.state.run_state import RunState, proof_of
from bwtui.relay.watch.judge import ServiceNames
from bwtui.relay.watch.relay_watch import RelayWatch


def watching(report: RunState) -> RelayWatch:
    lag: Any = SimpleNamespace(reads_blockers=False)
    names = ServiceNames("PostgreSQL", "Kafka", "the registry", "")
    return RelayWatch(report, lag, lambda: names, lambda: None, lambda dropped: None)


def stalled(cause: Cause, dependency: str) -> RelayVerdict:
    return RelayVerdict("stalled", "it stands still", cause, dependency, since=1.0, seconds=6.0, hint="see")


@pytest.mark.parametrize("cause", ["disk", "transactions", "relay"])
def test_a_notice_hides_no_stall(cause: Cause) -> None:
    report = RunState()
    report.error("notice", RefusedError("the recording begins late", "use a new slot"))
    watch = watching(report)
    watch._keep(stalled(cause, "the recording in /r"))
    assert [entry.kind for entry in report.errors()] == ["notice", "stalled"]
    watch._keep(RelayVerdict("healthy"))
    assert [entry.is_over for entry in report.errors()] == [False, True]


def test_an_outage_that_is_told_of_is_not_told_twice() -> None:
    report = RunState()
    report.error("outage", ConnectionFailed("Kafka is away", "wait"), dependency="Kafka")
    watching(report)._keep(stalled("kafka", "Kafka at here:9092"))
    assert [entry.kind for entry in report.errors()] == ["outage"]


def test_the_log_says_which_table_is_not_proven_and_which_is_again(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    report = RunState()
    watch = watching(report)
    entry = UnprovenTable(
        "public.orders", 0x16B3748, "topic orders was deleted", "bwtui snapshot public.orders"
    )
    for entries in ((), (entry,), (entry,), ()):
        report.not_proven = entries
        watch._log_proof()
    told = [(vars(record)["event"], vars(record)["details"]["table"]) for record in caplog.records]
    assert told == [("not_proven", "public.orders"), ("proven", "public.orders")]
    first = caplog.records[0]
    assert first.getMessage() == "public.orders is not proven since 0/16B3748: topic orders was deleted"
    assert vars(first)["details"]["hint"] == "bwtui snapshot public.orders"


def test_what_a_comparison_repairs_is_over_once_the_table_is_proven() -> None:
    report = RunState()
    watch = watching(report)
    for table in ("public.a", "public.b"):
        report.error("topic", RefusedError("its topic was deleted", "wait"), table, proof_of(table))
    report.error("topic", RefusedError("it lost records", "run bwtui snapshot"), "public.a")
    report.not_proven = (UnprovenTable("public.b", 1, "it lacks its topic"),)
    watch._log_proof()
    assert [entry.is_over for entry in report.errors()] == [True, False, False]
    report.not_proven = ()
    watch._log_proof()
    assert [entry.is_over for entry in report.errors()] == [True, True, False]
