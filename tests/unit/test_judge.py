"""The verdict from observations: the cause is the service that the relay is blocked on, if it has work."""

import time
from dataclasses import replace
from typing import Any

import pytest

from bwtui.relay.state.activity_clock import ActivityClock
from bwtui.relay.watch.judge import Judge, Observation, ServiceNames

NAMES = ServiceNames("PostgreSQL at db:5432/shop", "Kafka at k:9092", "the schema registry at http://r", "r")
START = Observation(
    now=1_000.0, time=5_000.0, phase="streaming", settled_at=1_000.0, heard_at=999.9, capacity=100_000
)
BACKLOG: dict[str, Any] = {"backlog_bytes": 1 << 20, "backlog_seconds": 5.0, "unread_bytes": 1 << 20}


def after(seconds: float, then: dict[str, Any] | None = None, **changes: Any) -> Any:
    """Return the verdict ``seconds`` after a start in which everything moved, judged twice a second.

    ``then`` holds the changes of the very last observation.
    """
    judge = Judge(NAMES)
    judge.judge(replace(START, rows=0))
    seen = replace(START, rows=1, durable=1, transactions=1)
    verdict = judge.judge(seen)
    last = int(seconds * 2)
    for step in range(1, last + 1):
        now = START.now + step / 2
        moved: Any = {"now": now, "time": START.time + step / 2, "settled_at": now}
        changes = {**changes, **(then or {})} if step == last else changes
        verdict = judge.judge(replace(seen, **moved, **changes))
    return verdict


def test_an_idle_relay_is_healthy() -> None:
    verdict = after(60)
    assert (verdict.condition, verdict.cause) == ("healthy", "")
    assert verdict.sentence == "all committed changes are confirmed"


def test_a_stop_that_waits_says_so_first() -> None:
    waiting: dict[str, Any] = {
        "activity": "settling",
        "activity_since": 1_000.0,
        "in_flight": 5,
        "oldest_since": 1_000.0,
    }
    verdict = after(6, is_stopping=True, **waiting)
    first = "the relay is stopping, and waits: Kafka at k:9092 has acknowledged nothing for 6.0 s"
    assert verdict.sentence.startswith(first)
    assert "ends within seconds" in verdict.hint


@pytest.mark.parametrize(
    ("changes", "cause", "stage"),
    [
        ({"in_flight": 5, "oldest_since": 1_000.0}, "kafka", "acknowledge"),
        ({"activity": "registry", "activity_since": 1_000.0}, "registry", "encode"),
        ({"activity": "topics", "activity_since": 1_000.0}, "kafka", "produce"),
        ({"activity": "catalog", "activity_since": 1_000.0}, "postgresql", "read"),
        ({"activity": "connect", "activity_since": 1_000.0}, "postgresql", "read"),
        ({"activity": "disk", "activity_since": 1_000.0}, "disk", ""),
        ({"ledger_since": 1_000.0}, "disk", ""),
        ({"asking_since": 1_000.0}, "postgresql", "read"),
        ({"phase": "snapshot", "activity": "copy", "activity_since": 1_000.0}, "postgresql", "read"),
        ({"phase": "snapshot", "activity": "slot", "activity_since": 1_000.0}, "transactions", "read"),
        ({**BACKLOG, "server_waits_for": "WalSenderMain"}, "postgresql", "read"),
    ],
)
def test_whoever_is_waited_for_is_blamed_within_three_seconds(
    changes: dict[str, Any], cause: str, stage: str
) -> None:
    verdict = after(2.5, **changes)
    assert (verdict.condition, verdict.cause, verdict.stage) == ("stalled", cause, stage)
    assert after(1.0, **changes).condition in ("waiting", "healthy", "behind")


def test_kafka_is_not_blamed_for_what_nobody_has_taken() -> None:
    """During a blocked COPY, the relay does not process delivery reports."""
    judge = Judge(NAMES)
    copying = replace(
        START, phase="snapshot", activity="copy", activity_since=1_000.0, in_flight=9, oldest_since=1_000.0
    )
    for step in range(12):
        verdict = judge.judge(replace(copying, now=1_000.0 + step / 2, time=5_000.0 + step / 2))
    assert verdict.cause == "postgresql"


def test_a_transaction_that_is_open_is_nobodys_fault() -> None:
    """The server has read its WAL, and holds it until the commit."""
    verdict = after(10, **{**BACKLOG, "unread_bytes": 0}, server_waits_for="WalSenderWaitForWal")
    assert verdict.condition == "healthy"


def test_the_server_that_decodes_is_no_stall() -> None:
    verdict = after(10, **BACKLOG, server_waits_for="", totals={"read": 1.0})
    assert verdict.condition == "behind"


def test_two_are_named_and_the_first_is_the_cause() -> None:
    verdict = after(8, in_flight=5, oldest_since=1_000.0, asking_since=1_003.0)
    assert verdict.cause == "kafka"
    first, second, *_ = verdict.sentence.split("; ")
    assert first.startswith("Kafka at k:9092 ") and first.endswith(" 8.0 s")
    assert second.startswith("also PostgreSQL at db:5432/shop ") and second.endswith(" 5.0 s")


def test_a_relay_that_did_not_run_blames_nobody_for_that_time() -> None:
    judge = Judge(NAMES)
    judge.judge(START)
    late = replace(START, now=1_020.0, time=5_020.0, settled_at=1_020.0, in_flight=5, oldest_since=1_000.0)
    verdict = judge.judge(late)
    assert (verdict.condition, verdict.cause) == ("healthy", "")
    assert verdict.sentence.startswith("the relay itself did not run for 20 s; ")


def test_progress_of_a_full_queue_is_no_stall() -> None:
    judge = Judge(NAMES)
    for step in range(20):
        now = 1_000.0 + step / 2
        totals: Any = {"room": step * 0.45, "work": step * 0.05}
        full: Any = {"in_flight": 100_000, "oldest_since": now - 9, "activity": "room", "activity_since": now}
        moving: Any = {"durable": step, "rows": step * 500, "transactions": step, "settled_at": now}
        verdict = judge.judge(replace(START, now=now, totals=totals, **full, **moving, **BACKLOG))
    assert (verdict.condition, verdict.cause, verdict.stage) == ("behind", "kafka", "acknowledge")
    assert "the bottleneck is Kafka at k:9092, which takes 9.0 s to acknowledge" in verdict.sentence
    assert judge.busy == {"acknowledge": 0.9, "encode": 0.1}


def test_who_waits_for_room_waits_for_acknowledgements() -> None:
    judge = Judge(NAMES)
    for step in range(20):
        now = 1_000.0 + step / 2
        totals: Any = {"room": step * 0.45, "work": step * 0.05}
        young: Any = {"in_flight": 900, "oldest_since": now - 0.8, "activity": "work", "activity_since": now}
        moving: Any = {"durable": step, "rows": step * 500, "transactions": step, "settled_at": now}
        verdict = judge.judge(replace(START, now=now, totals=totals, **young, **moving, **BACKLOG))
    assert (verdict.condition, verdict.cause, verdict.stage) == ("behind", "kafka", "acknowledge")
    assert "which takes 0.8 s to acknowledge" in verdict.sentence


def test_a_wait_that_is_none_is_not_told() -> None:
    """Right after an outage many messages are acknowledged at once, and the pending ones are young."""
    judge = Judge(NAMES)
    for step in range(20):
        now = 1_000.0 + step / 2
        totals: Any = {"room": step * 0.35, "work": step * 0.15}
        young: Any = {"in_flight": 900, "oldest_since": now - 0.02, "activity": "work", "activity_since": now}
        moving: Any = {"durable": step, "rows": step * 500, "transactions": step, "settled_at": now}
        verdict = judge.judge(replace(START, now=now, totals=totals, **young, **moving, **BACKLOG))
    assert "the bottleneck is Kafka at k:9092, 70% of its time" in verdict.sentence


def test_without_a_row_there_is_no_bottleneck() -> None:
    judge = Judge(NAMES)
    for step in range(4):
        now = 1_000.0 + step / 2
        working: Any = {"totals": {"work": step * 0.34}, "activity": "work", "activity_since": now}
        moving: Any = {"now": now, "transactions": step, "settled_at": now}
        verdict = judge.judge(replace(START, phase="snapshot", **working, **moving, **BACKLOG))
    assert (verdict.condition, verdict.cause, verdict.stage) == ("behind", "", "")
    assert "bottleneck" not in verdict.sentence


@pytest.mark.parametrize(
    ("safe", "words"),
    [
        ({"wal_status": "reserved"}, "the slot is safe while PostgreSQL's disk has room"),
        ({"safe_bytes": 1 << 30, "safe_seconds": 7_500.0}, "the slot is safe for ≈ 2 h 05 m: 1.00 GB of WAL"),
        ({"safe_bytes": 1 << 30}, "the slot is safe: 1.00 GB of WAL may still be written"),
        (
            {"safe_bytes": 1 << 30, "safe_seconds": 4e8},
            "the slot is safe: 1.00 GB of WAL may still be written",
        ),
        ({"safe_bytes": -1, "wal_status": "unreserved"}, "THE SLOT IS IN DANGER"),
    ],
)
def test_a_stall_says_how_long_the_slot_is_safe(safe: dict[str, Any], words: str) -> None:
    assert words in after(3, activity="registry", activity_since=1_000.0, **safe).sentence


def test_the_temporary_slot_of_a_first_snapshot_is_not_called_safe() -> None:
    stalled: Any = {"activity": "registry", "activity_since": 1_000.0, "is_temporary": True}
    assert "the slot is safe" not in after(3, wal_status="reserved", **stalled).sentence
    assert "IN DANGER" in after(3, wal_status="unreserved", safe_bytes=-1, **stalled).sentence


@pytest.mark.parametrize(("seconds", "is_told"), [(86_400.0, True), (1.6e10, False)])
def test_a_healthy_relay_tells_a_runway_that_can_be_foreseen(seconds: float, is_told: bool) -> None:
    """With hardly any writes, the runway would be centuries."""
    assert ("would be safe for ≈ 1 d 0 h" in after(1, safe_seconds=seconds).sentence) == is_told
    assert ("would be safe" in after(1, safe_seconds=seconds).sentence) == is_told


@pytest.mark.parametrize(("are_streamed", "is_told"), [(True, True), (False, False)])
def test_rows_of_a_snapshot_are_none_of_a_transaction(are_streamed: bool, is_told: bool) -> None:
    judge = Judge(NAMES)
    judge.judge(START)
    for step in range(1, 60):
        rows, now = 1_000 * step, START.now + step
        streamed = rows if are_streamed else 0
        moved: Any = {"now": now, "time": START.time + step, "settled_at": now, "heard_at": now}
        # A small transaction is committed at first.
        committed: Any = {
            "transactions": int(step > 1),
            "rows": rows,
            "streamed": streamed + 1,
            "durable": rows,
        }
        verdict = judge.judge(replace(START, **moved, **committed))
    assert ("in one transaction of" in verdict.sentence) is is_told


class Turning(ActivityClock):
    """Switches to a different activity right after a reader has read the current one."""

    turns = False

    def __getattribute__(self, name: str) -> Any:
        """Switch once ``current`` has been read."""
        seen = super().__getattribute__(name)
        if name == "current" and super().__getattribute__("turns"):
            self.turns = False
            self.turn_to("produce")
        return seen


def test_a_stay_that_ends_while_it_is_read_is_not_counted_twice() -> None:
    """If the counter jumped, it must stop until the sum has caught up."""
    account = Turning()
    begun = time.monotonic() - 100
    account.current = ("work", begun)
    account.turns = True
    now = time.monotonic()
    assert sum(account.totals(now).values()) <= time.monotonic() - begun


def test_an_account_adds_up_to_the_time_that_has_passed() -> None:
    account = ActivityClock()
    _, begun = account.current
    assert account.turn_to("work") == "begin"
    _, turned = account.current
    assert account.turn_to("work") == "work"
    assert account.current == ("work", turned)
    assert account.turn_to("read") == "work"
    totals = account.totals(turned + 10)
    assert sum(totals.values()) == pytest.approx(turned + 10 - begun)


def test_a_cause_with_an_error_text_comes_before_one_that_is_only_silent() -> None:
    """PostgreSQL refuses the login, and the wait for the recording's disk began earlier."""
    refused = 'waiting for PostgreSQL: role "me" is not permitted to log in'
    waiting: dict[str, Any] = {"activity": "connect", "activity_since": 1_001.0, "detail": refused}
    verdict = after(6, ledger_since=1_000.0, **waiting)
    assert (verdict.condition, verdict.cause) == ("stalled", "postgresql")
    assert 'role "me" is not permitted to log in; also r has written nothing to its disk' in verdict.sentence


@pytest.mark.parametrize("heals", [False, True])
def test_a_slot_that_is_lost_comes_before_whoever_else_is_waited_for(heals: bool) -> None:
    judge = Judge(replace(NAMES, slot="shop", heals=heals))
    for step in range(12):
        now = 1_000.0 + step / 2
        waits: Any = {"in_flight": 5, "oldest_since": 1_000.0, "outage": "Kafka can't be reached: refused"}
        seen = replace(START, now=now, time=4_000.0 + now, settled_at=now, wal_status="lost", **waits)
        verdict = judge.judge(seen)
    assert (verdict.condition, verdict.cause) == ("stalled", "postgresql")
    assert verdict.sentence.startswith("slot shop is lost: PostgreSQL removed WAL that it needs, so topics ")
    assert "; also Kafka at k:9092 has acknowledged nothing for 5.5 s: Kafka can't be" in verdict.sentence
    assert "safe" not in verdict.sentence
    assert ("the relay recreates the slot" in verdict.hint) == heals
    assert ("--heal" in verdict.hint) != heals
    judge.judge(replace(seen, now=1_006.0, wal_status="reserved", in_flight=0))
    assert judge.judge(replace(seen, now=1_006.5, wal_status="reserved", in_flight=0)).condition == "healthy"


def looks(*changes: dict[str, Any]) -> list[Any]:
    """Return the verdicts of observations twice a second, each with its ``changes``."""
    judge = Judge(NAMES)
    judge.judge(START)
    seen, verdicts = replace(START, rows=1, durable=1, transactions=1), []
    judge.judge(seen)
    for step, one in enumerate(changes, 1):
        now = START.now + step / 2
        moved: Any = {"now": now, "time": START.time + step / 2, "settled_at": now}
        verdicts.append(judge.judge(replace(seen, **{**moved, **one})))
    return verdicts


SILENT: dict[str, Any] = {**BACKLOG, "server_waits_for": "WalSenderMain", "sent_lsn": 5}
REGISTRY: dict[str, Any] = {"activity": "registry", "activity_since": 1_000.0}
KAFKA: dict[str, Any] = {"in_flight": 5, "oldest_since": 1_000.0}


@pytest.mark.parametrize(
    ("stall", "errand"),
    [
        # The main loop takes turns: for a moment its activity is not reading.
        (SILENT, {"activity": "produce", "activity_since": 1_004.5}),
        # The walsender wakes up, finds no work, and waits again.
        (SILENT, {"server_waits_for": ""}),
        # The relay saves an LSN that it has confirmed meanwhile, and the request continues.
        (REGISTRY, {"activity": "state", "activity_since": 1_004.5}),
        # The main thread was late to process delivery reports.
        (KAFKA, {"settled_at": 1_002.0}),
    ],
)
def test_a_stall_does_not_flicker_while_nothing_passes(stall: dict[str, Any], errand: dict[str, Any]) -> None:
    later = {**stall, "activity_since": 1_005.0} if stall is REGISTRY else stall
    verdicts = looks(*[stall] * 8, {**stall, **errand}, *[later] * 10)
    assert [verdict.condition for verdict in verdicts[4:]] == ["stalled"] * 15
    assert len({verdict.cause for verdict in verdicts[4:]}) == 1


@pytest.mark.parametrize(
    ("stall", "passes"),
    [
        (SILENT, {**SILENT, "rows": 2, "sent_lsn": 6}),
        (REGISTRY, {"activity": "read", "activity_since": 1_004.5, "answered_at": 1_004.4}),
        (KAFKA, {"durable": 6}),
        ({"asking_since": 1_000.0}, {}),
        ({"ledger_since": 1_000.0}, {}),
        ({"activity": "connect", "activity_since": 1_000.0}, {"activity": "read"}),
    ],
)
def test_a_stall_ends_at_once_when_something_passes(stall: dict[str, Any], passes: dict[str, Any]) -> None:
    assert [verdict.condition for verdict in looks(*[stall] * 8, passes)[-2:]] != ["stalled", "stalled"]


def test_a_sender_that_answers_late_again_and_again_is_not_one_long_stall() -> None:
    """It answers a call after 1.6 s, and the next call has just been made."""
    calls: dict[str, Any] = {"called_at": 1_000.4, "server_waits_for": "WalSenderMain"}
    again = {**calls, "heard_at": 1_002.1, "called_at": 1_002.4}
    assert [verdict.condition for verdict in looks(*[calls] * 4, again)[-2:]] == ["stalled", "healthy"]


def test_a_stall_that_no_look_sees_any_more_is_over_soon() -> None:
    decodes = {**SILENT, "server_waits_for": "", "totals": {"read": 1.0}}
    assert [verdict.condition for verdict in looks(*[SILENT] * 8, *[decodes] * 4)[-2:]] == [
        "stalled",
        "behind",
    ]


def catching_up_after_a_stall(**changes: Any) -> list[Any]:
    """Return the verdicts right after an outage of Kafka, while the main thread had nothing to read."""
    stall = [{**KAFKA, **BACKLOG, "totals": {"read": step / 2}} for step in range(1, 9)]
    moving = [
        {
            **BACKLOG,
            "rows": 100 * step,
            "durable": 100 * step,
            "server_waits_for": "",
            "totals": {"read": 4.0, "work": step * 0.4, "room": step * 0.1},
            **changes,
        }
        for step in range(1, 5)
    ]
    return looks(*stall, *moving)[-4:]


def test_time_spent_in_a_stall_blames_nobody_afterwards() -> None:
    first, *later = catching_up_after_a_stall()
    assert (first.condition, first.cause, first.stage) == ("behind", "", "")
    assert "the bottleneck" not in first.sentence
    assert {(verdict.condition, verdict.cause, verdict.stage) for verdict in later} == {
        ("behind", "relay", "encode")
    }


def test_postgresql_holds_nothing_up_once_all_is_read() -> None:
    """Kafka has the remaining messages in flight, and the main thread waits for WAL to be written."""
    read_up: dict[str, Any] = {
        **BACKLOG,
        "unread_bytes": 100,
        "in_flight": 9,
        "oldest_since": 1_000.0,
        "server_waits_for": "WalSenderWaitForWal",
    }
    moving = [
        {**read_up, "durable": n, "rows": n, "totals": {"read": n / 2}, "oldest_since": 1_000 + n / 2}
        for n in range(2, 12)
    ]
    last = looks(*moving)[-1]
    assert (last.condition, last.cause, last.stage) == ("behind", "", "")
    decodes = looks(*[{**one, "server_waits_for": ""} for one in moving])[-1]
    assert (decodes.condition, decodes.cause, decodes.stage) == ("behind", "postgresql", "read")


def test_a_topic_that_does_not_exist_is_no_outage_of_the_brokers() -> None:
    verdict = after(3, **KAFKA, missing_topics=("public.orders",))
    assert (verdict.condition, verdict.cause) == ("stalled", "kafka")
    assert verdict.sentence.startswith(
        "Kafka at k:9092 has acknowledged nothing for 3.0 s: topic public.orders does not exist; "
    )
    assert "check that the brokers are running" not in verdict.hint
    refused = after(3, **KAFKA, missing_topics=("public.orders",), outage="Kafka can't be reached: refused")
    assert "does not exist" not in refused.sentence
    assert "check that the brokers are running" in refused.hint
    several = after(3, **KAFKA, missing_topics=("a", "b", "c")).sentence
    assert ": topics a and 2 more do not exist" in several
