"""What a type is to the encoder: its Avro schema, a plain encoder, and perhaps code to inline.

A codec turns PostgreSQL's text form of a value into the Avro binary of the type ``T`` of a column's union
``["null", T]``, without the byte that chooses the branch.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

# An Avro schema as JSON would hold it.
Schema = str | dict[str, Any]
Encode = Callable[[bytes], bytes]


class Unholdable(ValueError):
    """The Avro type can't hold the value, so that it leaves by its text form in the record's last field."""


@dataclass(frozen=True, slots=True)
class Inline:
    """Statements that encode the variable ``{f}`` inside a generated function, branch byte included.

    ``{i}`` is a number of the column's own, for further variables. ``parts`` are the expressions whose bytes,
    joined, are the field. ``code`` must set them for None as well, must leave ``{f}`` alone unless it's a
    part, and may raise TypeError, ValueError, LookupError or OverflowError for whatever it does not know:
    the row then takes the plain encoder. ``names`` are the globals that the code uses. ``copies`` says that
    ``{f}`` is copied, and so must be UTF-8; ``code`` makes it b"" for None. ``compiled`` names what makes the
    same bytes in `bwtui.encode.compiled`, with the places behind a decimal's point.
    """

    code: str
    parts: tuple[str, ...]
    names: Mapping[str, object]
    copies: bool = False
    compiled: str = ""
    scale: int = 0


@dataclass(frozen=True, slots=True)
class Codec:
    """One PostgreSQL type, with its type modifier, on the way to Avro.

    ``encode`` raises Unholdable only when ``escapes`` is set, or ``copies_text`` for bytes that are no text,
    and ValueError for text that is not of the type. ``as_text`` says that bwtui knows no better form than
    PostgreSQL's text. ``pg_type`` is the type as people write it.
    """

    avro: Schema
    pg_type: str
    encode: Encode
    inline: Inline | None = None
    escapes: bool = False
    as_text: bool = False
    copies_text: bool = False
    #: What Kafka Connect's sinks know the type by, as Debezium names it; of an array, its elements'.
    connect_name: str = ""
