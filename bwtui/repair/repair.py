"""A repair from its comparison to the final one, independent of who sends the differences."""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from bwtui.audit.canonical_values import AskRegistry, Schemas
from bwtui.audit.report import AuditSummary
from bwtui.errors import BwtuiError, Interrupted
from bwtui.model.backfill import BackfillStatus
from bwtui.repair.hints import REPAIR_AGAIN
from bwtui.repair.plan import Planner, TablePlan
from bwtui.repair.strays import KeyPartitioner, StrayList, send_strays
from bwtui.settings import RelaySettings
from bwtui.spark.scratch import scratch
from bwtui.verify.database import OnDifferences

#: Compares the tables with their topics; takes the key encodings of tables, if the sender's are known.
Compare = Callable[[OnDifferences | None, Callable[[str], None], Mapping[str, str]], AuditSummary]


def _not_compared(plan: TablePlan, after: AuditSummary) -> str:
    """Return why a comparison no longer covers a table whose keys were compared before, or ""."""
    if plan.table not in after.details.get("tables", ()):
        return "is no longer compared: it was dropped, renamed or removed from the publication"
    if plan.key_columns and plan.table in after.details.get("unkeyed", ()):
        return "no longer has the key by which it was compared"
    return ""


@contextlib.contextmanager
def reporting_sent_rows(outcome: "RepairOutcome") -> Iterator[None]:
    """Add to errors of the final comparison how much was already sent."""
    try:
        yield
    except KeyboardInterrupt as error:
        raise Interrupted(
            f"interrupted during the final comparison; {outcome.so_far}",
            REPAIR_AGAIN,
        ) from error
    except BwtuiError as error:
        error.message = f"{error.message}; {outcome.so_far}"
        error.args = (error.message,)
        raise


class RepairObserver(Protocol):
    """Receives the progress, and confirms the repair."""

    def phase(self, name: str) -> None:
        """Report that a new phase has begun."""

    def count(self, done: int, total: int) -> None:
        """Report how many keys were sent."""

    def confirm(self, outcome: "RepairOutcome") -> None:
        """Ask for confirmation to send, or, if nothing is to be sent, to end a heal.

        Raises RefusedError if it is denied.
        """


@dataclass(slots=True)
class RepairOutcome:
    """The result of a repair."""

    tables: list[TablePlan]
    before: AuditSummary
    #: The tables whose keys are to be sent: all with differences, or for a heal only the trusted ones.
    chosen: list[TablePlan] = field(default_factory=list)
    sent: list[BackfillStatus] = field(default_factory=list)
    #: Number of tombstones that were sent to other partitions than their keys'.
    stray_tombstones: int = 0
    #: The comparison afterwards; None if nothing was sent.
    after: AuditSummary | None = None
    is_dry: bool = False
    is_heal: bool = False
    #: Whether nothing is to be sent, and a confirmation would end a heal that the comparison does not fully
    #: prove.
    ends_heal: bool = False
    #: The relay's name, if a command has to name it.
    relay: str = ""
    notes: list[str] = field(default_factory=list)
    #: A sentence on what can't be guaranteed for the messages sent.
    caveat: str = ""

    @property
    def messages(self) -> int:
        """Number of keys to send."""
        return sum(plan.messages for plan in self.chosen)

    @property
    def last(self) -> AuditSummary:
        """The newest comparison."""
        return self.after or self.before

    def compared(self, after: AuditSummary) -> None:
        """Record the newest comparison, which may lack tables for which something was to be sent."""
        not_compared = [
            f"{plan.table} {why}, so topic {plan.topic} could not be checked"
            for plan in self.chosen
            if (why := _not_compared(plan, after))
        ]
        if not_compared:
            is_clean = after.verdict == "clean"
            verdict = "indeterminate" if is_clean else after.verdict
            after = replace(after, verdict=verdict, notes=[*after.notes, *not_compared])
        # Each comparison reports them again.
        self.notes = [note for note in self.notes if note not in not_compared] + not_compared
        self.after = after

    @property
    def so_far(self) -> str:
        """A text on what was sent so far, and what was not."""
        rows, tombstones = (sum(getattr(one, name) for one in self.sent) for name in ("rows", "tombstones"))
        tombstones += self.stray_tombstones
        return "; ".join([f"{rows:,} rows and {tombstones:,} tombstones had been sent", *self.notes])

    @property
    def untrusted(self) -> list[TablePlan]:
        """Tables whose topics may be wrong although nothing differs."""
        return [plan for plan in self.tables if not plan.is_trusted]

    @property
    def exit_code(self) -> int:
        """0 clean, 1 differences, 3 indeterminate; a heal without a trusted comparison is not clean."""
        code = self.last.exit_code
        return 3 if not code and self.is_heal and self.untrusted else code


@dataclass(slots=True)
class Repair(ABC):
    """One repair; subclasses decide who sends."""

    #: The tables and topics that are compared.
    settings: RelaySettings
    compare: Compare
    ask_registry: AskRegistry
    watch: RepairObserver
    is_dry: bool = False
    show_values: bool = False
    _homes: KeyPartitioner = field(init=False)
    #: The relay's key encodings by table, see `bwtui.repair.relay_repair.spellings`; empty without a relay.
    _spellings: Mapping[str, str] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._homes = KeyPartitioner(self.settings)

    def run(self) -> RepairOutcome:
        """Compare, ask for confirmation, send and compare again. Raises BwtuiError."""
        name = self._begin()
        with scratch("bwtui-repair-") as folder:
            planner = self._planner(folder, name)
            report = self.compare(planner.take, self.watch.phase, self._spellings)
            outcome = RepairOutcome(planner.tables, report, is_dry=self.is_dry, relay=name)
            self._prepare(outcome)
            if not self.is_dry and (outcome.chosen or outcome.ends_heal):
                self.watch.confirm(outcome)
                self._check_again()
            if not self.is_dry and outcome.chosen:
                self.watch.phase("sending the differences")
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
        """The session ID in the headers of messages that this process sends, if any."""
        return None

    @abstractmethod
    def _begin(self) -> str:
        """Prepare for the comparison; return the relay's name if commands have to name it."""

    @abstractmethod
    def _spelling(self, table: str) -> str | None:
        """Return the sender's key encoding of a table, as `Planner` requires it."""

    @abstractmethod
    def _announce(self, lists: Sequence[StrayList]) -> None:
        """Report the records that this process sends to a relay that counts its topics' records."""

    @abstractmethod
    def _prepare(self, outcome: RepairOutcome) -> None:
        """Choose the keys to send. Raises RefusedError if sending would do harm."""

    @abstractmethod
    def _check_again(self) -> None:
        """Check that the premises of the confirmed plan still hold. Raises RefusedError if not."""

    @abstractmethod
    def _send(self, outcome: RepairOutcome, folder: Path) -> None:
        """Send the chosen keys, and compare again."""

    @abstractmethod
    def _end(self, outcome: RepairOutcome) -> None:
        """Report the result to the relay, if it has to know."""
