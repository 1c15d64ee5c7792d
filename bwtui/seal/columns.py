"""Create the columns of a sealed recording's rows as Arrow arrays."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from bwtui.recording.change import KEY_CHANGE
from bwtui.recording.export.parquet import SCHEMA
from bwtui.recording.format.batch import HeaderForm, NoMessageReason
from bwtui.recording.format.context import SegmentContext
from bwtui.seal.batches import STATES, BatchGroup, BatchMessages, ChangePlaces, Ints
from bwtui.seal.text import OPERATIONS, ChangeTexts

#: Columns with few distinct values: they are dictionary-encoded, as Parquet stores them too.
CODED = ("session", "op", "schema", "table", "topic", "state", "without", "header_form")
CODED_SCHEMA = pa.schema(
    [
        pa.field(one.name, pa.dictionary(pa.int32(), pa.string())) if one.name in CODED else one
        for one in SCHEMA
    ]
)
_FORMS = [form.name.lower() for form in HeaderForm]
_OPERATIONS = (*OPERATIONS, KEY_CHANGE)
_UPDATE, _KEY_CHANGE = _OPERATIONS.index("update"), _OPERATIONS.index(KEY_CHANGE)
_REASONS = ["", *(reason.name.lower() for reason in NoMessageReason)]

Columns = dict[str, pa.Array]
Mask = npt.NDArray[np.bool_]


class RowLayout(NamedTuple):
    """For each row: its change, the number of its message within the change, and the message (-1 if none).

    ``is_plain`` means one message per change, so that rows, changes and messages correspond.
    """

    change: Ints
    part: Ints
    message: Ints
    is_plain: bool

    def by_change(self, column: pa.Array) -> pa.Array:
        """Expand a column of the changes to the rows."""
        return column if self.is_plain else column.take(pa.array(self.change))

    def by_message(self, column: pa.Array) -> pa.Array:
        """Expand a column of the messages to the rows."""
        if self.is_plain:
            return column
        return column.take(pa.array(self.message, mask=self.message < 0))


def lay_out(messages: BatchMessages, places: ChangePlaces) -> RowLayout:
    """Lay out rows: one per message, and one for a change without any. Raises ValueError or IndexError."""
    count = len(places.frames)
    of_message = places.of_frame[messages.frame]
    if (of_message < 0).any():
        raise ValueError("a message belongs to no change")
    changes = np.arange(count)
    if len(of_message) == count and (of_message == changes).all():
        return RowLayout(changes, np.zeros(count, np.int64), changes, True)
    sent = np.bincount(of_message, minlength=count)
    rows = np.maximum(sent, 1)
    change = np.repeat(changes, rows)
    first = np.cumsum(rows) - rows
    part = np.arange(len(change)) - first[change]
    message = np.full(len(change), -1)
    message[sent[change] > 0] = np.arange(len(of_message))
    return RowLayout(change, part, message, False)


def of_changes(
    gathered: BatchGroup, places: ChangePlaces, context: SegmentContext, layout: RowLayout
) -> Columns:
    """Return the columns that depend on a change's transaction, block and pass."""
    change = layout.change
    lsn, ordinal = places.lsn[change], places.ordinal[change]
    last_lsn, last_ordinal = context.seen
    repeats = (lsn < last_lsn) | ((lsn == last_lsn) & (ordinal <= last_ordinal))
    if gathered.is_rows:
        repeats = np.zeros(len(change), bool)
    reasons = np.zeros(len(gathered.frames), np.int32)
    for frame, reason in gathered.without.items():
        reasons[frame] = reason
    reasons = reasons[places.frames][change]
    return {
        "position": pa.array(gathered.first_position + change, pa.int64()),
        "pass": pa.array(np.full(len(change), context.pass_number, np.int32)),
        "is_repeat": pa.array(repeats),
        "lsn": pa.array(lsn),
        "ordinal": pa.array(ordinal.astype(np.int32)),
        "part": pa.array(layout.part.astype(np.int32)),
        "xid": pa.array(places.xid[change]),
        "commit_time": pa.array(places.time[change], pa.timestamp("us")),
        "received": pa.array(places.received[change], pa.timestamp("us")),
        "without": _coded(reasons, _REASONS, reasons == 0),
    }


def of_messages(
    messages: BatchMessages, layout: RowLayout, gathered: BatchGroup, context: SegmentContext
) -> Columns:
    """Return the columns of messages and their delivery."""
    at = layout.message
    missing = at < 0
    routes = sorted(gathered.routes)
    recorded_routes = [gathered.routes[number] for number in routes]
    route = np.searchsorted(routes, messages.route) if routes else messages.route
    key, value = (pa.array(cells, pa.binary()) for cells in (messages.keys, messages.values))
    ids = {
        "key_schema_id": _ids(route, [recorded.key_schema_id for recorded in recorded_routes], key),
        "value_schema_id": _ids(route, [recorded.value_schema_id for recorded in recorded_routes], value),
    }
    forms = messages.headers.astype(np.int32)
    unplaced = messages.state != STATES.index("acknowledged")
    return {
        "topic": _at(route, [recorded.topic for recorded in recorded_routes], at, missing),
        "header_form": _at(forms, _FORMS, at, missing),
        "session": _at(
            np.zeros(len(forms)), [context.head["session"]], at, missing, forms == HeaderForm.NONE
        ),
        "state": _at(messages.state, STATES, at, missing),
        "partition": layout.by_message(pa.array(messages.partition.astype(np.int32), mask=unplaced)),
        "offset": layout.by_message(pa.array(messages.offset, mask=unplaced)),
        "key": layout.by_message(key),
        "value": layout.by_message(value),
        **{name: layout.by_message(column) for name, column in ids.items()},
    }


def _ids(route: Ints, ids: Sequence[int | None], cells: pa.Array) -> pa.Array:
    """Return the schema ids of the cells, null for null cells."""
    if not len(route):
        return pa.array([], pa.int32())
    numbers = np.array([-1 if one is None else one for one in ids], np.int32)[route]
    nulls = numbers < 0
    if cells.null_count:
        nulls |= cells.is_null().to_numpy(zero_copy_only=False)
    return pa.array(numbers, mask=nulls)


def _at(
    codes: npt.NDArray[Any],
    names: Sequence[str],
    message: Ints,
    missing: Mask,
    nulls: Mask | None = None,
) -> pa.Array:
    """Return a dictionary-encoded column of the messages, expanded to the rows."""
    if not len(codes):
        return _coded(np.zeros(len(message), np.int32), [""], np.ones(len(message), bool))
    mask = missing if nulls is None else missing | nulls[message]
    return _coded(codes[message].astype(np.int32), names, mask)


def of_texts(texts: Sequence[ChangeTexts], layout: RowLayout, values: pa.Array) -> Columns:
    """Return the columns of row contents; ``values`` are the values of the rows' messages."""
    _, ops, befores, afters, new_keys, old_keys, unchanged, filled = zip(*texts, strict=True)
    before, after, key_json = (
        layout.by_change(pa.array(column, pa.string())) for column in (befores, afters, new_keys)
    )
    codes = np.array(ops, np.int32)[layout.change]
    if before.null_count < len(before) or after.null_count:
        # The old key applies to a delete, and to the tombstone of a changed key.
        is_tombstone = pc.and_(pa.array(layout.message >= 0), values.is_null())
        codes[(codes == _UPDATE) & is_tombstone.to_numpy(zero_copy_only=False)] = _KEY_CHANGE
        is_old = pc.or_(after.is_null(), pc.and_(is_tombstone, before.is_valid()))
        key_json = pc.if_else(is_old, layout.by_change(pa.array(old_keys, pa.string())), key_json)
    return {
        "op": _coded(codes, _OPERATIONS),
        "before": before,
        "after": after,
        "key_json": key_json,
        "unchanged": layout.by_change(_lists(unchanged)),
        "filled": layout.by_change(_lists(filled)),
    }


def of_tables(tables: Ints, names: Sequence[tuple[str, str]], layout: RowLayout) -> Columns:
    """Return the columns schema and table; ``tables`` has indexes into ``names``."""
    codes = tables[layout.change]
    by_relation = {}
    for column, texts in zip(("schema", "table"), zip(*names, strict=True), strict=True):
        distinct = list(dict.fromkeys(texts))
        code = np.array([distinct.index(text) for text in texts], np.int32)
        by_relation[column] = _coded(code[codes], distinct)
    return by_relation


def _lists(lists: Sequence[list[str] | None]) -> pa.Array:
    if any(lists):
        return pa.array([one or [] for one in lists], pa.list_(pa.string()))
    return pa.ListArray.from_arrays(pa.array(np.zeros(len(lists) + 1, np.int32)), pa.array([], pa.string()))


def _coded(codes: npt.NDArray[np.int32], names: Sequence[str], nulls: Mask | None = None) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(codes, mask=nulls), pa.array(names, pa.string()))
