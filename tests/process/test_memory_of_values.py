"""Memory for reading and encoding a large value, in bytes per byte of the value."""

import json
import tracemalloc
from collections.abc import Callable, Iterator

import pytest

from bwtui.audit import canonical_values
from bwtui.encode.json import _string
from bwtui.masking import mask_connection
from bwtui.pgoutput.copy_text import unescape_copy_line
from bwtui.pgoutput.tuples import split_tuple
from bwtui.recording.query_syntax import tokens
from bwtui.source.ddl import statements
from bwtui.types import registry
from bwtui.types.codec import Codec
from bwtui.types.registry import TypeInfo, codec_for

SIZE = 40_000
#: Bytes per byte: an encoder copies a value a few times, and ``7,`` becomes ten bytes as a double, which are
#: joined. One object, or one state of re, per character would cost 60 to 130.
MOST = 16
#: A second decoder makes one object per element, which a comparison needs: a word of two letters takes 60.
MOST_OF_OBJECTS = 40


def long(head: bytes, repeated: bytes, tail: bytes = b"") -> bytes:
    return head + repeated * (SIZE // len(repeated)) + tail


ARRAYS = [
    long(b"{", b"7,", b"7}"),
    long(b"{", b"NULL,", b"NULL}"),
    long(b"{", b"2024-01-01,", b"2024-01-01}"),
    long(b'{"', b"a", b'"}'),
    long(b'{"', b'\\"', b'"}'),
    long(b'{"', b'ab\\"', b'"}'),
    long(b'{"', b"\\\\", b'"}'),
    long(b"{", b'"",', b'""}'),
    long(b'{"x",', b"ab,", b"c}"),
    long(b"{", b'"\\"k\\"=>\\"v\\"",', b"NULL}"),
    long(b"{", b"(1,1),(0,0);", b"(1,1),(0,0)}"),
    long(b'{"\\\\x', b"00", b'"}'),
]
HSTORES = [
    long(b'"k"=>"', b"a", b'"'),
    long(b'"k"=>"', b'\\"', b'"'),
    long(b'"', b"\\\\", b'"=>NULL'),
    long(b"", b'"k"=>"v", ', b'"k"=>NULL'),
    long(b"", b'"k"=>NULL, ', b'"k"=>NULL'),
]
OTHERS = [
    long(b"", b"a"),
    long(b"", "€".encode()),
    long("😀".encode(), b'a"'),
    long(b"", b"\xff"),
    long(b"", b'\\"'),
    long(b"", b"9"),
    long(b"\\x", b"ab"),
    long(b"{{", b"1,", b"1}}"),
]
CATALOG = {
    9001: TypeInfo(9001, "hstore", "public"),
    9002: TypeInfo(9002, "_hstore", "public", element_oid=9001),
    9003: TypeInfo(9003, "mood", "public", kind="e"),
}


def codecs() -> Iterator[Codec]:
    """Yield every codec of the registry once: several types may share one."""
    seen = set()
    for oid in (*registry._BUILT_IN, *registry._ARRAYS, *CATALOG):
        for typmod in (-1, (10 << 16 | 2) + 4):
            for check in (False, True):
                codec = codec_for(oid, typmod, CATALOG, check)
                name = json.dumps(codec.avro), check, codec.encode.__qualname__
                if name not in seen:
                    seen.add(name)
                    yield codec


def bytes_a_byte(read: Callable[[], object], size: int) -> float:
    tracemalloc.start()
    try:
        read()
    except ValueError:
        # This is not a text of the type, which is only noticed at its end.
        pass
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    return peak / size


@pytest.mark.parametrize("codec", list(codecs()), ids=lambda codec: codec.pg_type)
def test_a_codec_takes_no_memory_for_each_character(codec: Codec) -> None:
    for text in (*ARRAYS, *HSTORES, *OTHERS):
        cost = bytes_a_byte(lambda text=text: codec.encode(text), len(text))  # type: ignore[misc]
        assert cost < MOST, text[:20]


@pytest.mark.parametrize("text", [*ARRAYS, *HSTORES, *OTHERS], ids=lambda text: repr(text[:12]))
def test_readers_and_writers_of_texts_take_no_memory_for_each_character(text: bytes) -> None:
    line = text.replace(b"\\", b"\\\\") + b"\n"
    mixed = text.replace(b"a", b"\\n") + b"\n"
    payload = b"\0\1t" + len(text).to_bytes(4, "big") + text
    for read in (
        lambda: unescape_copy_line(line),
        lambda: unescape_copy_line(mixed),
        lambda: split_tuple(payload, 0),
    ):
        assert bytes_a_byte(read, len(text)) < MOST
    assert bytes_a_byte(lambda: _string(text), len(text)) < 2 * MOST


@pytest.mark.parametrize(
    ("read", "text"),
    [
        *((canonical_values.elements, text) for text in ARRAYS),
        *((canonical_values.pairs, text) for text in HSTORES),
        *((canonical_values.plain, text) for text in ARRAYS),
    ],
    ids=lambda value: value.__name__ if callable(value) else repr(value[:12]),
)
def test_the_audits_own_decoder_takes_no_more_than_its_objects(
    read: Callable[[str], object], text: bytes
) -> None:
    decoded = text.decode()
    assert bytes_a_byte(lambda: read(decoded), len(text)) < MOST_OF_OBJECTS


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (tokens, long(b"'", b"a", b"'")),
        (tokens, long(b"'", b"''", b"'")),
        (statements, long(b"select '", b"a", b"'")),
        (statements, long(b"select '", b"''", b"'")),
        (statements, long(b"select E'", b"\\'", b"'")),
        (statements, long(b"select E'", b"''", b"'")),
        (statements, long(b'select "', b'""', b'"')),
        (mask_connection, long(b"password='", b"a", b"'")),
        (mask_connection, long(b"password='", b"\\'", b"'")),
        (mask_connection, long(b"password=", b"\\'")),
    ],
    ids=lambda value: value.__name__ if callable(value) else repr(value[:12]),
)
def test_what_people_write_takes_no_memory_for_each_character(
    read: Callable[[str], object], text: bytes
) -> None:
    decoded = text.decode()
    assert bytes_a_byte(lambda: read(decoded), len(text)) < MOST
