"""The verdict on PostgreSQL: requests without an answer, a silent stream, and unavailable statistics."""

from typing import Any

import pytest

from tests.unit.test_judge import BACKLOG, after

#: A commit of a few rows that the blocked walsender has not read.
FEW: dict[str, Any] = {
    "backlog_bytes": 18_800,
    "unread_bytes": 18_800,
    "sent_lsn": 5,
    "server_waits_for": "WalSenderWaitForWal",
}
REFUSAL = "waiting for PostgreSQL: can't connect to PostgreSQL: FATAL: sorry, too many clients already"


def test_a_small_commit_that_is_not_sent_is_a_stall_once_no_open_record_explains_it() -> None:
    verdict = after(60, **FEW, backlog_seconds=60)
    assert (verdict.condition, verdict.cause, verdict.stage) == ("stalled", "postgresql", "read")
    assert "PostgreSQL at db:5432/shop has sent nothing for 1 m" in verdict.sentence


def test_a_sender_that_does_not_answer_is_a_stall() -> None:
    """The walsender is blocked, though the server answers every query; unsent WAL need not be known."""
    silent: dict[str, Any] = {
        "called_at": 1_000.2,
        "server_waits_for": "WalSenderWaitForWal",
        "sender_pid": 4712,
    }
    assert after(1.5, **silent).condition == "waiting"
    verdict = after(2, **silent)
    assert (verdict.condition, verdict.cause, verdict.stage) == ("stalled", "postgresql", "read")
    assert "for 1.8 s (its walsender 4712 waits: WalSenderWaitForWal)" in verdict.sentence


def test_a_sender_that_hangs_is_one_stall_whatever_is_written_meanwhile() -> None:
    """More WAL is written, which restarts its counters, but the stall still counts from its beginning."""
    silent: dict[str, Any] = {"called_at": 1_000.2, "server_waits_for": "WalSenderMain", "sender_pid": 4712}
    verdict = after(30, then={**silent, **BACKLOG}, **silent)
    assert (verdict.condition, verdict.seconds) == ("stalled", 29.8)
    assert "(its walsender 4712 waits: WalSenderMain)" in verdict.sentence
    assert "SELECT pg_terminate_backend(4712)" in verdict.hint


def test_a_sender_that_answers_and_sends_nothing_is_a_stall() -> None:
    """For example, a walsender that waits for a standby before it sends; it answers every call."""
    waits: dict[str, Any] = {**BACKLOG, "server_waits_for": "WaitForStandbyConfirmation", "sent_lsn": 5}
    verdict = after(10, then={"heard_at": 1_009.9, "called_at": 1_009.8}, **waits)
    assert (verdict.condition, verdict.cause) == ("stalled", "postgresql")
    assert "has sent nothing for" in verdict.sentence
    assert "synchronized_standby_slots" in verdict.hint


def test_a_large_row_that_arrives_piece_by_piece_is_no_stall() -> None:
    writes: dict[str, Any] = {
        **BACKLOG,
        "server_waits_for": "WalSenderWriteData",
        "sent_lsn": 5,
        "sender_pid": 7,
    }
    arrives: dict[str, Any] = {"heard_at": 1_029.8, "partial_at": 1_029.8, "called_at": 1_001.0}
    assert after(30, then=arrives, **writes).condition != "stalled"
    stopped = after(
        30, **{**writes, **arrives, "heard_at": 1_001.0, "partial_at": 1_001.0, "called_at": 1_002.0}
    )
    assert stopped.condition == "stalled"
    assert "pg_terminate_backend" not in stopped.hint, "that would begin the row anew"


def test_a_look_from_before_the_call_blames_nobody_yet() -> None:
    old: dict[str, Any] = {"server_waits_for": "WalSenderWaitForWal", "sender_pid": 7, "called_at": 1_002.0}
    assert after(5, **old, lag_age=4.0).condition == "healthy"
    assert after(8, **old, lag_age=7.0).condition == "stalled"


def test_dropped_rows_are_told_of_while_all_goes_well() -> None:
    assert "; 1 row was dropped and stored as dead letters" in after(60, dropped=1).sentence
    assert "; 1,200 rows were dropped and stored as dead letters" in after(60, dropped=1_200).sentence


def test_a_sender_that_has_answered_or_decodes_is_none() -> None:
    assert after(60, called_at=999.8, server_waits_for="WalSenderWaitForWal").condition == "healthy"
    assert after(60, called_at=1_000.2, server_waits_for="").condition == "healthy"


def test_of_a_sender_that_nobody_sees_any_more_an_old_look_says_nothing() -> None:
    verdict = after(60, called_at=1_000.2, server_waits_for="", lag_age=50.0, lag_failure="refused")
    assert verdict.condition == "stalled"
    assert "its walsender" not in verdict.sentence


def test_what_may_be_half_a_record_is_not_told_as_confirmed() -> None:
    """During an open transaction the server writes whole pages, whose end may be an incomplete record."""
    verdict = after(20, **FEW, backlog_seconds=20)
    assert verdict.condition == "healthy"
    assert "PostgreSQL has not sent 18.4 kB of WAL that was written 20 s ago" in verdict.sentence


def test_of_a_sender_that_reads_and_reads_nobody_says_that_it_sends_nothing() -> None:
    """Time without anything to read does not count as time in which nothing was sent."""
    verdict = after(60, unread_bytes=0, sent_lsn=5, server_waits_for="WalSenderWaitForWal")
    assert verdict.sentence == "all committed changes are confirmed"


def test_a_burst_after_an_idle_hour_is_no_stall() -> None:
    idle = {"unread_bytes": 0, "sent_lsn": 5, "server_waits_for": "WalSenderWaitForWal"}
    burst = {**BACKLOG, "backlog_seconds": 0.1, "server_waits_for": "WalSenderWaitForWal", "sent_lsn": 5}
    assert after(3_600, then=burst, **idle).condition == "healthy"


def test_a_look_from_before_says_nothing_of_now() -> None:
    """The sampler can't log in, while the stream works."""
    stale: dict[str, Any] = {**BACKLOG, **FEW, "unread_bytes": 1 << 20, "backlog_bytes": 0}
    verdict = after(60, **stale, lag_age=60.0, lag_failure="can't connect to PostgreSQL: FATAL: too many")
    assert verdict.condition == "healthy"
    assert "PostgreSQL has not reported on the slot for 1 m 00 s: can't connect" in verdict.sentence


def test_a_look_from_before_the_session_says_nothing_of_it() -> None:
    stale: dict[str, Any] = {**BACKLOG, "server_waits_for": "WalSenderMain"}
    connecting = {**stale, "activity": "connect", "activity_since": 1_000.0}
    assert after(10, then={**stale, "activity": "read"}, **connecting).condition != "stalled"


def test_a_refusal_is_not_called_silence() -> None:
    verdict = after(10, activity="connect", activity_since=1_000.0, detail=REFUSAL)
    assert verdict.condition == "stalled"
    assert "has kept the relay waiting for 10 s: can't connect to PostgreSQL: FATAL: " in verdict.sentence


@pytest.mark.parametrize("activity", ["slot", "locks"])
def test_a_server_that_hangs_is_to_blame_and_no_transaction(activity: str) -> None:
    verdict = after(10, phase="snapshot", activity=activity, activity_since=1_000.2, asking_since=1_000.9)
    assert verdict.cause == "postgresql"
    assert "transactions" not in verdict.sentence
    assert "locks" not in verdict.sentence


def test_a_long_question_may_take_longer() -> None:
    assert after(4, asking_since=1_000.0, asking_is_long=True).condition != "stalled"
    verdict = after(6, asking_since=1_000.0, asking_is_long=True)
    assert (verdict.condition, verdict.cause) == ("stalled", "postgresql")


def test_a_role_that_may_not_see_the_sender_is_told_the_right_that_it_lacks() -> None:
    hidden: dict[str, Any] = {
        "backlog_bytes": 300_000,
        "backlog_seconds": 6.0,
        "server_waits_for": "WalSenderWaitForWal",
        "totals": {"read": 1.0},
    }
    verdict = after(6, **hidden)
    assert verdict.condition == "behind"
    assert "pg_read_all_stats" in verdict.hint
    few = after(6, **{**hidden, "backlog_bytes": 18_800})
    assert few.condition == "healthy"
    assert "all committed changes" not in few.sentence
    assert "pg_read_all_stats" in few.hint
    assert not after(6, **{**hidden, "unread_bytes": 300_000, "server_waits_for": "", "sent_lsn": 5}).hint


def test_a_standby_waits_for_its_primary_and_no_transaction_is_blamed() -> None:
    waits: dict[str, Any] = {"phase": "snapshot", "activity": "slot", "activity_since": 1_000.0}
    verdict = after(5, **waits, in_recovery=True)
    assert (verdict.condition, verdict.cause, verdict.stage) == ("stalled", "postgresql", "read")
    assert verdict.sentence.startswith("PostgreSQL at db:5432/shop is a standby")
    assert "waited for 5.0 s" in verdict.sentence
    assert verdict.hint.startswith("run SELECT pg_log_standby_snapshot(); on the primary")
    assert after(5, **waits).cause == "transactions"
