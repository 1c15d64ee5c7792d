"""The verdict on a relay that passes rows while topics may differ from tables."""

import json
from dataclasses import asdict, replace
from typing import Any

import pytest

from bwtui.errors import Indeterminate, SlotLost
from bwtui.model.backfill import BackfillReason, BackfillState, BackfillStatus, FirstSnapshot
from bwtui.model.gaps import gaps_of, unproven, with_gaps
from bwtui.model.heal import HealState, HealStatus
from bwtui.model.proof import UnprovenTable
from bwtui.model.status import Status
from bwtui.model.verdict import WORDS, Condition, RelayVerdict
from bwtui.relay.process.last_status import at_the_end
from bwtui.relay.rows.journal_recorder import recorded_status

WELL = Status(
    "streaming",
    "shop",
    "shop",
    phase="streaming",
    verdict=RelayVerdict("healthy", "12 rows/s pass", stage="read"),
)
ORDERS = UnprovenTable("public.orders", 0x16B3748, "topic orders was deleted", "bwtui snapshot public.orders")
ITEMS = UnprovenTable("public.items", 0x16B3700, "its publication dropped it for a while")
HEAL = HealStatus(1_700_000_000.0, "slot shop lost its WAL", "comparing", "0/1", "12 of 40 keys")


def test_a_table_that_is_not_proven_comes_before_rows_that_pass() -> None:
    verdict = with_gaps(replace(WELL, not_proven=(ORDERS,))).verdict
    assert (verdict.condition, verdict.code, verdict.needs_action) == ("not_proven", "not_proven", True)
    assert verdict.sentence.startswith("public.orders is not proven since 0/16B3748: ")
    assert verdict.sentence.endswith("; 12 rows/s pass")
    assert verdict.hint == "for public.orders run: bwtui snapshot public.orders"
    assert verdict.stage == "read", "the pipeline still shows the slow stage"
    assert verdict.is_trouble and not verdict.stands_still


def test_what_has_to_be_done_first_is_in_the_hint() -> None:
    entry = replace(ORDERS, command="bwtui repair --relay shop", advice="stop the other producer")
    verdict = with_gaps(replace(WELL, not_proven=(entry,))).verdict
    assert verdict.hint == "stop the other producer, then run: bwtui repair --relay shop"


def test_a_table_that_the_relay_compares_needs_no_action() -> None:
    verdict = with_gaps(replace(WELL, not_proven=(ITEMS,))).verdict
    assert (verdict.condition, verdict.needs_action) == ("not_proven", False)
    assert verdict.hint.startswith("no action needed: the relay compares")


def test_what_needs_action_comes_first() -> None:
    others = tuple(UnprovenTable(f"public.t{n}", 0x2000000 + n, "ALTER", "bwtui repair") for n in range(5))
    verdict = with_gaps(replace(WELL, heal=HEAL, not_proven=(ITEMS, *others, ORDERS))).verdict
    orders, others_need, healed, items, *_ = verdict.sentence.split("; ")
    assert orders.startswith("public.orders is not proven since 0/16B3748: ")
    assert others_need.startswith("public.t0, public.t1, public.t2 and 2 more ")
    assert healed.startswith("topics may differ from tables since 20")
    assert items.startswith("public.items is not proven since 0/16B3700: ")
    compared = with_gaps(replace(WELL, not_proven=(ITEMS, replace(ORDERS, command="")))).verdict
    assert "dropped it for a while; the relay also compares public.orders; " in compared.sentence


def test_one_command_repairs_all_tables_that_need_the_same() -> None:
    tables = tuple(
        UnprovenTable(f"public.t{n}", n, "lacks rows", f"bwtui repair --relay shop --table 'public\\.t{n}'")
        for n in (1, 2)
    )
    assert with_gaps(replace(WELL, not_proven=tables)).verdict.hint == "run: bwtui repair --relay shop"
    assert with_gaps(replace(WELL, not_proven=tables[:1])).verdict.hint == (
        r"for public.t1 run: bwtui repair --relay shop --table 'public\.t1'"
    )
    mixed = with_gaps(replace(WELL, not_proven=(tables[0], ORDERS))).verdict
    assert mixed.hint.startswith("for public.t1 run: ")


def test_a_run_that_ended_because_of_a_gap_names_it_once() -> None:
    status = replace(WELL, not_proven=(ORDERS,))
    reason = unproven(status)
    assert reason is not None
    error = Indeterminate(f"the relay has caught up, but {reason[0]}", reason[1])
    sentence = at_the_end(status, error, 3, 1.0).verdict.sentence
    assert sentence.count("public.orders is not proven") == 1


@pytest.mark.parametrize(
    ("state", "detail", "words", "needs_action"),
    [
        ("slot", "", "recreated", False),
        ("comparing", HEAL.detail, "12 of 40 keys", False),
        ("waiting", HEAL.detail, "will be retried: 12 of 40 keys", False),
        ("undecided", "4,081 rows are missing", "4,081 rows are missing", True),
    ],
)
def test_a_heal_that_is_due(state: HealState, detail: str, words: str, needs_action: bool) -> None:
    heal = replace(HEAL, state=state, detail=detail, hint="'bwtui repair' ends it" if needs_action else "")
    verdict = with_gaps(replace(WELL, heal=heal)).verdict
    assert (verdict.condition, verdict.needs_action) == ("not_proven", needs_action)
    assert "(slot shop lost its WAL): " in verdict.sentence
    assert f"{words}; 12 rows/s pass" in verdict.sentence
    assert verdict.hint == ("'bwtui repair' ends it" if needs_action else verdict.hint)
    assert verdict.hint


def test_a_table_that_is_not_captured() -> None:
    verdict = with_gaps(replace(WELL, not_captured=("public.a", "public.b"))).verdict
    assert verdict.condition == "not_proven"
    assert verdict.sentence.startswith("public.a, public.b are not captured: ")
    assert "bwtui doctor" in verdict.hint


def failed(reason: BackfillReason = "joined", state: BackfillState = "failed") -> BackfillStatus:
    return BackfillStatus("1", "public.a", reason, state=state, ended=5.0, error="no space", hint="free some")


@pytest.mark.parametrize("reason", ["joined", "first", "repair"])
def test_rows_that_a_failed_request_did_not_send(reason: BackfillReason) -> None:
    verdict = with_gaps(replace(WELL, backfills=(failed(reason),))).verdict
    assert (verdict.condition, verdict.hint) == ("not_proven", "free some")
    assert "topic of public.a lacks " in verdict.sentence and ": no space; " in verdict.sentence


@pytest.mark.parametrize(
    ("request_", "is_open"),
    [
        (BackfillStatus("2", "public.a", state="done", started=6.0), False),
        (BackfillStatus("2", "public.a", state="running", started=6.0), True),
        (BackfillStatus("2", "public.a", state="done", started=4.0), True),
        (BackfillStatus("2", "public.a", state="done", started=6.0, where="id < 7"), True),
        (BackfillStatus("2", "public.b", state="done", started=6.0), True),
    ],
)
def test_a_later_request_makes_a_failed_one_good(request_: BackfillStatus, is_open: bool) -> None:
    assert bool(gaps_of(replace(WELL, backfills=(failed(), request_)))) == is_open


def test_a_table_that_is_gone_lacks_no_rows() -> None:
    assert gaps_of(replace(WELL, backfills=(replace(failed("first"), is_gone=True),))) == []


def test_a_request_of_a_person_that_failed_is_no_gap() -> None:
    assert gaps_of(replace(WELL, backfills=(failed("snapshot"), failed("snapshot", "cancelled")))) == []


@pytest.mark.parametrize("reason", ["joined", "first", "repair"])
def test_rows_that_a_cancelled_request_did_not_send(reason: BackfillReason) -> None:
    cancelled = replace(failed(reason, "cancelled"), error="", hint="")
    verdict = with_gaps(replace(WELL, backfills=(cancelled,))).verdict
    assert (verdict.condition, verdict.hint) == ("not_proven", "run 'bwtui snapshot public.a'")
    assert ": request 1 was cancelled; " in verdict.sentence


def test_a_request_that_the_ledger_records_is_named_once_and_until_its_table_is_proven() -> None:
    noted = replace(failed("first"), is_noted=True)
    entry = replace(ORDERS, table="public.a")
    (gap,) = gaps_of(replace(WELL, backfills=(noted,), not_proven=(entry,)))
    assert (gap.key, gap.hint) == (("backfill", "1"), "free some")
    assert gaps_of(replace(WELL, backfills=(noted,))) == []


@pytest.mark.parametrize("condition", ["stalled", "failed", "killed", "suspended", "stopped", "starting"])
def test_what_is_worse_or_an_end_keeps_its_condition(condition: Condition) -> None:
    before = replace(WELL, verdict=RelayVerdict(condition, "its own cause", hint="its own hint"))
    verdict = with_gaps(replace(before, not_proven=(ORDERS,))).verdict
    assert (verdict.condition, verdict.hint) == (condition, "its own hint")
    assert verdict.sentence.startswith("its own cause; public.orders is not proven since 0/16B3748: ")


@pytest.mark.parametrize("condition", ["healthy", "behind", "waiting"])
def test_what_is_less_does_not_hide_it(condition: Condition) -> None:
    before = replace(WELL, verdict=RelayVerdict(condition, "its own cause"))
    assert with_gaps(replace(before, not_proven=(ITEMS,))).verdict.condition == "not_proven"


def test_a_first_snapshot_that_is_not_through_catches_up() -> None:
    verdict = with_gaps(replace(WELL, first_snapshot=FirstSnapshot(3, 1))).verdict
    assert (verdict.condition, verdict.code) == ("behind", "catching_up")
    assert "1 of 3 tables is done; 12 rows/s pass" in verdict.sentence


def test_a_relay_that_has_ended_still_says_so() -> None:
    status = replace(WELL, confirmed_lsn=5, not_proven=(ORDERS,))
    stopped = at_the_end(status, None, 0, 1.0).verdict
    assert (stopped.condition, stopped.code) == ("stopped", "stopped")
    assert "is confirmed; public.orders is not proven since" in stopped.sentence
    lost = at_the_end(status, SlotLost("slot shop is gone", "--heal"), 5, 1.0).verdict
    assert (lost.code, lost.sentence.split("; ")[0]) == ("failed", "slot shop is gone")


# -- as JSON -------------------------------------------------------------------------------------------------


def test_the_word_and_the_details_stand_apart() -> None:
    status = with_gaps(replace(WELL, not_proven=(ORDERS,)))
    data = json.loads(json.dumps(status.to_json()))
    assert data["verdict"] == "not_proven"
    assert data["verdict_details"]["condition"] == "not_proven"
    assert data["reason"] == data["verdict_details"]["sentence"]
    assert data["not_proven"] == [
        {
            "table": "public.orders",
            "since_lsn": "0/16B3748",
            "reason": "topic orders was deleted",
            "command": "bwtui snapshot public.orders",
            "advice": "",
        }
    ]
    assert Status.from_json(data) == status


def test_a_status_of_an_older_version_is_read() -> None:
    data: dict[str, Any] = WELL.to_json()
    del data["verdict_details"]
    data["verdict"] = asdict(WELL.verdict)
    del data["verdict"]["needs_action"]
    assert Status.from_json(data).verdict == WELL.verdict
    assert Status.from_json({**data, "verdict": "streaming"}).verdict == RelayVerdict()


def test_a_recording_has_the_details_where_older_versions_look_for_them() -> None:
    said = recorded_status(with_gaps(replace(WELL, heal=HEAL)))
    assert said["verdict"]["condition"] == "not_proven"
    assert Status.from_json(said).verdict.code == "not_proven"


@pytest.mark.parametrize(
    ("condition", "word"),
    [
        ("healthy", "streaming"),
        ("behind", "catching_up"),
        ("starting", "catching_up"),
        ("killed", "failed"),
        ("of a later version", "not_proven"),
    ],
)
def test_each_condition_has_a_word(condition: Condition, word: str) -> None:
    assert RelayVerdict(condition).code == word
    assert word in WORDS
