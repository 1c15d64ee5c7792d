"""Re-send the rows of dead letters through their relay, in their current state.

The relay never sends the row stored in a dead letter: it is old, and could end up after a newer row of its
key. Instead, the relay reads each key's current row and backfills it at its right place in the stream (ADR
15). A key without a row becomes a tombstone.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from bwtui.errors import ConnectionFailed, RefusedError
from bwtui.model.backfill import BackfillRequest, BackfillStatus
from bwtui.relay.backfill.chunk_snapshot import offline_store
from bwtui.relay.dead_letters.letters import DeadLetterAction, DeadLetterActionLog
from bwtui.relay.history.backfill_store import FOLDER, write_keys
from bwtui.relay.process.control import RelaySilent, RequestRefused, request, send_again
from bwtui.sink.dead_letters import DeadLetter, DeadLetterFile, DeadLetterWriter, keys_of
from bwtui.spark.scratch import scratch
from bwtui.state_folder import state_folder

_SNAPSHOT = "'bwtui snapshot {table} --where SQL{unkeyed}' sends the rows that match an expression"


@dataclass(frozen=True, slots=True)
class TableRetry:
    """Dead letters of one table, and the keys whose rows are to be sent for them, each once."""

    table: str
    key_columns: tuple[str, ...]
    letters: tuple[DeadLetter, ...]
    keys: tuple[tuple[str, ...], ...]


@dataclass(slots=True)
class RetryPlan:
    """The requests for the relay, and the dead letters that can't be retried, by reason."""

    requests: list[TableRetry] = field(default_factory=list)
    refused: dict[str, list[DeadLetter]] = field(default_factory=dict)


def plan(letters: Iterable[DeadLetter]) -> RetryPlan:
    """Return the plan that re-sends the rows of ``letters``."""
    result = RetryPlan()
    groups: dict[str, dict[tuple[str, ...], list[DeadLetter]]] = {}
    for letter in letters:
        if why := refusal(letter):
            result.refused.setdefault(why, []).append(letter)
        else:
            columns = tuple(name for name, _ in letter.key)
            groups.setdefault(letter.table, {}).setdefault(columns, []).append(letter)
    for table, by_key in groups.items():
        newest = max(by_key, key=lambda columns: max(letter.time for letter in by_key[columns]))
        for columns, of_key in by_key.items():
            if columns == newest:
                result.requests.append(_table_retry(table, columns, of_key))
                continue
            why = (
                f"the key of {table} was ({', '.join(columns)}), but newer dead letters have a "
                "different key; "
            )
            result.refused[why + _SNAPSHOT.format(table=table, unkeyed="")] = of_key
    return result


def _table_retry(table: str, columns: tuple[str, ...], letters: Sequence[DeadLetter]) -> TableRetry:
    keys = dict.fromkeys(
        tuple(value or "" for _, value in key) for letter in letters for key in keys_of(letter)
    )
    return TableRetry(table, columns, tuple(letters), tuple(keys))


def refusal(letter: DeadLetter) -> str:
    """Return why the row of ``letter`` can't be requested by its key, and a way out; or an empty string."""
    snapshot = _SNAPSHOT.format(table=letter.table, unkeyed="")
    compare = "'bwtui repair' compares the table with its topic and sends the differences"
    if letter.operation == "truncate":
        return (
            "a TRUNCATE has no row to send, and the topic keeps its rows; 'bwtui dead-letters drop' "
            "sets it aside"
        )
    if letter.is_encoded:
        return f"it holds only the encoded message, whose key can't be read; {compare}"
    if not letter.key:
        unkeyed = _SNAPSHOT.format(table=letter.table, unkeyed=" -u")
        return (
            f"it has no key, because its table has none or the dead letter lacks its row; {unkeyed}, "
            f"or {compare}"
        )
    texts = [value for key in keys_of(letter) for _, value in key]
    if any(text is None for text in texts):
        return f"its key contains NULL, which identifies no row; {snapshot}"
    if any("\0" in text or not _is_text(text) for text in texts if text is not None):
        return f"its key contains bytes that are not valid UTF-8; {snapshot}"
    return ""


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def submit(relay: str, retry: TableRetry) -> tuple[BackfillStatus, bool]:
    """Request the rows, and log that for the dead letters; return the task, and whether the relay runs.

    A stopped relay does the work after its next start. The request is durable before the log entry: a crash
    in between leaves dead letters open whose rows are sent. Raises RefusedError, ConnectionFailed and
    StateFailed.
    """
    place = DeadLetterFile(DeadLetterWriter(state_folder(relay)).path, lambda _: ()).size()
    with scratch("bwtui-letters-") as folder:
        path = folder / "letters.keys"
        write_keys(path, retry.keys)
        backfill = BackfillRequest(retry.table, keys=str(path), reason="retry", key_columns=retry.key_columns)
        try:
            id, is_running = send_again(relay, backfill), True
            tasks: Sequence[BackfillStatus] = tasks_of_running(relay)
        except (RelaySilent, RequestRefused):
            raise
        except ConnectionFailed as error:
            with offline_store(relay, error) as store:
                id, is_running = store.submit(backfill), False
                tasks = store.statuses()
    task = next((one for one in tasks if one.id == id), BackfillStatus(id, retry.table, "retry"))
    ids = tuple(letter.id for letter in retry.letters)
    note = DeadLetterAction("retry", ids, time=_moment(task), task=id, requested=task.requested, place=place)
    DeadLetterActionLog(relay).add([note])
    return task, is_running


def _moment(task: BackfillStatus) -> float:
    """Return the time of the request: the dead letters of the task are at least as recent."""
    return task.requested or DeadLetterAction("retry", ()).time


def tasks_of_running(relay: str) -> list[BackfillStatus]:
    """Return the statuses of all tasks of a running relay. Raises ConnectionFailed."""
    status = request(relay, {"request": "status"})
    return [BackfillStatus.from_json(one) for one in status.get("backfills", ())]


def tasks_of(relay: str) -> dict[str, BackfillStatus] | None:
    """Return the statuses of a relay's tasks by id, whether it runs or not; None if it gives no answer."""
    try:
        tasks = tasks_of_running(relay)
    except (RelaySilent, RequestRefused):
        return None
    except ConnectionFailed as error:
        if not any((state_folder(relay) / FOLDER).glob("*.json")):
            return {}
        try:
            with offline_store(relay, error) as store:
                tasks = list(store.statuses())
        except RefusedError:
            # The relay is starting.
            return None
    return {task.id: task for task in tasks}
