"""A bounded sample of changes for people: taken raw on the hot path, decoded only when asked for."""

import time
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from bwtui.model.lsn import format_lsn
from bwtui.model.status import ChangeSample, FieldChange
from bwtui.pgoutput.messages import Field, Relation
from bwtui.recording.fields import LIMIT, as_text, mark_of

SAMPLES = 500
_PER_SECOND = 50
#: What all samples may hold together: a row of 1,600 columns alone may have 6 MB.
_BYTES = 16 << 20


class _Raw(NamedTuple):
    sequence: int
    time: float
    commit_time: float
    lsn: int
    xid: int
    operation: str
    relation: Relation
    topic: str
    key_columns: tuple[str, ...]
    before: Sequence[Field] | None
    after: Sequence[Field] | None
    size: int


class Samples:
    """Keeps the newest `SAMPLES` sampled changes, fewer of large ones, at most about 50 new ones a second."""

    def __init__(self) -> None:
        self._samples: deque[_Raw] = deque()
        self._bytes = 0
        self._sequence = 0
        self._refilled = 0.0
        #: How many more changes may be sampled now; the hot path tests it and calls `take` only above 0.
        self.budget = 0

    def refill(self) -> None:
        """Give the budget for the time since the last call; called once a batch, never once a row."""
        now = time.monotonic()
        if now - self._refilled >= 1 / _PER_SECOND:
            self.budget = min(_PER_SECOND, int((now - self._refilled) * _PER_SECOND))
            self._refilled = now

    def take(
        self,
        operation: str,
        relation: Relation,
        topic: str,
        key_columns: tuple[str, ...],
        before: Sequence[Field] | None,
        after: Sequence[Field] | None,
        commit: tuple[int, int, float],
    ) -> None:
        """Keep one change; ``commit`` is the LSN, the xid and the commit time in Unix seconds."""
        self.budget -= 1
        self._sequence += 1
        lsn, xid, commit_time = commit
        before, after = _cut(before), _cut(after)
        size = _size(before) + _size(after)
        row = (operation, relation, topic, key_columns, before, after, size)
        samples = self._samples
        samples.append(_Raw(self._sequence, time.time(), commit_time, lsn, xid, *row))
        self._bytes += size
        while len(samples) > 1 and (self._bytes > _BYTES or len(samples) > SAMPLES):
            self._bytes -= samples.popleft().size

    def after(self, sequence: int) -> list[ChangeSample]:
        """Return the changes after ``sequence`` that are still held, oldest first, decoded field by field."""
        return [_decode(raw) for raw in tuple(self._samples) if raw.sequence > sequence]


def _cut(fields: Sequence[Field] | None) -> Sequence[Field] | None:
    """Cut long values, so that the sample's memory is bounded whatever the rows hold."""
    if fields is None:
        return None
    return [f[:LIMIT] if isinstance(f, bytes) and len(f) > LIMIT else f for f in fields]


def _size(fields: Sequence[Field] | None) -> int:
    return sum(len(field) for field in fields or () if isinstance(field, bytes))


def _decode(raw: _Raw) -> ChangeSample:
    names = [column.name for column in raw.relation.columns]
    row = raw.after if raw.after is not None else raw.before
    values = dict(zip(names, row, strict=True)) if row is not None else {}
    key = ", ".join(f"{name}={as_text(values.get(name))}" for name in raw.key_columns)
    return ChangeSample(
        sequence=raw.sequence,
        time=raw.time,
        commit_time=raw.commit_time,
        lsn=format_lsn(raw.lsn),
        xid=raw.xid,
        operation=raw.operation,
        table=raw.relation.qualified_name,
        topic=raw.topic,
        key=key,
        fields=tuple(_changes(raw, names)),
    )


def _changes(raw: _Raw, names: list[str]) -> list[FieldChange]:
    before, after = raw.before, raw.after
    changes = []
    for index, name in enumerate(names):
        if after is None and not _was_sent(raw, index):
            continue
        old = None if before is None else before[index]
        new = None if after is None else after[index]
        mark = "gone" if after is None else mark_of(raw.operation, before is not None, old, new)
        changes.append(FieldChange(name, as_text(old), as_text(new), mark))
    return changes


def _was_sent(raw: _Raw, index: int) -> bool:
    """Whether a deleted row's column is known: without REPLICA IDENTITY FULL only the key's are."""
    return raw.relation.replica_identity == "f" or raw.relation.columns[index].is_key
