"""The encoder's description of a type: its Avro schema, a plain encoder, and possibly code to inline.

A codec converts PostgreSQL's text form of a value to the Avro binary of the type ``T`` in a column's union
``["null", T]``, without the byte for the branch.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

# An Avro schema as parsed from JSON.
Schema = str | dict[str, Any]
Encode = Callable[[bytes], bytes]


class Unholdable(ValueError):
    """The Avro type can't hold the value; its text form is sent in the record's last field instead."""


@dataclass(frozen=True, slots=True)
class InlineCode:
    """Statements that encode the variable ``{f}`` inside a generated function, including the branch byte.

    ``{i}`` is a number that is unique to the column, for further variables. ``parts`` are the expressions
    whose bytes, joined, are the field. ``code`` must also set them for None, must not change ``{f}`` unless
    it is a part, and may raise TypeError, ValueError, LookupError or OverflowError for anything that it does
    not handle: then the plain encoder encodes the row. ``names`` are the globals that the code uses.
    ``copies`` means that ``{f}`` is copied, and so must be UTF-8; ``code`` sets it to b"" for None.
    ``compiled`` names the equivalent in `bwtui.encode.compiled_encoders`; ``scale`` is the number of a
    decimal's places after the point.
    """

    code: str
    parts: tuple[str, ...]
    names: Mapping[str, object]
    copies: bool = False
    compiled: str = ""
    scale: int = 0


@dataclass(frozen=True, slots=True)
class Codec:
    """The encoding of one PostgreSQL type, with its type modifier, in Avro.

    ``encode`` raises Unholdable only if ``escapes`` is set, or ``copies_text`` for bytes that are not text,
    and ValueError for text that is not valid for the type. ``as_text`` means that bwtui only knows the type's
    text form. ``pg_type`` is the type's name for display.
    """

    avro: Schema
    pg_type: str
    encode: Encode
    inline: InlineCode | None = None
    escapes: bool = False
    as_text: bool = False
    copies_text: bool = False
    #: Debezium's name of the type for Kafka Connect's sinks; for an array, that of its elements.
    connect_name: str = ""
