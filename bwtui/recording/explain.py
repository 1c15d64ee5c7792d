"""Explain a key: every change of one row, from the first to the last, over the whole recording.

The data kept of a change has a small, bounded size, however large the rows are; to show one in detail, read
it again by its position. `_matches` is the place to plug in an index that finds a key's changes directly.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from bwtui.pgoutput.messages import UNCHANGED, Field
from bwtui.recording.as_of import body_of
from bwtui.recording.change import Change, DeliveryState, Operation, SentMessage, old_key, old_row
from bwtui.recording.view import OnProgress, RecordingView

#: Maximum number of changes kept of one key: the last ones.
KEPT = 5_000
#: Changes between two calls of the progress function.
STEP = 2_000
_NAMES_LENGTH = 300


@dataclass(frozen=True, slots=True)
class RowKey:
    """One row of a table, identified by its key columns."""

    table: str
    columns: tuple[str, ...]
    values: tuple[Field, ...]

    def __str__(self) -> str:
        pairs = zip(self.columns, self.values, strict=True)
        shown = ((n, v.decode("utf-8", "replace") if isinstance(v, bytes) else "NULL") for n, v in pairs)
        return ", ".join(f"{name}={value}" for name, value in shown)


@dataclass(frozen=True, slots=True)
class HistoryStep:
    """One change of a key's history."""

    position: int
    #: Position of the row's previous change, which has the old values if PostgreSQL sent none.
    previous: int | None
    operation: Operation
    commit_time: int
    lsn: int
    ordinal: int
    xid: int
    topic: str
    partition: int | None
    offset: int | None
    value_schema_id: int | None
    state: DeliveryState | None
    without: str | None
    #: Names of the columns that changed, if known.
    changed: str
    #: "from": the row had a different key before; "to": it has a different key since.
    renamed: str
    is_repeat: bool


@dataclass(slots=True)
class KeyHistory:
    """The history of a key so far; filled while the recording is read."""

    key: RowKey
    steps: deque[HistoryStep] = field(default_factory=lambda: deque(maxlen=KEPT))
    #: Number of changes of the key so far, including those not kept.
    count: int = 0
    read: int = 0
    total: int = 0
    finished: bool = False


def key_of(change: Change) -> RowKey | None:
    """Return the key of a change; None for a table without a key, and for TRUNCATE."""
    if not change.key_columns or len(change.key) != len(change.key_columns):
        return None
    return RowKey(change.table, change.key_columns, change.key)


def key_before(change: Change) -> RowKey | None:
    """Return the old key of a change that changed the key, otherwise None."""
    values = old_key(change)
    return None if values is None else RowKey(change.table, change.key_columns, values)


def explain(
    view: RecordingView,
    story: KeyHistory,
    cancelled: Callable[[], bool] = lambda: False,
    on_progress: OnProgress = lambda done, total: None,
) -> None:
    """Fill ``story`` until everything is read or ``cancelled`` returns True. Raises DamagedRecording."""
    story.total = view.length
    last_row: _LastRow | None = None
    for change, role in _matches(_counted(view, story, cancelled, on_progress), story.key):
        story.count += 1
        story.steps.append(_step(change, role, last_row))
        last_row = _after(change, role, last_row)
    story.finished = story.read >= view.length
    on_progress(story.read, story.total)


def row_before(view: RecordingView, step: HistoryStep, change: Change) -> Sequence[Field] | None:
    """Return the old row of a step as far as it is recorded, in the order of the change's columns."""
    if old_row(change) is not None or step.previous is None:
        return old_row(change)
    previous = next(view.changes(step.previous, step.previous + 1))
    if previous.after is None:
        return None
    values = dict(zip((c.name for c in previous.relation.columns), previous.after, strict=True))
    return [values.get(column.name, UNCHANGED) for column in change.relation.columns]


@dataclass(frozen=True, slots=True)
class _LastRow:
    """The row after its last change."""

    position: int
    values: dict[str, Field]


def _counted(
    view: RecordingView, story: KeyHistory, cancelled: Callable[[], bool], on_progress: OnProgress
) -> Iterator[Change]:
    for change in view.changes():
        yield change
        story.read += 1
        if story.read % STEP == 0:
            on_progress(story.read, story.total)
            if cancelled():
                return


def _matches(changes: Iterable[Change], key: RowKey) -> Iterator[tuple[Change, str]]:
    """Yield a key's changes, with "", "from" (the row had a different key before) or "to" (it has one since).

    A backfilled tombstone has no row, so it is recognized by the key bytes of earlier messages.
    """
    last: object = None
    place: list[int] = []
    sent_as: set[bytes] = set()
    values = list(key.values)
    for change in changes:
        if change.operation == "truncate":
            if key.table in change.tables:
                yield change, ""
            continue
        if change.table != key.table:
            continue
        columns = change.relation.columns
        if columns is not last:
            last, names = columns, [column.name for column in columns]
            place = [names.index(n) for n in key.columns if n in names]
        after, before = change.after, change.before
        is_new = after is not None and [after[i] for i in place] == values
        is_old = before is not None and [before[i] for i in place] == values
        if is_new:
            sent_as |= _keys(change.messages[-1:])
            yield change, "" if is_old or old_key(change) is None else "from"
        elif is_old:
            sent_as |= _keys(change.messages[:1])
            yield change, "" if after is None else "to"
        elif change.operation == "cleanup" and sent_as & _keys(change.messages):
            yield change, ""


def _keys(messages: Iterable[SentMessage]) -> set[bytes]:
    return {body_of(message.key) for message in messages if message.key is not None}


def _step(change: Change, role: str, last_row: _LastRow | None) -> HistoryStep:
    # An update of the key sends a tombstone with the old key, then the row with the new key.
    message = next(iter(change.messages if role == "to" else reversed(change.messages)), None)
    return HistoryStep(
        position=change.position,
        previous=None if last_row is None else last_row.position,
        operation=change.operation,
        commit_time=change.commit_time,
        lsn=change.lsn,
        ordinal=change.ordinal,
        xid=change.xid,
        topic=message.topic if message else "",
        partition=message.partition if message else None,
        offset=message.offset if message else None,
        value_schema_id=message.value_schema_id if message else None,
        state=message.state if message else None,
        without=change.without,
        changed=_changed(change, last_row),
        renamed=role,
        is_repeat=change.is_repeat,
    )


def _changed(change: Change, last_row: _LastRow | None) -> str:
    if change.operation not in ("update", "backfill") or change.after is None:
        return ""
    columns = [column.name for column in change.relation.columns]
    sent = old_row(change)
    if sent is None and last_row is None:
        return ""
    before = last_row.values if sent is None and last_row else dict(zip(columns, sent or (), strict=True))
    names = [
        name
        for name, value in zip(columns, change.after, strict=True)
        if value is not UNCHANGED and before.get(name, UNCHANGED) not in (value, UNCHANGED)
    ]
    return ", ".join(names)[:_NAMES_LENGTH]


def _after(change: Change, role: str, last_row: _LastRow | None) -> _LastRow | None:
    """Return the row after a change; a repeated change does not alter it."""
    if change.is_repeat:
        return last_row
    if change.after is None or role == "to":
        return None
    values = dict(zip((c.name for c in change.relation.columns), change.after, strict=True))
    if last_row is not None:
        for name, value in values.items():
            if value is UNCHANGED:
                values[name] = last_row.values.get(name, UNCHANGED)
    return _LastRow(change.position, values)
