"""From a type's oid to its codec.

Built-in types have fixed oids (PostgreSQL source, src/include/catalog/pg_type.dat). Of the others the relay
reads ``TypeInfo`` from pg_type; a type that is in neither travels as its text.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bwtui.types import binary, boolean, datetimes, floats, integers
from bwtui.types.codec import Codec
from bwtui.types.numeric import numeric_codec
from bwtui.types.strings import UUID, text_codec

# A domain over a domain over … ends long before this; a catalog that was read badly might not.
_MAX_DEPTH = 64


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
        """The name as people write it: without the schema where that is pg_catalog or public."""
        return self.name if self.namespace in ("pg_catalog", "public") else f"{self.namespace}.{self.name}"


def _length_codec(name: str) -> Callable[[int], Codec]:
    # The typmod of char(n) and varchar(n) is n + 4.
    return lambda typmod: text_codec(f"{name}({typmod - 4})" if typmod >= 4 else name)


def _fixed(codec: Codec) -> Callable[[int], Codec]:
    return lambda typmod: codec


_BUILT_IN: dict[int, Callable[[int], Codec]] = {
    16: _fixed(boolean.BOOL),
    17: _fixed(binary.BYTEA),
    18: _fixed(text_codec('"char"')),
    19: _fixed(text_codec("name")),
    20: _fixed(integers.INT8),
    21: _fixed(integers.INT2),
    23: _fixed(integers.INT4),
    25: _fixed(text_codec("text")),
    26: _fixed(integers.OID),
    28: _fixed(integers.XID),
    29: _fixed(integers.CID),
    114: _fixed(text_codec("json")),
    700: _fixed(floats.FLOAT4),
    701: _fixed(floats.FLOAT8),
    1042: _length_codec("character"),
    1043: _length_codec("character varying"),
    1082: _fixed(datetimes.DATE),
    1114: _fixed(datetimes.TIMESTAMP),
    1184: _fixed(datetimes.TIMESTAMPTZ),
    1700: numeric_codec,
    2950: _fixed(UUID),
    3802: _fixed(text_codec("jsonb")),
}


def codec_for(oid: int, typmod: int, catalog: Mapping[int, TypeInfo]) -> Codec:
    """Return the codec of a column of this type; ``as_text`` is set where only the text form is known."""
    for _ in range(_MAX_DEPTH):
        make = _BUILT_IN.get(oid)
        if make is not None:
            return make(typmod)
        info = catalog.get(oid)
        if info is None or info.kind != "d":
            break
        oid, typmod = info.base_oid, info.base_typmod
    if info is None:
        return text_codec(f"oid {oid}", as_text=True)
    return text_codec(info.qualified_name, as_text=info.kind != "e")
