"""A repair from its comparison to the next one: what differs is handed to the relay that runs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from bwtui.audit.decoding import AskRegistry, Schemas
from bwtui.audit.report import Report
from bwtui.errors import RefusedError
from bwtui.model.backfill import BackfillReason, BackfillStatus
from bwtui.relay.process.control import name_if_several, request, settings_of, tell_audited
from bwtui.repair import sending
from bwtui.repair.plan import Planner, TablePlan
from bwtui.settings import RelaySettings
from bwtui.spark.scratch import scratch
from bwtui.verify.database import OnDifferences

#: Compares the tables with their topics.
Compare = Callable[[OnDifferences | None, Callable[[str], None]], Report]


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
    #: The comparison after it; None where nothing was sent.
    after: Report | None = None
    is_dry: bool = False
    is_heal: bool = False
    #: The relay's name, where a command has to say it.
    relay: str = ""
    notes: list[str] = field(default_factory=list)

    @property
    def messages(self) -> int:
        """How many keys are to be sent."""
        return sum(plan.messages for plan in self.chosen)

    @property
    def last(self) -> Report:
        """The newest comparison."""
        return self.after or self.before

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
class Repair:
    """One repair over a relay that runs."""

    relay: str
    #: What is compared: the settings that it had.
    settings: RelaySettings
    compare: Compare
    ask_registry: AskRegistry
    watch: Watch
    #: Whether all tables of the relay are compared, and whether it is its slot that was lost.
    is_whole: bool = True
    is_heal: bool = False
    is_dry: bool = False
    show_values: bool = False

    def run(self) -> Outcome:
        """Compare, ask, send and compare again. Raises BwtuiError."""
        status = request(self.relay, {"request": "status"})
        name = name_if_several(self.relay)
        self._let_earlier_ones_end()
        with scratch("bwtui-repair-") as folder:
            schemas = Schemas({}, self.ask_registry)
            planner = Planner(folder, spellings(status), schemas, show_values=self.show_values, relay=name)
            report = self.compare(planner.take, self.watch.phase)
            outcome = Outcome(planner.tables, report, is_dry=self.is_dry, is_heal=self.is_heal, relay=name)
            outcome.chosen = [
                plan for plan in planner.tables if plan.messages and (plan.is_trusted or not self.is_heal)
            ]
            if not self.is_dry and (outcome.chosen or self._ends_untrusted(outcome, status)):
                self.watch.confirm(outcome)
                self._refuse_changed()
            if not self.is_dry and outcome.chosen:
                self._send(outcome)
        if not self.is_dry:
            self._tell(outcome, status)
        return outcome

    def _let_earlier_ones_end(self) -> None:
        """Wait for what an earlier repair has asked for, whose keys would differ still."""
        earlier = [one.id for one in sending.tasks(self.relay) if sending.is_open(one)]
        if earlier and not self.is_dry:
            self.watch.phase("waiting for what the relay was asked for before")
            sending.wait(self.relay, earlier, self.watch.count)

    def _ends_untrusted(self, outcome: Outcome, status: Mapping[str, Any]) -> bool:
        """Say whether a heal would end although the comparison proves too little: somebody decides that."""
        return bool(outcome.untrusted) and self._ends_heal(outcome, status)

    def _ends_heal(self, outcome: Outcome, status: Mapping[str, Any]) -> bool:
        return bool(_due(status)) and self.is_whole and not outcome.exit_code

    def _refuse_changed(self) -> None:
        """Raise RefusedError if the relay was started anew with other settings while it was thought over."""
        if settings_of(self.relay) != self.settings:
            raise RefusedError(
                f"relay {self.relay} has other settings now than those with which topics were compared",
                "nothing was sent; repair again, which compares anew",
            )

    def _send(self, outcome: Outcome) -> None:
        reason: BackfillReason = "heal" if self.is_heal else "repair"
        ids = sending.submit(self.relay, outcome.chosen, reason)
        self.watch.phase("sending what differs")
        outcome.sent = sending.wait(self.relay, ids, self.watch.count)
        outcome.notes += [
            f"{one.table}: {one.error or 'cancelled'}" + (f"; {one.hint}" if one.hint else "")
            for one in outcome.sent
            if one.is_over and one.state != "done"
        ]
        outcome.after = self.compare(None, self.watch.phase)

    def _tell(self, outcome: Outcome, status: Mapping[str, Any]) -> None:
        """Tell the relay how it ended, and that its slot's loss is made good if that was due and is true."""
        tell_audited(self.relay, outcome.last.verdict)
        if self._ends_heal(outcome, status):
            request(self.relay, {"request": "healed", "lsn": _due(status)})


def _due(status: Mapping[str, Any]) -> str:
    """Return where the slot was made anew whose heal is due; "" where none is."""
    return str((status.get("heal") or {}).get("lsn") or "")


def spellings(status: Mapping[str, Any]) -> dict[str, str]:
    """Return how the relay writes the keys of tables, as `decode_key` calls it, as far as it has sent any.

    Before it has sent a row of a table in this run, a relay that writes Avro has no ids of it either.
    """
    found: dict[str, str] = {}
    for name, table in status.get("tables", {}).items():
        key, value = table.get("key_schema_id"), table.get("value_schema_id")
        if key is not None:
            found[name] = str(key)
        elif value is None and table.get("messages"):
            found[name] = "json"
    return found
