"""A bounded sample of changes for people: taken raw on the hot path, decoded only on request."""

import time
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from bwtui.model.delivery import DeliverySpan, SamplePassage
from bwtui.model.lsn import format_lsn
from bwtui.model.service_views import StageEntry, Stages
from bwtui.model.status import ChangeSample, FieldChange
from bwtui.pgoutput.messages import Field, Relation
from bwtui.recording.change import LIMIT, as_text, mark_of
from bwtui.relay.routes.route import TableRoute

SAMPLES = 500
_PER_SECOND = 50
#: Maximum size of all samples together: a single row of 1,600 columns may have 6 MB.
_BYTES = 16 << 20
#: Maximum length of a message's key; longer ones are not kept.
_KEY_BYTES = 1_024


class SampledCommit(NamedTuple):
    """The transaction of a change: its LSN, xid and commit time in Unix seconds, and the change's number."""

    lsn: int
    xid: int
    time: float
    ordinal: int


class _RawSample(NamedTuple):
    sequence: int
    time: float
    commit: SampledCommit
    operation: str
    relation: Relation
    topic: str
    key_columns: tuple[str, ...]
    before: Sequence[Field] | None
    after: Sequence[Field] | None
    size: int
    message_key: bytes | None
    schema_ids: tuple[int | None, int | None]
    passage: SamplePassage | None


class Samples:
    """Keeps the newest `SAMPLES` sampled changes, fewer of large ones; at most about 50 new ones a second."""

    def __init__(self) -> None:
        self._samples: deque[_RawSample] = deque()
        self._bytes = 0
        self._sequence = 0
        self._refilled = 0.0
        #: The number of changes that may be sampled now; the hot path tests it and calls `take` only above 0.
        self.budget = 0

    def refill(self) -> None:
        """Renew the budget for the time since the last call; called once per batch, never once per row."""
        now = time.monotonic()
        if now - self._refilled >= 1 / _PER_SECOND:
            self.budget = min(_PER_SECOND, int((now - self._refilled) * _PER_SECOND))
            self._refilled = now

    def take(
        self,
        operation: str,
        route: TableRoute,
        key: bytes | None,
        before: Sequence[Field] | None,
        after: Sequence[Field] | None,
        commit: SampledCommit,
        span: DeliverySpan | None = None,
    ) -> None:
        """Keep one change, whose message was the last one added to ``route``, and to ``span``."""
        self.budget -= 1
        self._sequence += 1
        before, after = cut_long(before), cut_long(after)
        key = key if key is not None and len(key) <= _KEY_BYTES else None
        size = _size(before) + _size(after) + len(key or b"")
        passage = None
        if span is not None:
            passage = SamplePassage(span, route, len(route.messages) - 1)
            span.sampled.append(passage)
        row = (operation, route.relation, route.topic, route.key_columns, before, after, size)
        ids = (None if key is None else route.key_schema_id, None if after is None else route.value_schema_id)
        samples = self._samples
        samples.append(_RawSample(self._sequence, time.time(), commit, *row, key, ids, passage))
        self._bytes += size
        while len(samples) > 1 and (self._bytes > _BYTES or len(samples) > SAMPLES):
            self._bytes -= samples.popleft().size

    def after(self, sequence: int) -> list[ChangeSample]:
        """Return the changes after ``sequence`` that are still kept, oldest first, decoded field by field."""
        return [_decode(raw) for raw in tuple(self._samples) if raw.sequence > sequence]

    def stages(self) -> Stages:
        """Return the progress of all changes that are still kept."""
        held = tuple(self._samples)
        return Stages(time.time(), changes=tuple(_stages(raw) for raw in held if raw.passage is not None))


def cut_long(fields: Sequence[Field] | None) -> Sequence[Field] | None:
    """Cut long values, so that the sample's memory is bounded whatever the rows contain."""
    if fields is None:
        return None
    return [f[:LIMIT] if isinstance(f, bytes) and len(f) > LIMIT else f for f in fields]


def _size(fields: Sequence[Field] | None) -> int:
    return sum(len(field) for field in fields or () if isinstance(field, bytes))


def _decode(raw: _RawSample) -> ChangeSample:
    names = [column.name for column in raw.relation.columns]
    row = raw.after if raw.after is not None else raw.before
    values = dict(zip(names, row, strict=True)) if row is not None else {}
    key = ", ".join(f"{name}={as_text(values.get(name))}" for name in raw.key_columns)
    stages = _stages(raw)
    return ChangeSample(
        sequence=raw.sequence,
        time=raw.time,
        commit_time=raw.commit.time,
        lsn=format_lsn(raw.commit.lsn),
        xid=raw.commit.xid,
        operation=raw.operation,
        table=raw.relation.qualified_name,
        topic=raw.topic,
        key=key,
        fields=tuple(_changes(raw, names)),
        ordinal=raw.commit.ordinal,
        key_schema_id=raw.schema_ids[0],
        value_schema_id=raw.schema_ids[1],
        message_key="" if raw.message_key is None else raw.message_key.hex(),
        passed=stages.passed,
        batch=stages.batch,
        is_given_up=stages.is_given_up,
        partition=stages.partition,
        offset=stages.offset,
    )


def _stages(raw: _RawSample) -> StageEntry:
    passage = raw.passage
    if passage is None:
        return StageEntry(raw.sequence)
    place = (passage.partition, passage.offset)
    return StageEntry(raw.sequence, passage.passed, passage.messages, passage.is_given_up, *place)


def _changes(raw: _RawSample, names: list[str]) -> list[FieldChange]:
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


def _was_sent(raw: _RawSample, index: int) -> bool:
    """Return whether a deleted row's column was sent: only the key's are, without REPLICA IDENTITY FULL."""
    return raw.relation.replica_identity == "f" or raw.relation.columns[index].is_key
