"""A repair from its comparison to the next one, whoever sends what differs."""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from bwtui.audit.decoding import AskRegistry, Schemas
from bwtui.audit.report import Report
from bwtui.errors import BwtuiError, Interrupted
from bwtui.model.backfill import BackfillStatus
from bwtui.repair.plan import Planner, TablePlan
from bwtui.repair.strays import Homes, StrayList, send_strays
from bwtui.settings import RelaySettings
from bwtui.spark.scratch import scratch
from bwtui.verify.database import OnDifferences

#: Compares the tables with their topics.
Compare = Callable[[OnDifferences | None, Callable[[str], None]], Report]


def _not_compared(plan: TablePlan, after: Report) -> str:
    """Return why a comparison says nothing of a table whose keys were compared before, or ""."""
    if plan.table not in after.details.get("tables", ()):
        return "was compared before and is not now: it was dropped, renamed or taken out of the publication"
    if plan.key_columns and plan.table in after.details.get("unkeyed", ()):
        return "was compared by its key before, and has none now"
    return ""


@contextlib.contextmanager
def saying_what_was_sent(outcome: "Outcome") -> Iterator[None]:
    """Have what ends the comparison after the sending say what was sent: the comparison is not all."""
    try:
        yield
    except KeyboardInterrupt as error:
        raise Interrupted(
            f"interrupted while topics were compared once more; {outcome.so_far}",
            "repair again, to see that nothing is left",
        ) from error
    except BwtuiError as error:
        error.message = f"{error.message}; {outcome.so_far}"
        error.args = (error.message,)
        raise


class Watch(Protocol):
    """Is told what is under way, and decides."""

    def phase(self, name: str) -> None:
        """Something else is being done now."""

    def count(self, done: int, total: int) -> None:
        """So many keys are sent."""

    def confirm(self, outcome: "Outcome") -> None:
        """Let somebody decide whether it is to be sent, or with nothing to send whether a heal is to end.

        Raises RefusedError if not.
        """


@dataclass(slots=True)
class Outcome:
    """What a repair found and did."""

    tables: list[TablePlan]
    before: Report
    #: The tables whose keys are to be sent: all with differences, or those of which that is all.
    chosen: list[TablePlan] = field(default_factory=list)
    sent: list[BackfillStatus] = field(default_factory=list)
    #: Tombstones that were sent into other partitions than their keys'.
    stray_tombstones: int = 0
    #: The comparison after it; None where nothing was sent.
    after: Report | None = None
    is_dry: bool = False
    is_heal: bool = False
    #: Whether nothing is to be sent, and a yes would end a heal of which the comparison proves too little.
    ends_heal: bool = False
    #: The relay's name, where a command has to say it.
    relay: str = ""
    notes: list[str] = field(default_factory=list)
    #: What can't be promised of what is sent, in one sentence.
    caveat: str = ""

    @property
    def messages(self) -> int:
        """How many keys are to be sent."""
        return sum(plan.messages for plan in self.chosen)

    @property
    def last(self) -> Report:
        """The newest comparison."""
        return self.after or self.before

    def compared(self, after: Report) -> None:
        """Take the newest comparison, which may not be of all tables of which something was to be sent."""
        gone = [
            f"{plan.table} {why}, so nothing says whether topic {plan.topic} is right"
            for plan in self.chosen
            if (why := _not_compared(plan, after))
        ]
        if gone:
            is_clean = after.verdict == "clean"
            verdict = "indeterminate" if is_clean else after.verdict
            after = replace(after, verdict=verdict, notes=[*after.notes, *gone])
        # Each comparison says it anew.
        self.notes = [note for note in self.notes if note not in gone] + gone
        self.after = after

    @property
    def so_far(self) -> str:
        """What was sent, in words, and what was not."""
        rows, tombstones = (sum(getattr(one, name) for one in self.sent) for name in ("rows", "tombstones"))
        tombstones += self.stray_tombstones
        return "; ".join([f"{rows:,} rows and {tombstones:,} tombstones were sent before that", *self.notes])

    @property
    def untrusted(self) -> list[TablePlan]:
        """Tables whose topics may be wrong although nothing differs."""
        return [plan for plan in self.tables if not plan.is_trusted]

    @property
    def exit_code(self) -> int:
        """0 clean, 1 differences, 3 indeterminate; a heal is not clean where the comparison isn't trusted."""
        code = self.last.exit_code
        return 3 if not code and self.is_heal and self.untrusted else code


@dataclass(slots=True)
class Repair(ABC):
    """One repair; who sends is for those that derive from it."""

    #: What is compared.
    settings: RelaySettings
    compare: Compare
    ask_registry: AskRegistry
    watch: Watch
    is_dry: bool = False
    show_values: bool = False
    _homes: Homes = field(init=False)

    def __post_init__(self) -> None:
        self._homes = Homes(self.settings)

    def run(self) -> Outcome:
        """Compare, ask, send and compare again. Raises BwtuiError."""
        name = self._begin()
        with scratch("bwtui-repair-") as folder:
            planner = self._planner(folder, name)
            report = self.compare(planner.take, self.watch.phase)
            outcome = Outcome(planner.tables, report, is_dry=self.is_dry, relay=name)
            self._prepare(outcome)
            if not self.is_dry and (outcome.chosen or outcome.ends_heal):
                self.watch.confirm(outcome)
                self._check_again()
            if not self.is_dry and outcome.chosen:
                self.watch.phase("sending what differs")
                lists = [plan.strays for plan in outcome.chosen if plan.strays is not None]
                self._announce(lists)
                outcome.stray_tombstones = send_strays(
                    self.settings, self._homes, lists, self._session, self.watch.count
                )
                self._send(outcome, folder)
        if not self.is_dry:
            self._end(outcome)
        return outcome

    def _planner(self, folder: Path, relay: str = "") -> Planner:
        schemas = Schemas({}, self.ask_registry)
        return Planner(
            folder, self._spelling, schemas, self._homes, show_values=self.show_values, relay=relay
        )

    @property
    def _session(self) -> bytes | None:
        """What the headers of messages that this process sends bear, if anything."""
        return None

    @abstractmethod
    def _begin(self) -> str:
        """Get ready, before anything is compared; return the relay's name where commands have to say it."""

    @abstractmethod
    def _spelling(self, table: str) -> str | None:
        """Return how keys of a table are written by who sends, as `Planner` asks for it."""

    @abstractmethod
    def _announce(self, lists: Sequence[StrayList]) -> None:
        """Tell a relay that counts the records of its topics which of them this process sends."""

    @abstractmethod
    def _prepare(self, outcome: Outcome) -> None:
        """Choose what is to be sent. Raises RefusedError where that would do harm."""

    @abstractmethod
    def _check_again(self) -> None:
        """Raise RefusedError if what was thought over is not so any more."""

    @abstractmethod
    def _send(self, outcome: Outcome, folder: Path) -> None:
        """Send it, and compare again."""

    @abstractmethod
    def _end(self, outcome: Outcome) -> None:
        """Tell whoever has to know how it ended."""
