"""Every server encoding: our UTF-8 equals PostgreSQL's, character for character."""

from contextlib import closing
from urllib.parse import urlsplit

import psycopg2
import pytest

from bwtui.errors import ConnectionFailed
from bwtui.source.connection import connect, decoder_of, query
from bwtui.source.encoding import decoder
from tests.fix_sandbox import drop_database

pytestmark = pytest.mark.services

_SINGLE = [
    *(f"LATIN{number}" for number in range(1, 11)),
    *(f"WIN{number}" for number in (866, 874, *range(1250, 1259))),
    *("KOI8R", "KOI8U", "ISO_8859_5", "ISO_8859_6", "ISO_8859_7", "ISO_8859_8"),
]
_MULTIPLE = {
    # Characters of one, two and three bytes; invalid bytes, and characters with two encodings.
    "EUC_JP": ([b"\xc6\xfc\xcb\xdc", b"\x8e\xb1", b"\x8f\xb0\xa1", b"\xa2\xc0"], [b"\xa9\xa1", b"\xad\xfc"]),
    "EUC_CN": ([b"\xd6\xd0\xb9\xfa"], [b"\xfe\xfe", b"\x80"]),
    "EUC_KR": ([b"\xc7\xd1\xb1\xdb", b"\xa2\xe8"], [b"\xfe\xfe"]),
    "EUC_TW": ([b"\xc4\xe3", b"\x8e\xa2\xa1\xa1"], [b"\x8e\xa1\xa1\xa1", b"\xfe\xfe"]),
    # Two code points are one character; its second part alone must not be taken for it.
    "EUC_JIS_2004": ([b"\xc6\xfc", b"\xa4\xf7", b"\x8f\xa1\xa1"], [b"\xab\xda", b"\x8e\xff"]),
}


def test_of_one_byte(database: str) -> None:
    """All bytes above ASCII, against PostgreSQL's own answer for each."""
    with closing(connect(database)) as connection, connection.cursor() as cursor:
        for encoding in _SINGLE:
            decode = decoder(encoding, database, lambda sql: query(connection, sql))
            assert decode is not None
            for number in range(128, 256):
                raw = bytes([number])
                try:
                    cursor.execute("select pg_catalog.convert(%s, %s, 'UTF8')", (raw, encoding))
                    wanted = bytes(cursor.fetchall()[0][0])
                except psycopg2.errors.UntranslatableCharacter:
                    wanted = None
                assert decode(raw) == wanted, (encoding, raw)
                assert decode(b"a" + raw) == (None if wanted is None else b"a" + wanted)


@pytest.mark.parametrize("encoding", _MULTIPLE)
def test_of_more_bytes(database: str, encoding: str) -> None:
    """Every character is restored, alone or not, and no two are the same."""
    good, bad = _MULTIPLE[encoding]
    with closing(connect(database)) as connection, connection.cursor() as cursor:
        decode = decoder(encoding, database, lambda sql: query(connection, sql))
        assert decode is not None
        pairs = [bytes((i, j)) for i in range(128, 256) for j in range(128, 256)]
        raws = [*pairs, *(b"\x8f" + pair for pair in pairs)]
        found = {raw: text for raw in raws if (text := decode(raw)) is not None}
        assert len(found) > 5_000
        assert len(set(found.values())) == len(found)
        joined = b"a".join([*found, *good])
        cursor.execute("select pg_catalog.convert(%s, %s, 'UTF8')", (joined, encoding))
        wanted = bytes(cursor.fetchall()[0][0])
        assert decode(joined) == wanted
        cursor.execute("select pg_catalog.convert(%s, 'UTF8', %s)", (wanted, encoding))
        assert bytes(cursor.fetchall()[0][0]) == joined
        assert [decode(b"a" + raw + b"b") for raw in bad] == [None] * len(bad)


@pytest.mark.parametrize("encoding", ["UTF8", "SQL_ASCII"])
def test_bytes_are_taken_as_they_are(encoding: str) -> None:
    assert decoder(encoding, "18", lambda sql: []) is None


def test_encodings_that_python_does_not_know(database: str) -> None:
    with closing(psycopg2.connect(database)) as owner, owner.cursor() as cursor:
        owner.autocommit = True
        for encoding in ("EUC_TW", "MULE_INTERNAL"):
            name = f"{urlsplit(database).path.strip('/')[-40:]}_{encoding.lower()}"
            cursor.execute(f"create database {name} template template0 encoding '{encoding}' locale 'C'")
            dsn = urlsplit(database)._replace(path=f"/{name}").geturl()
            if encoding == "EUC_TW":
                with closing(connect(dsn)) as connection:
                    assert query(connection, "select '你'::text") == [("你",)]
                    decode = decoder_of(connection)
                    assert decode is not None and decode(b"\xc4\xe3") == "中".encode()
            else:
                with pytest.raises(ConnectionFailed, match=r"between .* is not supported") as refused:
                    connect(dsn)
                assert refused.value.hint == "move the data into a database with ENCODING 'UTF8'"
            drop_database(owner, name)
