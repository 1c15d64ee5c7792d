"""The output and questions of ``bwtui repair``: the differences, the plan, and the result."""

import dataclasses
import sys
from typing import Any

from bwtui.audit.terminal import headline
from bwtui.cli.inputs.repair_target import RepairTarget
from bwtui.cli.output.progress import ProgressView
from bwtui.cli.output.table import columns
from bwtui.console import confirm, say
from bwtui.errors import RefusedError
from bwtui.model.backfill_texts import snapshot_command
from bwtui.model.number_format import plural
from bwtui.repair.plan import TablePlan
from bwtui.repair.repair import RepairOutcome

_HEAD = ("TABLE", "TOPIC", "ROWS", "TOMBSTONES", "OF OTHER KEYS", "IN OTHER PARTITIONS")


class RepairConsole:
    """Shows phases and counts on a view; asks for confirmation unless ``yes`` was given."""

    def __init__(self, relay: str, view: ProgressView, *, yes: bool, is_dry: bool) -> None:
        """Raise RefusedError if a confirmation is needed and there is no terminal for it."""
        self._relay = relay
        self._view = view
        self._yes = yes
        #: Whether the differences were shown, and the repair confirmed.
        self.has_asked = False
        if not (yes or is_dry or (sys.stdin.isatty() and sys.stderr.isatty())):
            raise RefusedError(
                "the repair needs a confirmation, and there is no terminal to ask",
                "check with --dry-run, then confirm with --yes",
            )

    def phase(self, name: str) -> None:
        self._view.phase(name)

    def count(self, done: int, total: int) -> None:
        self._view.count(done, total)

    def confirm(self, outcome: RepairOutcome) -> None:
        """Ask for confirmation, with the bar hidden. Raises RefusedError."""
        if self._yes:
            return
        self.has_asked = True
        with self._view.out_of_the_way():
            say(headline(outcome.before), *planned(outcome), err=True)
            if outcome.messages:
                amount = plural(outcome.messages, "message")
                relay = self._relay
                question = f"Let relay {relay} send {amount}?" if relay else f"Send {amount} without a relay?"
                refusal = RefusedError("nothing was sent", "answer y to send; --dry-run only shows the plan")
            else:
                question = f"No difference remains that can be compared. End the heal of relay {self._relay}?"
                refusal = RefusedError(
                    "the heal is still pending",
                    "answer y to end the heal; the notes describe what remains to be done",
                )
            if not confirm(question):
                raise refusal


def planned(outcome: RepairOutcome) -> list[str]:
    """Return what would be sent, and why the comparison can't be fully trusted."""
    rows = [
        (one.table, one.topic, *(f"{number:,}" for number in one.counts))
        for one in outcome.tables
        if one.messages
    ]
    lines = columns(_HEAD, rows, right=frozenset({2, 3, 4, 5})) if rows else []
    for one in outcome.tables:
        lines += [f"  {one.table}: {_example(example)}" for example in one.examples]
    if outcome.caveat and outcome.messages:
        lines.append(f"note: {outcome.caveat}")
    return lines + _remaining_notes(outcome)


def _example(example: dict[str, Any]) -> str:
    key = ", ".join(f"{name}={value}" for name, value in example["key"].items())
    return f"{example['class']} {key}"


def _remaining_notes(outcome: RepairOutcome) -> list[str]:
    """Return notes on each table, and what can't be repaired by key."""
    lines = [f"note: {one.table}: {note}" for one in outcome.tables for note in one.notes()]
    missing = [one for one in outcome.last.findings if one.name == "not_captured"]
    lines += [f"note: {one.table} is not captured: {(one.note or '').removeprefix('is ')}" for one in missing]
    if outcome.untrusted:
        command = snapshot_command(
            [one.table for one in outcome.untrusted],
            relay=outcome.relay,
            unkeyed=any(one.is_unkeyed for one in outcome.untrusted),
        )
        lines.append(
            f"note: the comparison is not reliable for some tables; '{command}' sends them "
            "completely, but does not remove surplus keys from their topics"
        )
    return lines + [f"note: {note}" for note in outcome.notes]


def summary(relay: str, outcome: RepairOutcome, *, is_shown: bool = False) -> list[str]:
    """Return the result as text; ``is_shown``: the differences were already shown."""
    if outcome.is_dry:
        outcome_text = (
            f"{plural(outcome.messages, 'message')} would be sent" if outcome.messages else "nothing to send"
        )
        return [headline(outcome.before), *planned(outcome), outcome_text]
    # After the numbers of rows sent, the finding would read as if it still held.
    has_sent = bool(outcome.sent or outcome.stray_tombstones)
    before = f"before: {headline(outcome.before)}" if has_sent else headline(outcome.before)
    lines = [] if is_shown and has_sent else [before]
    if has_sent:
        rows, dead = (sum(getattr(one, name) for one in outcome.sent) for name in ("rows", "tombstones"))
        newer = sum(one.left_out for one in outcome.sent)
        lines.append(
            f"{f'relay {relay}' if relay else 'this command'} sent {plural(rows, 'row')} and "
            + plural(dead + outcome.stray_tombstones, "tombstone")
            + (f"; for {plural(newer, 'key')} the stream had already sent a newer state" if newer else "")
        )
    if outcome.after is not None:
        lines.append(headline(outcome.after))
    return lines + _remaining_notes(outcome)


def to_json(target: RepairTarget, outcome: RepairOutcome) -> dict[str, Any]:
    """Return the result for a program."""
    return {
        "verdict": outcome.last.verdict,
        "state": "planned" if outcome.is_dry else "done" if outcome.chosen else "nothing to send",
        "relay": target.relay or None,
        "caveat": outcome.caveat,
        "ends_heal": outcome.ends_heal,
        "source": target.source,
        "cluster": target.cluster,
        "rows": _sum(outcome.chosen, "rows"),
        "tombstones": _sum(outcome.chosen, "tombstones"),
        "raw_tombstones": _sum(outcome.chosen, "raw_tombstones"),
        "stray_tombstones": _sum(outcome.chosen, "stray_tombstones"),
        "messages": outcome.messages,
        "tables": [one.to_json() for one in outcome.tables],
        "untrusted": [one.table for one in outcome.untrusted],
        "not_captured": [one.table for one in outcome.last.findings if one.name == "not_captured"],
        "sent": [dataclasses.asdict(one) for one in outcome.sent],
        # The complete newest comparison, in the form of 'verify --json'.
        "report": _report_json(target, outcome),
        "before": _comparison_json(outcome.before),
        "after": None if outcome.after is None else _comparison_json(outcome.after),
        "notes": outcome.notes,
    }


def _sum(plans: list[TablePlan], name: str) -> int:
    return sum(getattr(plan, name) for plan in plans)


def _report_json(target: RepairTarget, outcome: RepairOutcome) -> dict[str, Any]:
    # Its rows are masked, whether or not the plan's keys are.
    report: dict[str, Any] = {**outcome.last.to_json(), "source": target.source, "masked": True}
    return report


def _comparison_json(report: Any) -> dict[str, Any]:
    return {
        "verdict": report.verdict,
        "classes": report.wrong,
        "expected": report.expected,
        "actual": report.actual,
    }
