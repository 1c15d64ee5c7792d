"""Lists of keys handed to a relay that runs, which sends their rows as they are then; and waiting for it."""

import time
from collections.abc import Callable, Iterable, Sequence

from bwtui.errors import ConnectionFailed, Interrupted, RefusedError
from bwtui.model.backfill import BackfillReason, BackfillRequest, BackfillStatus
from bwtui.model.backfill_told import snapshot_command
from bwtui.relay.process.control import DoesNotAnswer, name_if_several, request, send_again
from bwtui.repair.plan import TablePlan

#: Between two looks.
_PAUSE_SECONDS = 0.25
#: For so long a relay may be silent.
_SILENCE_SECONDS = 60.0
#: What only a repair of keys asks for, by a person or by the relay itself.
_OURS: frozenset[BackfillReason] = frozenset({"repair", "heal"})

#: Called with how many keys are done, and of how many.
OnCount = Callable[[int, int], None]


def submit(relay: str, plans: Iterable[TablePlan], reason: BackfillReason) -> list[str]:
    """Hand the relay what is to be sent; return the ids of its tasks.

    Raises RefusedError, ConnectionFailed and Interrupted, which say whether lists before that one were taken.
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
        # The one under way may have been taken, too: its answer is not there.
        raise Interrupted(
            f"interrupted while the relay was asked for {plan.table}{_taken(ids)}",
            f"'bwtui status {relay}' lists what it has; '{_command(relay)} --cancel ID' ends one",
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
    return f"; what was asked for before that is the relay's, and is sent: {', '.join(ids)}" if ids else ""


def tasks(relay: str) -> list[BackfillStatus]:
    """Return how all tasks of the relay are. Raises ConnectionFailed."""
    status = request(relay, {"request": "status"})
    return [BackfillStatus.from_json(one) for one in status.get("backfills", ())]


def is_open(task: BackfillStatus) -> bool:
    """Say whether a task is of a repair, and not over."""
    return task.reason in _OURS and not task.is_over


def wait(relay: str, ids: Sequence[str], on_count: OnCount) -> list[BackfillStatus]:
    """Wait until these tasks are over, and return how each was when it was last seen.

    Of those that are over the relay remembers the newest only. Raises ConnectionFailed when the relay ends
    meanwhile, RefusedError for one that was paused, Interrupted.
    """
    seen: dict[str, BackfillStatus] = {}
    heard = time.monotonic()
    try:
        while True:
            try:
                now = [one for one in tasks(relay) if one.id in ids]
            except DoesNotAnswer:
                # It was suspended, or its machine is busy: what it was asked for it has.
                if time.monotonic() > heard + _SILENCE_SECONDS:
                    raise
                continue
            heard = time.monotonic()
            seen |= {one.id: one for one in now}
            # What is not over is never forgotten.
            running = [one for one in now if not one.is_over]
            total = sum(one.estimate or 0 for one in seen.values())
            on_count(sum(one.rows + one.tombstones + one.left_out for one in seen.values()), total)
            if not running:
                return list(seen.values())
            if all(one.state == "paused" for one in running):
                raise RefusedError(
                    f"{running[0].id} is paused: the relay sends no more of {running[0].table}",
                    f"'{_command(relay)} --resume {running[0].id}' lets it go on; then repair again",
                )
            time.sleep(_PAUSE_SECONDS)
    except ConnectionFailed as error:
        raise ConnectionFailed(
            f"{error.message}, and had not sent all that was asked of it",
            "it goes on with that when it runs again; repair again then, to see that nothing is left",
        ) from error
    except KeyboardInterrupt as error:
        raise Interrupted(
            "interrupted, and the relay goes on with what was asked of it",
            f"'bwtui status {relay}' says how far it is; '{_command(relay)} --cancel {ids[0]}' ends it",
        ) from error


def _command(relay: str) -> str:
    return snapshot_command([], relay=name_if_several(relay))
