"""Assemble a batch's changes: decoded frames with their messages and delivery reports."""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from bwtui.model.delivery import REFUSED, UNKNOWN
from bwtui.model.headers import SESSION, make_headers
from bwtui.pgoutput.copy_text import unescape_copy_line
from bwtui.pgoutput.decoder import decode
from bwtui.pgoutput.frames import PAYLOAD_OFFSET
from bwtui.pgoutput.messages import Begin, Delete, Field, Insert, Relation, Truncate, Update
from bwtui.recording.change import OF_TRANSACTIONS, Change, DeliveryState, Operation, SentMessage
from bwtui.recording.format.batch import NO_FRAME, HeaderForm, MessageSection, RecordedBatch, Transaction
from bwtui.recording.format.blocks import BlockKind, JournalBlock
from bwtui.recording.format.context import RecordedRoute, SegmentContext
from bwtui.recording.format.statements import is_sent

#: (batch, section) → partitions and offsets, one per message.
Deliveries = Mapping[tuple[int, int], tuple["list[int]", "list[int]"]]
NO_TIMES: Mapping[tuple[int, int], int] = MappingProxyType({})


class _MessageSlot(NamedTuple):
    section: int
    place: int


class Assembly:
    """Makes the changes of one batch. Raises ValueError or KeyError when the batch is inconsistent."""

    def __init__(
        self,
        block: JournalBlock,
        batch: RecordedBatch,
        context: SegmentContext,
        deliveries: Deliveries,
        position: int,
        noted: Mapping[tuple[int, int], int] = NO_TIMES,
    ) -> None:
        """``context`` is the state before the block; ``position`` is that of the first change.

        ``noted`` is when each section was recorded as delivered, in Unix microseconds.
        """
        self._block = block
        self._batch = batch
        self._context = context
        self._deliveries = deliveries
        self._noted = noted
        self._position = position
        self._session = bytes.fromhex(context.head["session"])
        self.is_sent = is_sent(context.head)
        self._sent: dict[int, list[_MessageSlot]] = {}
        for number, section in enumerate(batch.sections):
            for index, frame in enumerate(section.frames):
                self._sent.setdefault(frame, []).append(_MessageSlot(number, index))
        self._filled: dict[int, list[tuple[int, bytes]]] = {}
        for frame, column, text in batch.filled:
            self._filled.setdefault(frame, []).append((column, text))

    def changes(self) -> Iterator[Change]:
        """Yield the changes of the batch."""
        if self._block.kind == BlockKind.ROWS:
            yield from self._rows()
        else:
            yield from self._stream()

    def _rows(self) -> Iterator[Change]:
        relation = self._context.relations[self._batch.relation]
        before, puts_rows = self._batch.before, self._context.puts_rows
        operation: Operation = "backfill" if puts_rows else "snapshot"
        for frame, line in enumerate(self._batch.frames):
            transaction = before._replace(ordinal=before.ordinal + frame + 1)
            row = tuple(unescape_copy_line(line)) if relation.columns else ()
            yield self._change(operation, frame, transaction, relation, None, row)
        transaction = before
        for sent in self._sent.get(NO_FRAME, ()):
            if puts_rows:
                transaction = transaction._replace(ordinal=transaction.ordinal + 1)
            yield self._change("cleanup", NO_FRAME, transaction, relation, None, None, only=sent)

    def _stream(self) -> Iterator[Change]:
        transaction = self._batch.before
        for frame, data in enumerate(self._batch.frames):
            message = decode(data[PAYLOAD_OFFSET:])
            if isinstance(message, Begin):
                transaction = Transaction(message.final_lsn, message.commit_time, message.xid)
            elif isinstance(message, Insert | Update | Delete | Truncate):
                transaction = transaction._replace(ordinal=transaction.ordinal + 1)
                yield self._of_message(message, frame, transaction)

    def _of_message(
        self, message: Insert | Update | Delete | Truncate, frame: int, transaction: Transaction
    ) -> Change:
        if isinstance(message, Truncate):
            named = [
                self._context.relations[oid]
                for oid in message.relation_oids
                if oid in self._context.relations
            ]
            return self._change("truncate", frame, transaction, named[0], None, None, truncated=tuple(named))
        relation = self._context.relations[message.relation_oid]
        if isinstance(message, Insert):
            return self._change("insert", frame, transaction, relation, None, message.new)
        old_is_key = message.old_kind == "K"
        if isinstance(message, Delete):
            return self._change("delete", frame, transaction, relation, message.old, None, old_is_key)
        return self._change("update", frame, transaction, relation, message.old, message.new, old_is_key)

    def _change(
        self,
        operation: Operation,
        frame: int,
        transaction: Transaction,
        relation: Relation,
        before: list[Field] | None,
        after: tuple[Field, ...] | list[Field] | None,
        before_is_key: bool = False,
        *,
        truncated: tuple[Relation, ...] = (),
        only: _MessageSlot | None = None,
    ) -> Change:
        filled = self._filled.get(frame, [])
        if filled and after is not None:
            completed = list(after)
            for column, text in filled:
                completed[column] = text
            after = completed
        sent = [only] if only is not None else self._sent.get(frame, [])
        messages = tuple(self._message(part, one, operation, transaction) for part, one in enumerate(sent))
        route = self._context.route_of.get(relation.oid)
        if sent:
            route = self._context.routes[self._batch.sections[sent[0].section].route]
        without = self._batch.without.get(frame)
        identity = (transaction.commit_lsn, transaction.ordinal)
        position = self._position
        self._position += 1
        return Change(
            position=position,
            pass_number=self._context.pass_number,
            lsn=transaction.commit_lsn,
            ordinal=transaction.ordinal,
            xid=transaction.xid,
            commit_time=transaction.commit_time,
            received=self._block.received,
            operation=operation,
            relation=relation,
            tables=tuple(one.qualified_name for one in truncated or (relation,)),
            truncated=truncated,
            key_columns=key_columns(route, relation),
            before=tuple(before) if before is not None else None,
            before_is_key=before_is_key,
            after=tuple(after) if after is not None else None,
            filled=tuple(relation.columns[column].name for column, _ in filled),
            messages=messages,
            without=without.name.lower() if without is not None else None,
            is_repeat=operation in OF_TRANSACTIONS and identity <= self._context.seen,
        )

    def _message(
        self, part: int, sent: _MessageSlot, operation: Operation, transaction: Transaction
    ) -> SentMessage:
        section = self._batch.sections[sent.section]
        route = self._context.routes[section.route]
        key, value = section.keys[sent.place], section.values[sent.place]
        state, partition, offset = self._delivery(sent)
        return SentMessage(
            part=part,
            topic=route.topic,
            key=key,
            value=value,
            key_schema_id=route.key_schema_id if key is not None else None,
            value_schema_id=route.value_schema_id if value is not None else None,
            state=state,
            partition=partition,
            offset=offset,
            headers=self._headers(section, value, operation, transaction),
            noted=self._noted.get((self._batch.number, sent.section)) if partition is not None else None,
        )

    def _delivery(self, sent: _MessageSlot) -> tuple[DeliveryState, int | None, int | None]:
        if not self.is_sent:
            return "unsent", None, None
        reports = self._deliveries.get((self._batch.number, sent.section))
        partition = reports[0][sent.place] if reports is not None else UNKNOWN
        if reports is None or partition == UNKNOWN:
            return "unknown", None, None
        if partition == REFUSED:
            return "refused", None, None
        return "acknowledged", partition, reports[1][sent.place]

    def _headers(
        self, section: MessageSection, value: bytes | None, operation: str, transaction: Transaction
    ) -> tuple[tuple[str, bytes], ...]:
        if section.headers == HeaderForm.NONE:
            return ()
        if section.headers == HeaderForm.SESSION:
            return ((SESSION, self._session),)
        named = "delete" if value is None else operation
        return tuple(
            make_headers(transaction.commit_lsn, transaction.ordinal, named, transaction.xid, self._session)
        )


def key_columns(route: RecordedRoute | None, relation: Relation) -> tuple[str, ...]:
    """Return the columns of a row's key, from its route, or without a route from the replica identity."""
    if route is not None:
        return route.key_columns
    if relation.replica_identity == "f":
        return ()
    return tuple(column.name for column in relation.columns if column.is_key)
