"""A repair through a running relay, which sends the rows of the differing keys in its stream."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bwtui.errors import RefusedError
from bwtui.model.backfill import BackfillReason
from bwtui.relay.process.control import (
    announce_foreign_records,
    begin_audit,
    name_if_several,
    report_audit,
    request,
    settings_of,
)
from bwtui.repair import submission
from bwtui.repair.hints import REPAIR_AGAIN
from bwtui.repair.repair import Repair, RepairOutcome, reporting_sent_rows
from bwtui.repair.strays import StrayList


@dataclass(slots=True)
class RelayRepair(Repair):
    """One repair through a running relay, with the settings that it had at the start."""

    relay: str = field(kw_only=True)
    #: Whether all tables of the relay are compared, and whether the repair is for its invalidated slot.
    is_whole: bool = True
    is_heal: bool = False
    _status: Mapping[str, Any] = field(init=False, default_factory=dict)
    #: The start of the newest comparison, by the relay's count.
    _began: str = field(init=False, default="")

    def _begin(self) -> str:
        # The rows of an earlier repair may be the first ones whose key encoding the relay reports.
        self._let_earlier_ones_end()
        self._status = self._read_status()
        self._began = begin_audit(self.relay)
        return name_if_several(self.relay)

    def _read_status(self) -> dict[str, Any]:
        status: dict[str, Any] = request(self.relay, {"request": "status"})
        self._spellings = spellings(status)
        return status

    def _let_earlier_ones_end(self) -> None:
        """Wait for the tasks of an earlier repair, whose keys would still differ."""
        earlier = [one.id for one in submission.tasks(self.relay) if submission.is_open(one)]
        if earlier and not self.is_dry:
            self.watch.phase("waiting for earlier requests to the relay")
            submission.wait(self.relay, earlier, self.watch.count)

    def _spelling(self, table: str) -> str | None:
        return self._spellings.get(table)

    def _prepare(self, outcome: RepairOutcome) -> None:
        outcome.is_heal = self.is_heal
        outcome.chosen = [
            plan for plan in outcome.tables if plan.messages and (plan.is_trusted or not self.is_heal)
        ]
        # The user has to decide that.
        outcome.ends_heal = not outcome.chosen and bool(outcome.untrusted) and self._ends_heal(outcome)

    def _ends_heal(self, outcome: RepairOutcome) -> bool:
        return bool(self._due) and self.is_whole and not outcome.exit_code

    @property
    def _due(self) -> str:
        """The LSN at which a slot was recreated whose heal is due; "" if none is."""
        return str((self._status.get("heal") or {}).get("lsn") or "")

    def _check_again(self) -> None:
        """Check that the relay was not restarted with different settings meanwhile. Raises RefusedError."""
        # The settings of a relay that is reconnecting name all of its hosts.
        if replace(settings_of(self.relay), postgres=self.settings.postgres) != self.settings:
            raise RefusedError(
                f"relay {self.relay} was restarted with different settings since the comparison",
                f"nothing was sent; {REPAIR_AGAIN}",
            )

    def _announce(self, lists: Sequence[StrayList]) -> None:
        for one in lists:
            if one.count:
                announce_foreign_records(self.relay, one.topic, one.count)

    def _send(self, outcome: RepairOutcome, folder: Path) -> None:
        reason: BackfillReason = "heal" if self.is_heal else "repair"
        ids = submission.submit(self.relay, [plan for plan in outcome.chosen if plan.keys], reason)
        outcome.sent = submission.wait(self.relay, ids, self.watch.count)
        outcome.notes += [
            f"{one.table}: {one.error or 'cancelled'}" + (f"; {one.hint}" if one.hint else "")
            for one in outcome.sent
            if one.is_over and one.state != "done"
        ]
        with reporting_sent_rows(outcome):
            self._began = begin_audit(self.relay)
            self._read_status()
            outcome.compared(self.compare(None, self.watch.phase, self._spellings))

    def _end(self, outcome: RepairOutcome) -> None:
        """Report the result to the relay, and that the heal of its slot is complete if one was due."""
        report_audit(self.relay, outcome.last.verdict, outcome.last.details, self._began)
        if self._ends_heal(outcome):
            request(self.relay, {"request": "healed", "lsn": self._due})


def spellings(status: Mapping[str, Any]) -> dict[str, str]:
    """Return the relay's key encoding by table, in the terms of `decode_key`, if it has sent any keys.

    Until it has sent a row of a table in this run, even a relay that writes Avro has no schema IDs for it.
    """
    encodings: dict[str, str] = {}
    for name, table in status.get("tables", {}).items():
        key, value = table.get("key_schema_id"), table.get("value_schema_id")
        if key is not None:
            encodings[name] = str(key)
        elif value is None and table.get("messages"):
            encodings[name] = "json"
    return encodings
