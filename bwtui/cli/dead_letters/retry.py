"""``bwtui dead-letters retry``: have the relay send the present rows of dead letters."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from bwtui.cli.inputs.relay_options import dry_run_option, json_option, wait_option
from bwtui.cli.inputs.selected_letters import check_choice, choice_options, opened
from bwtui.console import say, say_json
from bwtui.errors import BwtuiError, ConnectionFailed, Interrupted, RefusedError
from bwtui.model.number_format import plural

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bwtui.cli.inputs.selected_letters import SelectedLetters
    from bwtui.model.backfill import BackfillStatus
    from bwtui.relay.dead_letters.letters import DeadLetterState
    from bwtui.relay.dead_letters.retry import RetryPlan, TableRetry

_EPILOG = """\b
Examples:
  bwtui dead-letters retry 3f9a01c2b7d4
  bwtui dead-letters retry --table orders     all open dead letters of a table
  bwtui dead-letters retry --all --dry-run
  bwtui dead-letters retry --all --no-wait

\b
Exit codes: 0 all are sent · 1 some were rejected again, or can't be requested by key ·
2 usage, refused, or the relay could not send them · 4 no relay is running: the request
waits for its next start · 130 interrupted (the relay continues)
"""


@click.command(epilog=_EPILOG)
@choice_options
@wait_option
@dry_run_option("Only show what would be requested from the relay.")
@json_option("Print the result as a JSON object.")
def retry(
    ids: tuple[str, ...],
    takes_all: bool,
    wait: bool,
    dry_run: bool,
    as_json: bool,
    show_values: bool,
    **options: Any,
) -> None:
    """Have the relay send the current rows of dead letters, in the order of its stream.

    Fix the reasons of the dead letters first. The relay sends a tombstone if a row no longer exists, and
    skips a row if the stream has already sent a newer state. A row that is rejected again gets a new dead
    letter. A relay that is not running sends the rows after its next start.
    """
    from bwtui.relay.dead_letters.retry import plan

    check_choice(ids, options, all=takes_all)
    with opened(options, needs_relay=True) as source:
        letters = source.of_ids(ids) if ids else source.open()
        retry_plan = plan(letters)
        if letters and not retry_plan.requests:
            why = next(iter(retry_plan.refused))
            raise RefusedError(f"{plural(len(letters), 'letter')} can't be sent by key", why)
        outcome = _RetryResults(source.relay, retry_plan)
        if not dry_run:
            outcome.ask()
            if wait and outcome.tasks:
                outcome.wait(quiet=as_json)
                with opened(options, needs_relay=True) as after:
                    outcome.take(after)
    if as_json:
        say_json(outcome.to_json())
    else:
        say(*outcome.lines(dry_run=dry_run))
    outcome.end()


@dataclass(slots=True)
class _RetryResults:
    """The requests to the relay, and their results."""

    relay: str
    plan: "RetryPlan"
    requested: "list[tuple[TableRetry, BackfillStatus]]" = field(default_factory=list)
    is_running: bool = True
    #: The requests after they have ended.
    ended: "list[BackfillStatus]" = field(default_factory=list)
    errors: list[BwtuiError] = field(default_factory=list)
    #: The state of the letters afterwards.
    after: "dict[str, DeadLetterState]" = field(default_factory=dict)

    @property
    def tasks(self) -> list[str]:
        return [task.id for _, task in self.requested] if self.is_running else []

    def ask(self) -> None:
        from bwtui.relay.dead_letters.retry import submit

        for request in self.plan.requests:
            try:
                task, self.is_running = submit(self.relay, request)
                self.requested.append((request, task))
            except BwtuiError as error:
                # Each table separately: the others' rows are sent nevertheless.
                self.errors.append(error)

    def wait(self, *, quiet: bool) -> None:
        from bwtui.cli.output.table import ended_badly, wait_for
        from bwtui.relay.dead_letters.retry import tasks_of_running
        from bwtui.relay.process.control import name_if_several

        name = name_if_several(self.relay)
        try:
            ended = wait_for(self.tasks, lambda: tasks_of_running(self.relay), relay=name, quiet=quiet)
        except (ConnectionFailed, Interrupted) as error:
            self.errors.append(error)
            return
        self.ended = list(ended)
        for status in ended:
            if (bad := ended_badly([status], [status.id])) is not None:
                self.errors.append(bad)

    def take(self, after: "SelectedLetters") -> None:
        """Record the present state of the letters."""
        self.after = {one.id: after.states[one.id] for one in self._letters() if one.id in after.states}

    def _letters(self) -> "list[Any]":
        return [letter for request, _ in self.requested for letter in request.letters]

    def _in(self, *states: str) -> list[str]:
        return [id for id, state in self.after.items() if state.state in states]

    def _ended_counts(self) -> str:
        counts = (
            (sum(task.rows for task in self.ended), "row", "as of then"),
            (sum(task.tombstones for task in self.ended), "tombstone", "for keys without a row"),
            (sum(task.left_out for task in self.ended), "key", "of which the stream has sent a newer state"),
        )
        parts = [f"{plural(number, noun)} {detail}" for number, noun, detail in counts if number]
        return f": {', '.join(parts)}" if parts else ""

    def lines(self, *, dry_run: bool) -> "Sequence[str]":
        """Return the result as text."""
        lines: list[str] = []
        tables = [(request, None) for request in self.plan.requests] if dry_run else self.requested
        for request, task in tables:
            keys = plural(len(request.keys), "key")
            of = f"{keys} of {request.table}, for {plural(len(request.letters), 'letter')}"
            lines.append(f"{of}: would be requested" if task is None else f"{of}: requested as {task.id}")
        if sent := self._in("sent"):
            lines.append(f"{plural(len(sent), 'letter')} sent{self._ended_counts()}")
        for id in self._in("refused"):
            lines.append(f"dead letter {id} was rejected again: {self.after[id].detail}")
        for id in self._in("open"):
            lines.append(f"dead letter {id} stays open: {self.after[id].detail}")
        for why, letters in self.plan.refused.items():
            lines.append(f"{plural(len(letters), 'letter')} not requested: {why}")
        return lines or ["no dead letter is open, so nothing was requested"]

    def to_json(self) -> dict[str, Any]:
        return {
            "relay": self.relay,
            "asked": [
                {
                    "table": request.table,
                    "task": task.id,
                    "keys": len(request.keys),
                    "letters": [letter.id for letter in request.letters],
                }
                for request, task in self.requested
            ],
            "sent": self._in("sent"),
            "refused_again": {id: list(self.after[id].notes[-1].new) for id in self._in("refused")},
            "open": self._in("open"),
            "not_asked": [
                {"reason": why, "letters": [letter.id for letter in letters]}
                for why, letters in self.plan.refused.items()
            ],
            "errors": [error.message for error in self.errors],
        }

    def end(self) -> None:
        """Raise the error or exit code of an unsuccessful retry."""
        if self.errors:
            for error in self.errors[1:]:
                say(f"bwtui: {error.message}", err=True)
            raise self.errors[0]
        if self.requested and not self.is_running:
            ids = ", ".join(task.id for _, task in self.requested)
            raise ConnectionFailed(
                f"relay {self.relay} is not running, so request {ids} waits for its next start",
                "start it with 'bwtui connect'; 'bwtui dead-letters list' then shows the result",
            )
        if self._in("refused") or self.plan.refused:
            raise click.exceptions.Exit(1)
