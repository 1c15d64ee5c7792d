"""Submit lists of keys to a running relay, which sends their present rows, and wait for it."""

import time
from collections.abc import Callable, Iterable, Sequence

from bwtui.errors import ConnectionFailed, Interrupted, RefusedError
from bwtui.model.backfill import BackfillReason, BackfillRequest, BackfillStatus
from bwtui.model.backfill_texts import snapshot_command
from bwtui.relay.process.control import RelayUnresponsive, name_if_several, request, send_again
from bwtui.repair.hints import REPAIR_AGAIN
from bwtui.repair.plan import TablePlan

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
