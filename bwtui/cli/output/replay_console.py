"""The output and questions of ``bwtui replay``: its progress, and its result or plan."""

import sys
from typing import Any

from bwtui.audit.replay_hints import NONE_AGAIN, late_warning, late_warning_ahead
from bwtui.cli.output.progress import ProgressBar, ProgressView
from bwtui.cli.output.table import columns, size
from bwtui.console import confirm, say
from bwtui.errors import RefusedError
from bwtui.replay.delivery import MissingCounts
from bwtui.replay.replay import ReplayObserver, ReplayOutcome, ReplayPlan


class ReplayConsole(ReplayObserver):
    """Shows phases, messages, rate and time left on a view; asks for confirmation unless ``yes`` was
    given.
    """

    def __init__(self, view: ProgressView, *, yes: bool) -> None:
        self._view = view
        self._yes = yes

    def __enter__(self) -> "ReplayConsole":
        self._view.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._view.__exit__()

    def phase(self, name: str) -> None:
        self._view.phase(name)

    def count(self, done: int, total: int) -> None:
        self._view.count(done, total)

    def progress(self, done: int, total: int, rate: float, seconds_left: float | None) -> None:
        if isinstance(self._view, ProgressBar):
            time = "" if seconds_left is None else f", {seconds_left:,.0f} s left"
            self._view.show(done, total, f"{done:,} of {total:,} messages, {rate:,.0f}/s{time}")
        else:
            self._view.count(done, total)

    def will_ask(self, missing: int) -> None:
        """Raise RefusedError early if a later confirmation would be impossible."""
        if not self._yes and not _has_terminal():
            raise _unconfirmed(late_warning_ahead(missing))

    def confirm(self, plan: ReplayPlan) -> None:
        """Ask whether to write, with the bar hidden. Raises RefusedError."""
        text = question(plan)
        if self._yes or text is None:
            return
        if not _has_terminal():
            raise _unconfirmed(text)
        with self._view.out_of_the_way():
            say(f"{text}.", err=True)
            if not confirm("Write them?"):
                hint = "answer y to write; --dry-run only shows the plan"
                raise RefusedError("nothing was written", hint)


def _has_terminal() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()


def _unconfirmed(text: str) -> RefusedError:
    return RefusedError(text, "check with --dry-run, then confirm with --yes")


def question(plan: ReplayPlan) -> str | None:
    """Return the warning before something is written, or None if there is none."""
    if plan.missing is not None:
        return late_warning(plan.missing["messages"], plan.missing["late"])
    topics = [topic.topic for topic in plan.topics if topic.held]
    if not topics:
        return None
    topic_list = ", ".join(topics[:3]) + (f" and {len(topics) - 3} more" if len(topics) > 3 else "")
    return (
        f"{topic_list} may already contain {plan.held:,} messages of this range, and would then contain "
        "them twice"
    )


def to_json(outcome: ReplayOutcome) -> dict[str, Any]:
    """Return the result for a program."""
    plan = outcome.plan
    return {
        "state": outcome.state,
        "messages": plan.messages,
        "bytes": sum(topic.bytes for topic in plan.topics),
        "sent": outcome.sent,
        "sent_before": outcome.done - outcome.sent - outcome.found
        if outcome.state == "done"
        else plan.resumed,
        "found_in_topics": outcome.found,
        "doubled_at_most": outcome.doubled,
        "seconds": round(outcome.seconds, 3),
        "resumed": plan.is_resumed,
        "repeats_left_out": plan.count.repeats,
        "refused_left_out": plan.count.refused,
        "topics": {
            topic.topic: {
                "recorded": topic.recorded,
                "messages": topic.messages,
                "bytes": topic.bytes,
                "existed": topic.exists,
                "placement": topic.placement,
                "partitions": {str(number): count for number, count in sorted(topic.partitions.items())},
                "held": {str(number): count for number, count in sorted(topic.held.items())},
            }
            for topic in plan.topics
        },
        "schemas": [
            {
                "subject": use.subject,
                "part": use.part,
                "recorded_id": use.recorded_id,
                "id": use.id,
                "new": use.is_new,
                "messages": use.messages,
            }
            for use in plan.schemas.uses
        ],
        "missing": plan.missing,
        "notes": plan.notes,
    }


def summary(outcome: ReplayOutcome) -> list[str]:
    """Return the result as text."""
    plan = outcome.plan
    lines = _plan(plan) if outcome.state == "planned" else [_done(outcome)]
    if plan.missing is not None:
        lines += _missing(plan.missing)
    return [*lines, *(f"note: {note}" for note in plan.notes)]


def _done(outcome: ReplayOutcome) -> str:
    plan = outcome.plan
    rate = outcome.sent / outcome.seconds if outcome.seconds else 0.0
    text = f"sent {outcome.sent:,} messages in {outcome.seconds:.1f} s ({rate:,.0f}/s)"
    if plan.is_resumed:
        before = outcome.done - outcome.sent - outcome.found
        text += f"; {before:,} were sent before"
        text += f", {outcome.found:,} more were found in the topics" if outcome.found else ""
    if plan.is_resumed or outcome.doubled:
        text += f", {f'at most {outcome.doubled:,} are' if outcome.doubled else 'none is'} duplicated"
    return text + _skipped_text(plan)


def _skipped_text(plan: ReplayPlan) -> str:
    skipped = [(plan.count.repeats, "repeats"), (plan.count.refused, "rejected by Kafka")]
    texts = [f"{number:,} {reason}" for number, reason in skipped if number]
    return f"; skipped: {', '.join(texts)}" if texts else ""


def _plan(plan: ReplayPlan) -> list[str]:
    total = sum(topic.bytes for topic in plan.topics)
    lines = [f"would send {plan.messages:,} messages, {size(total)}{_skipped_text(plan)}"]
    if plan.is_resumed:
        lines.append(f"an earlier run sent {plan.resumed:,} of them; this run would continue it")
    rows = [
        (
            topic.topic,
            f"{topic.messages:,}",
            size(topic.bytes),
            " ".join(f"{number}:{count:,}" for number, count in sorted(topic.partitions.items())) or "-",
            f"{sum(topic.held.values()):,}" if topic.exists else "to be created",
        )
        for topic in plan.topics
    ]
    head = ("TOPIC", "MESSAGES", "BYTES", "PARTITIONS", "HOLDS ALREADY")
    lines += ["", *columns(head, rows, right=frozenset({1, 2, 4}))]
    mapped = [
        (use.subject, str(use.recorded_id), "to be registered" if use.id is None else str(use.id))
        for use in plan.schemas.uses
    ]
    if mapped:
        lines += ["", *columns(("SUBJECT", "RECORDED ID", "ID"), mapped)]
    return lines


def _missing(numbers: MissingCounts) -> list[str]:
    recorded = numbers["messages"] + numbers["there"]
    lines = [f"the recording contains {recorded:,} of {numbers['reported']:,} missing messages"]
    if numbers["late"]:
        lines += [
            f"replay can't restore the order: {numbers['late']:,} of them come after newer messages "
            "of their keys",
            f"the newest {numbers['sent_again']:,} messages of these keys are sent again after "
            "them, so that every latest value is right",
            "the next audit will report the first as reordered and the second as duplicated",
        ]
    else:
        lines.append(f"{NONE_AGAIN}: the missing messages make every latest value right")
    if numbers["there"]:
        lines.append(f"{numbers['there']:,} are in the topics now, and are skipped")
    if numbers["without_message"]:
        lines.append(f"{numbers['without_message']:,} have no message in the recording, or are not selected")
    return lines
