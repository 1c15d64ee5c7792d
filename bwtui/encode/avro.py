"""Encode rows to framed Avro: one generated function for a table's keys, one for its rows.

The frame is Confluent's wire format: a zero byte, the schema's id in four bytes, big-endian, then the Avro
binary. The generated functions handle only ordinary values; for anything else (NaN, infinity, a TOAST value
that was not sent, malformed text) ``_RowEncoder`` encodes the row, which is slow and plain, and reports the
column.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

from bwtui.encode.compiled_encoders import CompiledEncoders, FindLacking, Run, in_python, twin
from bwtui.encode.encoder_generator import EncodedRowParts, Slow, compile_one
from bwtui.encode.lines import Both, Lines, encode_lines
from bwtui.encode.names import UNCHANGED_KEY, avro_name, record_names
from bwtui.encode.schema import FieldPlan, SchemaStyle, key_schema, needs_escape, value_schema
from bwtui.errors import RowError
from bwtui.pgoutput.messages import Field, Relation, UnchangedToast
from bwtui.types.codec import Unholdable
from bwtui.types.keys import key_codec
from bwtui.types.registry import TypeInfo, codec_for
from bwtui.types.strings import check, no_text
from bwtui.types.varint import NULL, VALUE, long, prefixed

_frame = struct.Struct(">BI").pack
_PLAIN = SchemaStyle()


#: The hint for every row that can't be relayed.
_DROP = "write such rows to the dead letters with --on-error log"
NOT_TEXT = f"a proxy between relay and server requests binary values: connect without it, or {_DROP}"


class EncodeError(RowError):
    """A field can't be encoded; ``column`` is empty if the row as a whole can't. Never contains the value."""

    def __init__(self, column: str, reason: str, hint: str) -> None:
        super().__init__(f'column "{column}": {reason}' if column else reason, hint)
        self.column = column
        self.reason = reason


class UnchangedToastError(EncodeError):
    """A large value is missing from the row, because the UPDATE did not change it."""

    def __init__(self, column: str) -> None:
        hint = "use --toast fetch, or set REPLICA IDENTITY FULL on the table"
        super().__init__(column, "an unchanged TOAST value was not sent", hint)


class NoRoomError(EncodeError):
    """Bytes are not text, and the schema has no field for values that a column can't hold."""

    def __init__(self, column: str) -> None:
        hint = f"fix the bytes in PostgreSQL, or {_DROP}"
        super().__init__(column, "its bytes are not valid text, and the schema has no __escaped field", hint)


class BoundEncoder:
    """The encoder of one table with the registry's ids.

    ``key`` and ``value`` take all of a row's fields, in table order, and return the framed bytes; ``both``
    returns both at once, which is cheaper. The key is None for a table without key columns. They raise
    EncodeError. Each is compiled at its first use: a thousand columns take half a second.
    """

    def __init__(
        self, key: EncodedRowParts | None, value: EncodedRowParts, width: int, placeholder: Slow | None
    ) -> None:
        self._key = key
        self._value = value
        self._width = width
        self._placeholder = placeholder

    def both_filled(self, fields: Sequence[Field]) -> tuple[bytes | None, bytes]:
        """Return key and value of a row that has UNCHANGED only where a placeholder is wanted."""
        if self._placeholder is None:
            return self.both(fields)
        return self.key(fields), self._placeholder(fields)

    @cached_property
    def key(self) -> Callable[[Sequence[Field]], bytes | None]:
        """Function from a row's fields to its key."""
        return _no_key if self._key is None else compile_one(self._key, self._width)

    @cached_property
    def value(self) -> Callable[[Sequence[Field]], bytes]:
        """Function from a row's fields to its value."""
        return compile_one(self._value, self._width)

    @cached_property
    def both(self) -> Both:
        """Function from a row's fields to its key and its value."""
        return self._twin.both if self._twin is not None else in_python(*self.records)

    @cached_property
    def lines(self) -> Lines:
        """Function from lines of COPY to messages."""
        return self._twin.lines if self._twin is not None else partial(encode_lines, self.both)

    @cached_property
    def run(self) -> Run | None:
        """Function from frames to messages without splitting rows; None without the C extension."""
        return self._twin.run if self._twin is not None else None

    @cached_property
    def lacking(self) -> FindLacking | None:
        """Function that finds frames with unchanged values; None without the C extension."""
        return self._twin.lacking if self._twin is not None else None

    @cached_property
    def _twin(self) -> CompiledEncoders | None:
        return twin(*self.records)

    @property
    def records(self) -> tuple[EncodedRowParts | None, EncodedRowParts, int]:
        """The records of key and value, and the number of columns."""
        return self._key, self._value, self._width


@dataclass(frozen=True, slots=True)
class TableEncoder:
    """A table's schemas, before the registry has assigned ids."""

    key_schema: str | None
    value_schema: str
    text_columns: tuple[str, ...]
    key_plans: tuple[FieldPlan, ...]
    value_plans: tuple[FieldPlan, ...]
    #: True if a value that was not sent is encoded as a placeholder, for which the schema has a field.
    placeholders: bool = False

    def bind(self, key_id: int | None, value_id: int) -> BoundEncoder:
        """Return the encoder for these schema ids; ``key_id`` is None without a key."""
        width = len(self.value_plans)
        slow = _RowEncoder(value_id, self.value_plans, width, self.placeholders)
        placeholder = slow.encode_with_placeholders if self.placeholders else None
        if key_id is None or not self.key_plans:
            return BoundEncoder(None, slow.record(), width, placeholder)
        key = _RowEncoder(key_id, self.key_plans, width).record()
        return BoundEncoder(key, slow.record(), width, placeholder)


def build_encoder(
    relation: Relation,
    key_columns: tuple[str, ...],
    catalog: Mapping[int, TypeInfo],
    any_bytes: bool = False,
    placeholders: bool = False,
    style: SchemaStyle = _PLAIN,
) -> TableEncoder:
    """Return the encoder of ``relation``; ``key_columns`` are its key's columns, empty if it has none.

    ``catalog`` describes the types that are not built in. With ``any_bytes`` the schema has a field for bytes
    that are not text, and with ``placeholders`` also for values that were not sent. Raises EncodeError for a
    key column that is not in the relation.
    """
    plans = tuple(
        FieldPlan(
            i,
            column.name,
            avro_name(column.name),
            codec_for(column.type_oid, column.typmod, catalog, any_bytes),
        )
        for i, column in enumerate(relation.columns)
    )
    for name in key_columns:
        if name not in (plan.column for plan in plans):
            hint = "add the column to the publication's column list"
            raise EncodeError(name, "the key's column is not published", hint)
    keys = tuple(_key_plan(plan) for plan in plans if plan.column in key_columns)
    names, escape = record_names(relation, style.namespace), placeholders or needs_escape(plans)
    return TableEncoder(
        key_schema(names, keys) if keys else None,
        value_schema(names, plans, escape=escape, connect_names=style.connect_names),
        tuple(plan.column for plan in plans if plan.codec.as_text),
        keys,
        plans,
        placeholders,
    )


def _key_plan(plan: FieldPlan) -> FieldPlan:
    codec = key_codec(plan.codec)
    if codec is plan.codec:
        return plan
    # An int and a long have the same bytes, as do valid texts: key and row can share these.
    is_shared = codec.avro == "long" or (codec.inline is not None and codec.inline is plan.codec.inline)
    return replace(plan, codec=codec, variables="" if is_shared else "k")


def _no_key(fields: Sequence[Field]) -> None:
    return None


class _RowEncoder:
    """The plain encoder: every value of every type, one field after the other."""

    def __init__(
        self, schema_id: int, plans: Sequence[FieldPlan], width: int, placeholders: bool = False
    ) -> None:
        self.head = _frame(0, schema_id)
        self.plans = plans
        self.width = width
        self.escapes = placeholders or needs_escape(plans)

    def record(self) -> EncodedRowParts:
        """Return the input of the generated functions, with this encoder for rows they do not handle."""
        return EncodedRowParts(self.head, self.plans, self.encode, self.escapes)

    def encode(self, fields: Sequence[Field]) -> bytes:
        """Return the framed bytes. Raises EncodeError."""
        return self._encode(fields, {})

    def encode_with_placeholders(self, fields: Sequence[Field]) -> bytes:
        """Return the framed bytes of a row, where UNCHANGED becomes null and the column is listed.

        The names are in the escape field under a key that no column can have, separated by spaces.
        """
        names = [p.name for p in self.plans if isinstance(fields[p.index], UnchangedToast)]
        row = [None if isinstance(field, UnchangedToast) else field for field in fields]
        return self._encode(row, {UNCHANGED_KEY: " ".join(names).encode()} if names else {})

    def _encode(self, fields: Sequence[Field], escaped: dict[str, bytes]) -> bytes:
        if len(fields) != self.width:
            reason = f"the row has {len(fields)} columns, but its table has {self.width}"
            raise EncodeError("", reason, f"restart the relay, which reloads the table's columns, or {_DROP}")
        out = [self.head]
        for plan in self.plans:
            field = fields[plan.index]
            if field is None:
                out.append(NULL)
                continue
            if not isinstance(field, bytes):
                raise _not_text(plan.column, field)
            try:
                out += (VALUE, plan.codec.encode(field))
            except Unholdable:
                out.append(NULL)
                escaped[plan.name] = field
            except (ValueError, LookupError, OverflowError, struct.error):
                reason = f"not the text form of {plan.codec.pg_type}"
                hint = f"please report the type as a bug, or {_DROP}"
                raise EncodeError(plan.column, reason, hint) from None
        if self.escapes:
            out.append(_escape_map(escaped))
        elif escaped:
            raise NoRoomError(next(plan.column for plan in self.plans if plan.name in escaped))
        return b"".join(out)


def _not_text(column: str, field: Field) -> EncodeError:
    if isinstance(field, UnchangedToast):
        return UnchangedToastError(column)
    return EncodeError(column, "not sent in text format", NOT_TEXT)


def _escape_map(escaped: dict[str, bytes]) -> bytes:
    """Return ["null", map of string], which is null if nothing was escaped."""
    if not escaped:
        return NULL
    items = b"".join(prefixed(name.encode()) + prefixed(_utf8(text)) for name, text in escaped.items())
    return VALUE + long(len(escaped)) + items + b"\x00"


def _utf8(text: bytes) -> bytes:
    """Return the text, or the replacement for bytes that are not text."""
    try:
        check(text)
    except Unholdable:
        return no_text(text)
    return text
