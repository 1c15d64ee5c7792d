"""From gathered batches to the rows of a sealed recording, column by column: no object a change.

The columns are those of `bwtui.recording.export_rows`, and the rows are equal to what it makes of the same
changes; what is rare (TRUNCATE, tombstones behind an unfinished snapshot) goes through it.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from bwtui.pgoutput.copy_text import unescape_copy_line
from bwtui.pipeline.seal_batches import STATES, Deliveries, Gathered, Ints, Messages, Places
from bwtui.pipeline.seal_text import OPERATIONS, TextMaker, Texts
from bwtui.recording.assembly import Assembly, key_columns
from bwtui.recording.batch import Batch, HeaderForm, Without
from bwtui.recording.export_parquet import SCHEMA
from bwtui.recording.export_rows import message_rows
from bwtui.recording.format import Block, Kind
from bwtui.recording.known import Known
from bwtui.source.stream import PAYLOAD_OFFSET

HOUR_US = 3_600_000_000
#: Of these there are few values: they are numbers until Parquet, which stores them as numbers too.
CODED = ("session", "op", "schema", "table", "topic", "state", "without", "header_form")
CODED_SCHEMA = pa.schema(
    [
        pa.field(one.name, pa.dictionary(pa.int32(), pa.string())) if one.name in CODED else one
        for one in SCHEMA
    ]
)
_FORMS = [form.name.lower() for form in HeaderForm]
_REASONS = [reason.name.lower() for reason in Without]
_TAG_AND_OID = slice(PAYLOAD_OFFSET, PAYLOAD_OFFSET + 5)
_NO_LIST = pa.scalar([], pa.list_(pa.string()))


class Rows(NamedTuple):
    """Rows of one table and one hour, in order of position."""

    table: tuple[str, str]
    hour: int
    batch: pa.RecordBatch


class RowMaker:
    """Makes the rows of one segment; `forget` whenever what `Known` knows has changed."""

    def __init__(self) -> None:
        self._tables: list[tuple[str, str]] = []
        self._makers: dict[int, TextMaker] = {}
        self._cached: dict[tuple[object, tuple[str, ...]], TextMaker] = {}

    def forget(self) -> None:
        """Forget what relations and routes are."""
        self._makers.clear()

    def suits(self, block: Block, batch: Batch, known: Known) -> bool:
        """Whether `rows` can make the rows of a batch; otherwise `rare_rows` can."""
        if block.kind == Kind.ROWS:
            return bool(batch.frames) and bool(known.relations[batch.relation].columns) and not batch.filled
        return all(
            known.routes[section.route].key_columns
            == known.route_of[known.routes[section.route].relation_oid].key_columns
            for section in batch.sections
        )

    def rare_rows(
        self, block: Block, batch: Batch, known: Known, deliveries: Deliveries, position: int
    ) -> Iterator[Rows]:
        """Yield the rows of any batch, through its changes."""
        found: dict[tuple[tuple[str, str], int], list[tuple[object, ...]]] = {}
        schema, table, time = (SCHEMA.get_field_index(name) for name in ("schema", "table", "commit_time"))
        for change in Assembly(block, batch, known, deliveries, position).changes():
            for row in message_rows(change):
                where = ((str(row[schema]), str(row[table])), int(row[time]) // HOUR_US)
                found.setdefault(where, []).append(row)
        for (name, hour), rows in found.items():
            columns = [
                pa.array(values, type=one.type) for values, one in zip(zip(*rows, strict=True), SCHEMA, strict=True)
            ]
            batch_of = pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
            yield Rows(name, hour, batch_of.cast(CODED_SCHEMA))

    def rows(self, gathered: Gathered, known: Known, deliveries: Deliveries) -> Iterator[Rows]:
        """Yield the rows of gathered batches. Raises what a batch that contradicts itself makes it raise."""
        places = gathered.places()
        count = len(places.frames)
        if not count:
            return
        texts = list(self._texts(gathered, places, known))
        is_sent = bool(known.head["source"].get("cluster") or known.head["source"].get("broker"))
        messages = gathered.messages(deliveries, is_sent=is_sent)
        change, part, message = _layout(messages, places)
        columns = {
            **_of_changes(gathered, places, known, change),
            **_of_messages(messages, message, gathered, known),
            **self._of_texts(texts, change, message, messages, gathered, places),
            "part": pa.array(part, pa.int32()),
        }
        batch = pa.RecordBatch.from_arrays([columns[name] for name in SCHEMA.names], schema=CODED_SCHEMA)
        tables = np.array([one[0] for one in texts], np.int64)[change]
        yield from self._partitioned(batch, tables, places.time[change] // HOUR_US)

    def _partitioned(self, batch: pa.RecordBatch, tables: Ints, hours: Ints) -> Iterator[Rows]:
        if (tables == tables[0]).all() and (hours == hours[0]).all():
            yield Rows(self._tables[tables[0]], int(hours[0]), batch)
            return
        order = np.lexsort((hours, tables))
        table, hour = tables[order], hours[order]
        edges = np.flatnonzero((table[1:] != table[:-1]) | (hour[1:] != hour[:-1])) + 1
        for places in np.split(order, edges):
            first = places[0]
            yield Rows(self._tables[tables[first]], int(hours[first]), batch.take(pa.array(places)))

    # -- texts ---------------------------------------------------------------------------------------------

    def _texts(self, gathered: Gathered, places: Places, known: Known) -> Iterator[Texts]:
        if gathered.kind == Kind.ROWS:
            make = self._maker(gathered.relation, known).snapshot
            for line in gathered.frames:
                yield make(unescape_copy_line(line))
            return
        functions = _Functions(self, known)
        frames, filled = gathered.frames, gathered.filled
        if not filled:
            for at in places.frames.tolist():
                frame = frames[at]
                yield functions[frame[_TAG_AND_OID]](frame)
            return
        for at in places.frames.tolist():
            frame = frames[at]
            if at in filled:
                oid = int.from_bytes(frame[PAYLOAD_OFFSET + 1 : PAYLOAD_OFFSET + 5], "big")
                yield self._maker(oid, known).completed(frame, filled[at])
            else:
                yield functions[frame[_TAG_AND_OID]](frame)

    def _maker(self, oid: int, known: Known) -> TextMaker:
        maker = self._makers.get(oid)
        if maker is None:
            relation = known.relations[oid]
            key = key_columns(known.route_of.get(oid), relation)
            maker = self._cached.get((relation, key))
            if maker is None:
                table = (relation.namespace, relation.name)
                if table not in self._tables:
                    self._tables.append(table)
                maker = TextMaker(relation, key, self._tables.index(table))
                self._cached[relation, key] = maker
            self._makers[oid] = maker
        return maker

    def _of_texts(
        self,
        texts: Sequence[Texts],
        change: Ints,
        message: Ints,
        messages: Messages,
        gathered: Gathered,
        places: Places,
    ) -> dict[str, pa.Array]:
        tables, ops, before, after, new_keys, old_keys, unchanged = zip(*texts, strict=True)
        names = list(zip(*self._tables, strict=True))
        table = np.array(tables, np.int32)[change]
        take = _taker(change, len(texts))
        keys: Sequence[str | None] = new_keys
        if any(old_keys) or None in after:
            keys = _keys(texts, change, message, messages.values)
            key_column = pa.array(keys, pa.string())
        else:
            key_column = take(pa.array(keys, pa.string()))
        return {
            "schema": _coded(table, names[0]),
            "table": _coded(table, names[1]),
            "op": _coded(np.array(ops, np.int32)[change], OPERATIONS),
            "before": take(pa.array(before, pa.string())),
            "after": take(pa.array(after, pa.string())),
            "key_json": key_column,
            "unchanged": take(_lists(unchanged)),
            "filled": take(_lists(_filled(gathered, places, texts, self))),
        }

    def names_of(self, table: int, places: Sequence[int], gathered: Gathered, frame: int) -> list[str]:
        """Return the names of columns of the relation that a frame is a row of."""
        data = gathered.frames[frame]
        oid = int.from_bytes(data[PAYLOAD_OFFSET + 1 : PAYLOAD_OFFSET + 5], "big")
        columns = self._makers[oid].relation.columns
        return [columns[place].name for place in places]


class _Functions(dict[bytes, object]):
    """Tag and oid → what makes the texts of such a frame."""

    def __init__(self, maker: RowMaker, known: Known) -> None:
        self._maker = maker
        self._known = known

    def __missing__(self, key: bytes) -> object:
        maker = self._maker._maker(int.from_bytes(key[1:], "big"), self._known)
        made = {ord("I"): maker.insert, ord("U"): maker.update, ord("D"): maker.delete}[key[0]]
        self[key] = made
        return made
