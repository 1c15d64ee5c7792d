"""Find the codec of a type by its oid.

Built-in types have fixed oids (PostgreSQL source, src/include/catalog/pg_type.dat). For others the relay
reads ``TypeInfo`` from pg_type; a type that is in neither is sent as its text.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from bwtui.types import datetimes, numbers, strings
from bwtui.types.arrays import HSTORE, array_codec
from bwtui.types.codec import Codec
from bwtui.types.datetimes import TIME
from bwtui.types.numbers import MONEY, numeric_codec
from bwtui.types.strings import TEXT_TYPES, text_codec

# No chain of domains is this long, except in a catalog that was read wrongly.
_MAX_DEPTH = 64

# Extension types whose text is their best form; for other extension types this is unknown.
_TEXT_EXTENSIONS = frozenset(("citext", "ltree", "lquery", "ltxtquery"))


@dataclass(frozen=True, slots=True)
class TypeInfo:
    """A row of pg_type.

    ``kind`` is typtype: b base, c composite, d domain, e enum, m multirange, r range, p pseudo.
    ``base_oid`` and ``base_typmod`` are a domain's typbasetype and typtypmod (0 and -1 for others);
    ``element_oid`` is an array's typelem (0 for others); ``delimiter`` is typdelim.
    """

    oid: int
    name: str
    namespace: str
    kind: str = "b"
    base_oid: int = 0
    base_typmod: int = -1
    element_oid: int = 0
    delimiter: str = ","

    @property
    def qualified_name(self) -> str:
        """The name for display: without the schema if that is pg_catalog or public."""
        return self.name if self.namespace in ("pg_catalog", "public") else f"{self.namespace}.{self.name}"


Make = Callable[[int], Codec]


def _fixed(codec: Codec) -> Make:
    return lambda typmod: codec


def _text(form: str, offset: int = 0) -> Make:
    """Return a factory of text codecs; ``{}`` in ``form`` is the typmod minus ``offset``, in parentheses."""
    return lambda typmod: text_codec(form.format(f"({typmod - offset})" if typmod >= offset else ""))


def _with_precision(codec: Codec) -> Make:
    """Return a factory of ``codec`` with the precision in its name: ``timestamp(3) with time zone``."""
    head, _, tail = codec.pg_type.partition(" ")
    return lambda typmod: codec if typmod < 0 else replace(codec, pg_type=f"{head}({typmod}) {tail}")


# Debezium's names for the text form of types that are sent as text.
_CONNECT_NAMES = {
    "json": "io.debezium.data.Json",
    "jsonb": "io.debezium.data.Json",
    "xml": "io.debezium.data.Xml",
    "interval": "io.debezium.time.Interval",
}

_BUILT_IN: dict[int, Make] = {
    **{
        oid: _fixed(text_codec(name, connect_name=_CONNECT_NAMES.get(name, "")))
        for oid, name in TEXT_TYPES.items()
    },
    16: _fixed(numbers.BOOL),
    17: _fixed(strings.BYTEA),
    18: _fixed(strings.CHAR),
    20: _fixed(numbers.INT8),
    21: _fixed(numbers.INT2),
    23: _fixed(numbers.INT4),
    26: _fixed(numbers.OID),
    28: _fixed(numbers.XID),
    29: _fixed(numbers.CID),
    700: _fixed(numbers.FLOAT4),
    701: _fixed(numbers.FLOAT8),
    790: _fixed(MONEY),
    # Without a length, "character" would mean character(1).
    1042: lambda typmod: text_codec("bpchar" if typmod < 4 else f"character({typmod - 4})"),
    1043: _text("character varying{}", 4),
    1082: _fixed(datetimes.DATE),
    1083: _with_precision(TIME),
    1114: _with_precision(datetimes.TIMESTAMP),
    1184: _with_precision(datetimes.TIMESTAMPTZ),
    # The typmod of an interval restricts its fields, which the value shows anyway.
    1186: _fixed(text_codec("interval", connect_name=_CONNECT_NAMES["interval"])),
    1266: _text("time{} with time zone"),
    1560: _text("bit{}"),
    1562: _text("bit varying{}"),
    1700: numeric_codec,
    2950: _fixed(strings.UUID),
    5069: _fixed(numbers.XID8),
}

# The built-in array types: their oids and their elements'.
_ARRAYS = {
    143: 142, 199: 114, 271: 5069, 629: 628, 651: 650, 719: 718, 775: 774, 791: 790, 1000: 16, 1001: 17,
    1002: 18, 1003: 19, 1005: 21, 1006: 22, 1007: 23, 1008: 24, 1009: 25, 1010: 27, 1011: 28, 1012: 29,
    1013: 30, 1014: 1042, 1015: 1043, 1016: 20, 1017: 600, 1018: 601, 1019: 602, 1020: 603, 1021: 700,
    1022: 701, 1027: 604, 1028: 26, 1034: 1033, 1040: 829, 1041: 869, 1115: 1114, 1182: 1082,
    1183: 1083, 1185: 1184, 1187: 1186, 1231: 1700, 1270: 1266, 1561: 1560, 1563: 1562, 2201: 1790,
    2207: 2202, 2208: 2203, 2209: 2204, 2210: 2205, 2211: 2206, 2949: 2970, 2951: 2950, 3221: 3220,
    3643: 3614, 3645: 3615, 3735: 3734, 3770: 3769, 3807: 3802, 3905: 3904, 3907: 3906, 3909: 3908,
    3911: 3910, 3913: 3912, 3927: 3926, 4073: 4072, 4090: 4089, 4097: 4096, 4192: 4191, 5039: 5038,
    6150: 4451, 6151: 4532, 6152: 4533, 6153: 4534, 6155: 4535, 6157: 4536,
}  # fmt: skip

# box is the only built-in type with a different delimiter (typdelim).
_BOX = 603


def is_built_in(oid: int) -> bool:
    """Return whether the type is known without pg_type; the domains of information_schema are not."""
    return oid in _BUILT_IN or oid in _ARRAYS


def codec_for(oid: int, typmod: int, catalog: Mapping[int, TypeInfo], any_bytes: bool = False) -> Codec:
    """Return the codec of a column of this type; ``as_text`` is set if only the text form is known.

    ``any_bytes`` is for databases in SQL_ASCII, whose schemas allow texts that are not UTF-8.
    """
    return _find(oid, typmod, catalog, any_bytes, _MAX_DEPTH)


def _find(oid: int, typmod: int, catalog: Mapping[int, TypeInfo], any_bytes: bool, depth: int) -> Codec:
    make = _BUILT_IN.get(oid)
    if make is not None:
        return _expecting(make(typmod), any_bytes)
    if oid in _ARRAYS:
        element = _ARRAYS[oid]
        return array_codec(_find(element, typmod, catalog, any_bytes, depth), ";" if element == _BOX else ",")
    info = catalog.get(oid)
    if info is None or depth == 0:
        return _expecting(text_codec(f"oid {oid}", as_text=True), any_bytes)
    if info.kind == "d":
        return _find(info.base_oid, info.base_typmod, catalog, any_bytes, depth - 1)
    if info.element_oid:
        return array_codec(_find(info.element_oid, typmod, catalog, any_bytes, depth - 1), info.delimiter)
    return _expecting(_extension(info), any_bytes)


def _extension(info: TypeInfo) -> Codec:
    """Return the codec of a type that is neither built in nor composed of other encoded types."""
    if info.kind == "b" and info.name == "hstore":
        return HSTORE
    # Enums, composites and ranges have a complete text form; for other base types this is unknown.
    is_text = info.kind in "ecrm" or info.name in _TEXT_EXTENSIONS
    return text_codec(info.qualified_name, as_text=not is_text)


def _expecting(codec: Codec, any_bytes: bool) -> Codec:
    return replace(codec, escapes=True) if any_bytes and codec.copies_text else codec
