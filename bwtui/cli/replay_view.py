"""What ``bwtui replay`` shows: a bar while it runs, and what it did or would do."""

import contextlib
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bwtui.cli.progress import JsonLines, say
from bwtui.cli.table import columns, size
from bwtui.pipeline.replay import Outcome, Plan, Watch

if TYPE_CHECKING:
    from rich.progress import Progress


class Screen(Watch):
    """A bar on stderr with messages, rate and time left, where that is a terminal; or lines for a program."""

    def __init__(self, confirm: Callable[[Plan], None], lines: JsonLines | None = None) -> None:
        self._confirm = confirm
        self._lines = lines
        self._progress: Progress | None = None
        self._task: Any = None

    def __enter__(self) -> "Screen":
        if sys.stderr.isatty() and self._lines is None:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn

            shown = (
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.fields[counted]}"),
            )
            self._progress = Progress(*shown, console=Console(stderr=True), transient=True)
            self._task = self._progress.add_task("starting", total=None, counted="")
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def phase(self, name: str) -> None:
        """Show the phase; what takes long without a terminal is told in a line."""
        if self._lines is not None:
            self._lines.phase(name)
        elif self._progress is not None:
            self._progress.reset(self._task, description=name, total=None, counted="")
        elif name == "sealing the recording":
            say("the recording is not sealed: sealing it first")

    def count(self, done: int, total: int) -> None:
        """Show how far the phase is."""
        if self._lines is not None:
            self._lines.count(done, total)
        if self._progress is not None:
            counted = f"{done:,} of {total:,}"
            self._progress.update(self._task, completed=done, total=total, counted=counted)

    def progress(self, done: int, total: int, rate: float, left: float | None) -> None:
        """Show how far it is."""
        if self._lines is not None:
            self._lines.count(done, total)
        if self._progress is not None:
            time = "" if left is None else f", {left:,.0f} s left"
            counted = f"{done:,} of {total:,} messages, {rate:,.0f}/s{time}"
            self._progress.update(self._task, completed=done, total=total, counted=counted)

    def confirm(self, plan: Plan) -> None:
        """Ask, with the bar out of the way."""
        with contextlib.ExitStack() as stack:
            if self._progress is not None:
                self._progress.stop()
                stack.callback(self._progress.start)
            self._confirm(plan)


def question(plan: Plan) -> str | None:
    """Return what has to be said before something is written, or None when there is nothing."""
    if plan.missing is not None:
        return (
            f"{plan.missing['messages']:,} missing messages will stand at the end of their partitions, "
            f"{plan.missing['late']:,} of them behind newer ones of their keys, whose newest is sent again"
        )
    topics = [topic.topic for topic in plan.topics if topic.held]
    if not topics:
        return None
    named = ", ".join(topics[:3]) + (f" and {len(topics) - 3} more" if len(topics) > 3 else "")
    return f"{named} may hold {plan.held:,} messages of this window already, and would hold them twice"


def to_json(outcome: Outcome) -> dict[str, Any]:
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


def told(outcome: Outcome) -> str:
    """Return the result for a reader."""
    plan = outcome.plan
    lines = _plan(plan) if outcome.state == "planned" else [_done(outcome)]
    if plan.missing is not None:
        lines += _missing(plan.missing)
    return "\n".join([*lines, *(f"note: {note}" for note in plan.notes)])


def _done(outcome: Outcome) -> str:
    plan = outcome.plan
    rate = outcome.sent / outcome.seconds if outcome.seconds else 0.0
    text = f"sent {outcome.sent:,} messages in {outcome.seconds:.1f} s ({rate:,.0f}/s)"
    if plan.is_resumed:
        before = outcome.done - outcome.sent - outcome.found
        text += f"; {before:,} were sent before"
        text += f", {outcome.found:,} more were found in the topics" if outcome.found else ""
        text += f", at most {outcome.doubled:,} are there twice"
    return text + _left_out(plan)


def _left_out(plan: Plan) -> str:
    found = [(plan.count.repeats, "repeats"), (plan.count.refused, "that Kafka had refused")]
    parts = [f"{number:,} {what}" for number, what in found if number]
    return f"; left out: {', '.join(parts)}" if parts else ""


def _plan(plan: Plan) -> list[str]:
    total = sum(topic.bytes for topic in plan.topics)
    lines = [f"would send {plan.messages:,} messages, {size(total)}{_left_out(plan)}"]
    if plan.is_resumed:
        lines.append(f"{plan.resumed:,} of them were sent by an earlier run, which would be gone on with")
    rows = [
        (
            topic.topic,
            f"{topic.messages:,}",
            size(topic.bytes),
            " ".join(f"{number}:{count:,}" for number, count in sorted(topic.partitions.items())) or "-",
            f"{sum(topic.held.values()):,}" if topic.exists else "would be made",
        )
        for topic in plan.topics
    ]
    head = ("TOPIC", "MESSAGES", "BYTES", "PARTITIONS", "HOLDS ALREADY")
    lines += ["", columns(head, rows, right=frozenset({1, 2, 4}))]
    mapped = [
        (use.subject, str(use.recorded_id), "would be registered" if use.id is None else str(use.id))
        for use in plan.schemas.uses
    ]
    if mapped:
        lines += ["", columns(("SUBJECT", "RECORDED ID", "ID"), mapped)]
    return lines


def _missing(numbers: dict[str, int]) -> list[str]:
    known = numbers["messages"] + numbers["there"]
    lines = [
        f"{known:,} of {numbers['reported']:,} missing messages are in the recording",
        f"order can't be mended: {numbers['late']:,} of them stand behind newer messages of their keys",
        f"{numbers['sent_again']:,} newest messages of these keys are sent again behind them, "
        "so that every latest value is right",
    ]
    if numbers["there"]:
        lines.append(f"{numbers['there']:,} are in the topics by now, and are left out")
    if numbers["without_message"]:
        lines.append(f"{numbers['without_message']:,} have no message in the recording, or are not selected")
    return lines
