"""`bwtui replay`: progress, questions, and the report of late messages."""

import pytest

from bwtui.cli.output.progress import PlainProgress, ProgressView, view_of
from bwtui.cli.output.replay_console import ReplayConsole, question, summary
from bwtui.errors import RefusedError
from bwtui.replay.delivery import MissingCounts
from bwtui.replay.replay import ReplayOutcome, ReplayPlan
from bwtui.replay.rows import MessageCount


def mended(messages: int, late: int, *, there: int = 0) -> ReplayPlan:
    """Return the plan of a replay of missing messages."""
    counts: MissingCounts = {
        "reported": messages + there,
        "messages": messages,
        "late": late,
        "sent_again": late,
        "there": there,
        "without_message": 0,
    }
    return ReplayPlan(MessageCount(), missing=counts)


Captured = pytest.CaptureFixture[str]


def test_its_phases_are_told_where_there_is_no_terminal(capsys: Captured) -> None:
    with ReplayConsole(view_of(as_json=False, progress_json=False), yes=True) as screen:
        screen.phase("starting Spark")
        screen.count(1, 2)
        screen.phase("sending")
        screen.progress(10, 20, 5.0, 2.0)
    assert capsys.readouterr().err == "bwtui: starting Spark\nbwtui: sending\n"


def test_a_program_gets_counts_too(capsys: Captured) -> None:
    with ReplayConsole(view_of(as_json=True, progress_json=True), yes=True) as screen:
        screen.phase("sending")
        screen.progress(10, 20, 5.0, 2.0)
    assert capsys.readouterr().err == '{"phase": "sending"}\n{"phase": "sending", "done": 10, "total": 20}\n'


@pytest.mark.parametrize("view", [PlainProgress(), ProgressView()])
def test_what_can_not_be_asked_is_refused_before_the_work(view: ProgressView) -> None:
    with pytest.raises(RefusedError, match="2 reported messages would be") as refused:
        ReplayConsole(view, yes=False).will_ask(2)
    assert "--yes" in (refused.value.hint or "") and "--dry-run" in (refused.value.hint or "")
    with pytest.raises(RefusedError, match="1 reported message would be appended to its"):
        ReplayConsole(view, yes=False).will_ask(1)
    ReplayConsole(view, yes=True).will_ask(2)
    with pytest.raises(RefusedError, match="2 missing messages will be"):
        ReplayConsole(view, yes=False).confirm(mended(2, 1))
    ReplayConsole(view, yes=True).confirm(mended(2, 1))
    ReplayConsole(view, yes=False).confirm(ReplayPlan(MessageCount()))


def test_order_that_can_not_be_mended_is_told_only_where_it_is_so() -> None:
    late = "\n".join((question(mended(3, 2)) or "", *summary(ReplayOutcome(mended(3, 2), "done"))))
    assert "can't restore the order: 2 of them" in late
    assert "the newest 2 messages of these keys are sent again" in late
    fine = "\n".join((question(mended(3, 0)) or "", *summary(ReplayOutcome(mended(3, 0), "done"))))
    assert "3 missing messages will be appended to their partitions; no newer message" in fine
    assert "can't be mended" not in fine and "0 " not in fine.replace("sent 0 messages in 0.0 s (0/s)", "")
    assert "the newest of which is sent again" in (question(mended(1, 1)) or "")
