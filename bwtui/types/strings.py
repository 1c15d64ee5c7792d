"""text, varchar, char(n), name, json, jsonb, xml, enums, and every type that is sent as its text → string.

The bytes are copied unchanged, since `bwtui.pgoutput.transcode` has converted them to UTF-8. But a database
in SQL_ASCII accepts any bytes, one in UTF8 may have some from before it was in UTF8, and others have bytes
that are not a character. Such values use the escape field. json and jsonb stay text, because no Avro type
keeps a number beyond double precision.
"""

from binascii import unhexlify
from dataclasses import replace

from bwtui.types.codec import Codec, InlineCode, Schema, Unholdable
from bwtui.types.varint import NULL, U, prefixed, varint

_CODE = """\
if {f} is None: h{i} = NULL; {f} = b""
else:
    n = len({f})
    h{i} = U[n + n] if n < 8192 else large(n)"""


def _large(size: int) -> bytes:
    return b"\x02" + varint(size + size)


_INLINE = InlineCode(
    _CODE, ("h{i}", "{f}"), {"NULL": NULL, "U": U, "large": _large}, copies=True, compiled="text"
)


def check(text: bytes) -> None:
    """Raise Unholdable for bytes that are not UTF-8."""
    try:
        _ = text.isascii() or text.decode()
    except UnicodeDecodeError:
        raise Unholdable from None


def no_text(raw: bytes) -> bytes:
    r"""Return ``\x`` and the bytes in hexadecimal: their form in the escape field."""
    return b"\\x" + raw.hex().encode()


def _encode(text: bytes) -> bytes:
    check(text)
    return prefixed(text)


def _encode_in_key(text: bytes) -> bytes:
    try:
        return _encode(text)
    except Unholdable:
        # The zero byte, which no PostgreSQL text contains, distinguishes it from an equal text.
        return prefixed(no_text(text) + b"\0")


def text_codec(pg_type: str, avro: Schema = "string", as_text: bool = False, connect_name: str = "") -> Codec:
    """Return the codec that copies PostgreSQL's text."""
    return Codec(
        avro, pg_type, _encode, _INLINE, as_text=as_text, copies_text=True, connect_name=connect_name
    )


def in_key(codec: Codec) -> Codec:
    """Return a text codec for the key, which marks bytes that are not text and so never escapes."""
    return replace(codec, encode=_encode_in_key, escapes=False)


def encode_char(text: bytes) -> bytes:
    """Encode the byte of a "char"."""
    return prefixed(char_text(text))


def char_text(text: bytes) -> bytes:
    r"""Return a "char" above 127 as ``\351``, which PostgreSQL 16 and later write.

    Older versions send the byte unchanged. From a database in a different encoding, `bwtui` receives the
    character in UTF-8: more than one byte, and already text.
    """
    return b"\\%03o" % text[0] if len(text) == 1 and text[0] > 127 else text


CHAR = Codec("string", '"char"', encode_char)
UUID = text_codec("uuid", {"type": "string", "logicalType": "uuid"}, connect_name="io.debezium.data.Uuid")

# Types whose text is their best form, by oid: no Avro type holds them, and their text is unambiguous.
TEXT_TYPES = {
    # Types of the catalog.
    19: "name",
    22: "int2vector",
    24: "regproc",
    27: "tid",
    30: "oidvector",
    1033: "aclitem",
    1790: "refcursor",
    2202: "regprocedure",
    2203: "regoper",
    2204: "regoperator",
    2205: "regclass",
    2206: "regtype",
    2970: "txid_snapshot",
    3220: "pg_lsn",
    3734: "regconfig",
    3769: "regdictionary",
    4089: "regnamespace",
    4096: "regrole",
    4191: "regcollation",
    5038: "pg_snapshot",
    # Text and documents.
    25: "text",
    114: "json",
    142: "xml",
    3614: "tsvector",
    3615: "tsquery",
    3802: "jsonb",
    4072: "jsonpath",
    # Geometry: its floats are written in the shortest exact form.
    600: "point",
    601: "lseg",
    602: "path",
    603: "box",
    604: "polygon",
    628: "line",
    718: "circle",
    # Network addresses.
    650: "cidr",
    774: "macaddr8",
    829: "macaddr",
    869: "inet",
    # Ranges and multiranges, with their brackets.
    3904: "int4range",
    3906: "numrange",
    3908: "tsrange",
    3910: "tstzrange",
    3912: "daterange",
    3926: "int8range",
    4451: "int4multirange",
    4532: "nummultirange",
    4533: "tsmultirange",
    4534: "tstzmultirange",
    4535: "datemultirange",
    4536: "int8multirange",
}


# bytea → bytes. The text form is ``\\x`` and two hexadecimal digits a byte (bytea_output = hex).


def encode_bytea(text: bytes) -> bytes:
    """Encode ``\\x00ff``, including zero bytes."""
    if text[:2] != b"\\x":
        raise ValueError("not in the hex format of bytea")
    return prefixed(unhexlify(memoryview(text)[2:]))


BYTEA = Codec("bytes", "bytea", encode_bytea)
