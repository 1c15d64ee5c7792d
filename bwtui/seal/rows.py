"""Convert gathered batches to the rows of a sealed recording, by column, without an object per change.

The columns are those of `bwtui.recording.export.rows`, and the rows equal those that it makes of the same
changes; it is used for rare kinds of changes (TRUNCATE, tombstones for keys without a row).
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from bwtui.pgoutput.copy_text import unescape_copy_line
from bwtui.pgoutput.frames import PAYLOAD_OFFSET
from bwtui.recording.export.parquet import SCHEMA
from bwtui.recording.export.rows import message_rows
from bwtui.recording.format.batch import RecordedBatch
from bwtui.recording.format.blocks import BlockKind, JournalBlock
from bwtui.recording.format.context import SegmentContext
from bwtui.recording.format.statements import is_sent
from bwtui.recording.reading.assembly import Assembly, key_columns
from bwtui.seal.batches import BatchGroup, ChangePlaces, Deliveries, Ints
from bwtui.seal.columns import CODED_SCHEMA, lay_out, of_changes, of_messages, of_tables, of_texts
from bwtui.seal.text import ChangeTexts, TextMaker

HOUR_US = 3_600_000_000
_TAG_AND_OID = slice(PAYLOAD_OFFSET, PAYLOAD_OFFSET + 5)


class SealedRows(NamedTuple):
    """Rows of one table and one hour, in the order of their positions."""

    table: tuple[str, str]
    hour: int
    batch: pa.RecordBatch


class SealedRowMaker:
    """Makes the rows of one segment; call `forget` whenever the state of `SegmentContext` has changed."""

    def __init__(self) -> None:
        self._tables: list[tuple[str, str]] = []
        self._makers: dict[int, TextMaker] = {}
        self._cached: dict[tuple[object, tuple[str, ...]], TextMaker] = {}

    def forget(self) -> None:
        """Forget relations and routes."""
        self._makers.clear()

    def suits(
        self, block: JournalBlock, batch: RecordedBatch, letters: bytes, context: SegmentContext
    ) -> bool:
        """Return whether `rows` can handle a batch with the tags ``letters``; otherwise `rare_rows` can."""
        if block.kind == BlockKind.ROWS:
            return bool(batch.frames) and bool(context.relations[batch.relation].columns) and not batch.filled
        return b"T" not in letters and all(
            context.routes[section.route].key_columns
            == context.route_of[context.routes[section.route].relation_oid].key_columns
            for section in batch.sections
        )

    def rare_rows(
        self,
        block: JournalBlock,
        batch: RecordedBatch,
        context: SegmentContext,
        deliveries: Deliveries,
        position: int,
    ) -> Iterator[SealedRows]:
        """Yield the rows of any batch, by assembling its changes."""
        by_table: dict[tuple[tuple[str, str], int], list[tuple[object, ...]]] = {}
        schema, table, time = (SCHEMA.get_field_index(name) for name in ("schema", "table", "commit_time"))
        for change in Assembly(block, batch, context, deliveries, position).changes():
            for row in message_rows(change):
                where = ((str(row[schema]), str(row[table])), int(row[time]) // HOUR_US)
                by_table.setdefault(where, []).append(row)
        for (name, hour), rows in by_table.items():
            columns = [
                pa.array(values, type=one.type)
                for values, one in zip(zip(*rows, strict=True), SCHEMA, strict=True)
            ]
            batch_of = pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
            yield SealedRows(name, hour, batch_of.cast(CODED_SCHEMA))

    def rows(self, gathered: BatchGroup, context: SegmentContext) -> Iterator[SealedRows]:
        """Yield the rows of gathered batches. May raise any error if a batch is inconsistent."""
        places = gathered.places()
        count = len(places.frames)
        if not count:
            return
        texts = list(self._texts(gathered, places, context))
        messages = gathered.messages(is_sent=is_sent(context.head))
        layout = lay_out(messages, places)
        tables = np.array([one[0] for one in texts], np.int64)
        sent = of_messages(messages, layout, gathered, context)
        columns = {
            **of_changes(gathered, places, context, layout),
            **sent,
            **of_texts(texts, layout, sent["value"]),
            **of_tables(tables, self._tables, layout),
        }
        batch = pa.RecordBatch.from_arrays([columns[name] for name in SCHEMA.names], schema=CODED_SCHEMA)
        change = layout.change
        tables = tables[change]
        yield from self._partitioned(batch, tables, places.time[change] // HOUR_US)

    def _partitioned(self, batch: pa.RecordBatch, tables: Ints, hours: Ints) -> Iterator[SealedRows]:
        if (tables == tables[0]).all() and (hours == hours[0]).all():
            yield SealedRows(self._tables[tables[0]], int(hours[0]), batch)
            return
        order = np.lexsort((hours, tables))
        table, hour = tables[order], hours[order]
        edges = np.flatnonzero((table[1:] != table[:-1]) | (hour[1:] != hour[:-1])) + 1
        for places in np.split(order, edges):
            first = places[0]
            yield SealedRows(self._tables[tables[first]], int(hours[first]), batch.take(pa.array(places)))

    # -- texts ---------------------------------------------------------------------------------------------

    def _texts(
        self, gathered: BatchGroup, places: ChangePlaces, context: SegmentContext
    ) -> Iterator[ChangeTexts]:
        if gathered.kind == BlockKind.ROWS:
            maker = self.maker(gathered.relation, context)
            make = maker.backfill if context.puts_rows else maker.snapshot
            for line in gathered.frames:
                yield make(unescape_copy_line(line))
            return
        functions = _TextFunctions(self, context)
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
                yield self.maker(oid, context).completed(frame, filled[at])
            else:
                yield functions[frame[_TAG_AND_OID]](frame)

    def maker(self, oid: int, context: SegmentContext) -> TextMaker:
        """Return the text maker of a relation, with its current columns and key."""
        maker = self._makers.get(oid)
        if maker is None:
            relation = context.relations[oid]
            key = key_columns(context.route_of.get(oid), relation)
            maker = self._cached.get((relation, key))
            if maker is None:
                table = (relation.namespace, relation.name)
                if table not in self._tables:
                    self._tables.append(table)
                maker = TextMaker(relation, key, self._tables.index(table))
                self._cached[relation, key] = maker
            self._makers[oid] = maker
        return maker


class _TextFunctions(dict[bytes, Callable[[bytes], ChangeTexts]]):
    """Tag and oid → function that makes the texts of such a frame."""

    def __init__(self, maker: SealedRowMaker, context: SegmentContext) -> None:
        self._maker = maker
        self._context = context

    def __missing__(self, key: bytes) -> Callable[[bytes], ChangeTexts]:
        maker = self._maker.maker(int.from_bytes(key[1:], "big"), self._context)
        function = {ord("I"): maker.insert, ord("U"): maker.update, ord("D"): maker.delete}[key[0]]
        self[key] = function
        return function
