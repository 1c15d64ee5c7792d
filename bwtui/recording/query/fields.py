"""The fields of a query: their names, types and operators."""

from dataclasses import dataclass
from typing import Literal, cast, get_args

from bwtui.recording.change import DeliveryState, Operation

FieldKind = Literal["table", "text", "words", "whole", "lsn", "time", "columns", "switch", "row", "column"]
#: The row of a change in which a column is looked up.
Side = Literal["before", "after", "key"]

SIDES: tuple[Side, ...] = get_args(Side)
WITHOUT = ("dropped", "superseded", "unkeyed", "truncated")

EQUAL = ("=", "!=", "in")
MATCHING = (*EQUAL, "~", "!~")
ORDERED = (*EQUAL, "<", "<=", ">", ">=")
ALL = (*ORDERED, "~", "!~")


@dataclass(frozen=True, slots=True)
class FieldName:
    """A field that a query can name."""

    name: str
    kind: FieldKind
    help: str
    operators: tuple[str, ...] = ALL
    #: The allowed values of a field of kind ``words``.
    words: tuple[str, ...] = ()
    #: True if each message of a change has its own value.
    of_message: bool = False


FIELDS: tuple[FieldName, ...] = (
    FieldName("table", "table", "orders, or with its schema: public.orders", MATCHING),
    FieldName("schema", "text", "the table's schema"),
    FieldName("op", "words", "the operation", MATCHING, get_args(Operation)),
    FieldName("lsn", "lsn", "the transaction's commit LSN: 0/1A2B", ORDERED),
    FieldName("ordinal", "whole", "the change's number within its transaction", ORDERED),
    FieldName("xid", "whole", "the transaction's id", ORDERED),
    FieldName("position", "whole", "the change's number within the recording", ORDERED),
    FieldName("time", "time", "when the transaction was committed; also commit_time", ORDERED),
    FieldName("commit_time", "time", "the same as time", ORDERED),
    FieldName("received", "time", "when the relay recorded it", ORDERED),
    FieldName("topic", "text", "the message's topic", of_message=True),
    FieldName("partition", "whole", "the message's partition", ORDERED, of_message=True),
    FieldName("offset", "whole", "the message's offset", ORDERED, of_message=True),
    FieldName(
        "state", "words", "the message's delivery state", MATCHING, get_args(DeliveryState), of_message=True
    ),
    FieldName("key", "column", "the message's key as text; key.column: one of its columns", of_message=True),
    FieldName(
        "before", "row", "the old row, as far as PostgreSQL sent it; before.column: one of its columns"
    ),
    FieldName("after", "row", "the new row; after.column: one of its columns"),
    FieldName("changed", "columns", "a column whose old and new values are known and differ", EQUAL),
    FieldName("repeat", "switch", "whether the recording already had this change before", EQUAL),
    FieldName("without", "words", "why there is no message", MATCHING, WITHOUT),
)
BY_NAME = {field.name: field for field in FIELDS}


@dataclass(frozen=True, slots=True)
class FieldRef:
    """A field as a query names it; ``column`` is set for ``before.column`` and the like."""

    field: FieldName
    column: str | None = None

    @property
    def side(self) -> Side:
        """The row that its column is in."""
        return cast(Side, self.field.name)

    @property
    def kind(self) -> FieldKind:
        """The type of its values."""
        return "column" if self.column is not None else self.field.kind

    @property
    def operators(self) -> tuple[str, ...]:
        """The operators that it supports."""
        return ALL if self.kind == "column" else self.field.operators

    @property
    def shown(self) -> str:
        """Its name in error messages."""
        return self.field.name if self.column is None else f"{self.field.name}.{self.column}"
