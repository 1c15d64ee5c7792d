"""A repair through a running relay, which sends the rows of the differing keys in its stream."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bwtui.errors import ConnectionFailed, Interrupted, RefusedError
from bwtui.model.backfill import BackfillReason, BackfillRequest, BackfillStatus
from bwtui.model.backfill_texts import snapshot_command
from bwtui.relay.process.control import (
    RelayUnresponsive,
    announce_foreign_records,
    begin_audit,
    name_if_several,
    report_audit,
    request,
    send_again,
    settings_of,
)
from bwtui.repair.hints import REPAIR_AGAIN
from bwtui.repair.plan import TablePlan
from bwtui.repair.repair import Repair, RepairOutcome, reporting_sent_rows
from bwtui.repair.strays import StrayList

# Requests to the relay to send keys, and their end.

#: Pause between two polls (seconds).
_PAUSE_SECONDS = 0.25
#: Maximum time without an answer from the relay (seconds).
_SILENCE_SECONDS = 60.0
#: The reasons of backfills that only a repair of keys requests, by a user or by the relay itself.
_OURS: frozenset[BackfillReason] = frozenset({"repair", "heal"})

#: Called with the number of keys that are done, and the total.
OnCount = Callable[[int, int], None]


def submit(relay: str, plans: Iterable[TablePlan], reason: BackfillReason) -> list[str]:
    """Submit the plans to the relay; return the IDs of its tasks.

    Raises RefusedError, ConnectionFailed and Interrupted, which say whether earlier lists were accepted.
    """
    ids: list[str] = []
    try:
        for plan in plans:
            ids.append(send_again(relay, _request(plan, reason)))
    except RefusedError as error:
        raise RefusedError(f"{error.message}{_taken(ids)}", error.hint) from error
    except ConnectionFailed as error:
        raise ConnectionFailed(f"{error.message}{_taken(ids)}", error.hint) from error
    except KeyboardInterrupt as error:
        # The request in progress may have been accepted, too: its response has not arrived.
        raise Interrupted(
            f"interrupted while the repair of {plan.table} was requested from the relay{_taken(ids)}",
            f"'bwtui status {relay}' lists the relay's requests; '{_command(relay)} --cancel ID' cancels one",
        ) from error
    return ids


def _request(plan: TablePlan, reason: BackfillReason) -> BackfillRequest:
    return BackfillRequest(
        plan.table,
        keys=str(plan.keys),
        reason=reason,
        topic=plan.topic,
        spelling=plan.spelling,
        key_columns=plan.key_columns,
    )


def _taken(ids: Sequence[str]) -> str:
    return (
        (f"; the relay has accepted the earlier requests and sends their rows: {', '.join(ids)}")
        if ids
        else ""
    )


def tasks(relay: str) -> list[BackfillStatus]:
    """Return the state of all tasks of the relay. Raises ConnectionFailed."""
    status = request(relay, {"request": "status"})
    return [BackfillStatus.from_json(one) for one in status.get("backfills", ())]


def is_open(task: BackfillStatus) -> bool:
    """Return whether a task belongs to a repair, and is not over."""
    return task.reason in _OURS and not task.is_over


def wait(relay: str, ids: Sequence[str], on_count: OnCount) -> list[BackfillStatus]:
    """Wait until these tasks are over, and return the last known state of each.

    The relay remembers only the newest of its finished tasks. Raises ConnectionFailed if the relay ends
    meanwhile, RefusedError for a paused task, Interrupted.
    """
    states: dict[str, BackfillStatus] = {}
    answered_at = time.monotonic()
    try:
        while True:
            try:
                now = [one for one in tasks(relay) if one.id in ids]
            except RelayUnresponsive:
                # The relay was suspended, or its machine is busy: it still has the tasks.
                if time.monotonic() > answered_at + _SILENCE_SECONDS:
                    raise
                continue
            answered_at = time.monotonic()
            states |= {one.id: one for one in now}
            # Unfinished tasks are never dropped.
            running = [one for one in now if not one.is_over]
            total = sum(one.estimate or 0 for one in states.values())
            on_count(sum(one.rows + one.tombstones + one.left_out for one in states.values()), total)
            if not running:
                return list(states.values())
            if all(one.state == "paused" for one in running):
                raise RefusedError(
                    f"{running[0].id} is paused, so the relay sends no more rows of {running[0].table}",
                    f"resume it with '{_command(relay)} --resume {running[0].id}', then run "
                    "'bwtui repair' again",
                )
            time.sleep(_PAUSE_SECONDS)
    except ConnectionFailed as error:
        raise ConnectionFailed(
            f"{error.message}, before it had sent all requested rows",
            f"restart the relay, which continues with them; then {REPAIR_AGAIN}",
        ) from error
    except KeyboardInterrupt as error:
        raise Interrupted(
            "interrupted; the relay continues to send the requested rows",
            f"'bwtui status {relay}' shows its progress; '{_command(relay)} --cancel {ids[0]}' cancels it",
        ) from error


def _command(relay: str) -> str:
    return snapshot_command([], relay=name_if_several(relay))


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
        earlier = [one.id for one in tasks(self.relay) if is_open(one)]
        if earlier and not self.is_dry:
            self.watch.phase("waiting for earlier requests to the relay")
            wait(self.relay, earlier, self.watch.count)

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
        ids = submit(self.relay, [plan for plan in outcome.chosen if plan.keys], reason)
        outcome.sent = wait(self.relay, ids, self.watch.count)
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
