"""Chunks of tables, over keys of every type: each row is read once, whatever the order of its key."""

import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace

import psycopg2
import pytest

from bwtui.errors import BwtuiError, RefusedError
from bwtui.relay.backfill.backfill import ChunkRead
from bwtui.relay.rows.chunk_window import SentTransactions, StreamOrigin
from bwtui.source.catalog import key_of, last_key
from bwtui.source.connection import Connection, connect, query
from bwtui.source.raw_stream import StreamServer
from bwtui.source.snapshot import Chunk, ChunkRequest, ChunkTooLarge, read_chunk
from tests.database import Session, session
from tests.integration.type_samples import SAMPLES, SETUP
from tests.waiting import eventually

pytestmark = pytest.mark.services


#: Arrays of types without an order: an index of them can be created, and accepts one row.
UNORDERED = {"box[]", "point[]"}


@pytest.fixture
def writer(database: str) -> Iterator[Session]:
    with session(database) as writer:
        writer.run(SETUP)
        writer.run("set search_path = public, types")
        yield writer


@pytest.fixture
def reader(database: str) -> Iterator[Connection]:
    with closing(connect(database)) as reader:
        yield reader


def chunks(reader: Connection, name: str, rows: int = 2, **asked: object) -> list[Chunk]:
    found: list[Chunk] = []
    while not found or found[-1].last is not None:
        after = found[-1].last if found else None
        of = ChunkRequest("public", name, ("p",), after=after, rows=rows, **asked)  # type: ignore[arg-type]
        found.append(read_chunk(reader, of, lambda *_: None))
        assert len(found) < 1_000
    return found


def origin(writer: Session) -> StreamOrigin:
    identifier = writer.value("select system_identifier::text from pg_control_system()")
    return StreamOrigin(identifier, 1, False)


def lines(found: list[Chunk]) -> list[bytes]:
    return [line for chunk in found for line in chunk.lines]


def test_keys_of_every_type_are_read_once_in_any_order(writer: Session, reader: Connection) -> None:
    writer.run("create publication p for all tables")
    compared = 0
    for number, (kind, samples) in enumerate(SAMPLES.items()):
        try:
            writer.run(f"create table t{number} (k {kind} primary key, n int default 1)")
        except psycopg2.Error:
            # The type can't be indexed, so such a column can't be a key.
            continue
        for sample in samples:
            # Some samples can't be cast from a text, and some are too long for an index.
            with suppress(psycopg2.Error):
                writer.run(f"insert into t{number} values (%s::text::{kind}) on conflict do nothing", sample)
        if kind in UNORDERED:
            with pytest.raises(RefusedError, match="ordering operator"):
                chunks(reader, f"t{number}")
            continue
        found = chunks(reader, f"t{number}")
        count = writer.value(f"select count(*) from t{number}")
        assert len(lines(found)) == len(set(lines(found))) == count, kind
        compared += count
        key = key_of(reader, query(reader, f"select 'public.t{number}'::regclass::oid")[0][0])
        named = (last_key(chunk.relation, key, [line]) for chunk in found for line in chunk.lines)
        keys = [name for name in named if name is not None]
        (again,) = chunks(reader, f"t{number}", keys=keys)
        assert sorted(again.lines) == sorted(lines(found)), kind
    assert compared > 150


def test_a_key_of_several_columns_goes_by_its_index(writer: Session, reader: Connection) -> None:
    writer.run("create publication p for all tables")
    writer.run(
        "create table wide (n int, name citext, mood mood, day date, filler text default 'x',"
        " primary key (name, day, n))"
    )
    writer.run(
        "insert into wide (n, name, mood, day) select i % 7, chr(65 + i % 3) || (i % 2), 'ok',"
        " '2024-01-01'::date + i from generate_series(1, 200) i"
    )
    found = chunks(reader, "wide", 13)
    assert found[0].key == ("name", "day", "n")
    assert len(set(lines(found))) == len(lines(found)) == 200
    part = chunks(reader, "wide", 13, where="n = 3 or false -- all the same")
    assert len(lines(part)) == writer.value("select count(*) from wide where n = 3")


def test_rows_that_are_larger_than_those_before_end_a_chunk(writer: Session, reader: Connection) -> None:
    writer.run("create publication p for all tables")
    writer.run("create table large (id int primary key, body text)")
    writer.run("insert into large select i, repeat('x', 100000) from generate_series(1, 30) i")
    of = ChunkRequest("public", "large", ("p",), rows=1_000, most_bytes=1_000_000)
    first = read_chunk(reader, of, lambda *_: None)
    assert (len(first.lines), first.last, first.high) == (10, ("10",), 0)
    assert reader.closed


def test_a_table_without_a_key_is_read_by_its_pages(writer: Session, reader: Connection) -> None:
    writer.run("create publication p for all tables")
    writer.run("create table bare (n int, filler text)")
    writer.run("insert into bare select i, repeat('x', 500) from generate_series(1, 3000) i")
    writer.run("analyze bare")
    with pytest.raises(RefusedError, match="has no key: its rows would be"):
        chunks(reader, "bare")
    found = chunks(reader, "bare", 500, unkeyed=True)
    assert len(found) > 4
    assert len(set(lines(found))) == len(lines(found)) == 3_000


@pytest.mark.parametrize("how", ["vacuum full bare", "alter table bare alter column n type bigint"])
def test_pages_of_another_file_are_begun_again(writer: Session, reader: Connection, how: str) -> None:
    """After a rewrite into fewer pages, unread rows are where other rows were before."""
    writer.run("create publication p for all tables")
    writer.run("create table bare (n int, text text)")
    writer.run("alter table bare replica identity full")
    writer.run("insert into bare select n, repeat('x', 500) from generate_series(1, 3000) n")
    writer.run("delete from bare where n <= 2000; analyze bare")
    asked = ChunkRequest("public", "bare", ("p",), rows=100, unkeyed=True)
    first = read_chunk(reader, asked, lambda *_: None)
    assert first.last is not None
    far = replace(asked, after=("150", first.last[1]))
    assert lines([read_chunk(reader, far, lambda *_: None)])
    writer.run(how)
    writer.run("analyze bare")
    after: tuple[str, ...] | None = far.after
    found = []
    while after is not None:
        found.append(read_chunk(reader, replace(asked, after=after), lambda *_: None))
        after = found[-1].last
    assert len(set(lines(found))) == 1_000


@pytest.mark.parametrize(
    ("sql", "says"),
    [
        ("drop table items", "table public.items does not exist"),
        ("alter publication p drop table items", "no publication of the relay contains table public.items"),
        ("alter table items rename to others", "table public.items does not exist"),
    ],
)
def test_what_can_not_be_read_is_said(writer: Session, reader: Connection, sql: str, says: str) -> None:
    writer.run("create table items (id int primary key)")
    writer.run("create publication p for table items")
    writer.run(sql)
    with pytest.raises(BwtuiError, match=says):
        chunks(reader, "items")


def test_a_key_that_is_another_one_since_is_refused(writer: Session, reader: Connection) -> None:
    """The last key of a chunk has no place in the order of a different key."""
    writer.run("create publication p for all tables")
    writer.run("create table items (a int primary key, b int not null unique)")
    writer.run("insert into items select n, -n from generate_series(1, 9) n")
    first = read_chunk(reader, ChunkRequest("public", "items", ("p",), rows=3), lambda *_: None)
    writer.run("alter table items drop constraint items_pkey, add primary key (b)")
    for asked in (
        ChunkRequest("public", "items", ("p",), after=first.last, key=first.key),
        ChunkRequest("public", "items", ("p",), keys=[("1", "2")]),
    ):
        with pytest.raises(RefusedError, match="has changed since its rows were requested"):
            read_chunk(reader, asked, lambda *_: None)


def test_what_was_streamed_and_is_not_visible_is_waited_for(database: str, writer: Session) -> None:
    writer.run("create table items (id int primary key, v int)")
    writer.run("insert into items values (1, 1)")
    writer.run("create publication p for all tables")
    writer.run("begin")
    writer.run("update items set v = 2")
    xid = int(writer.value("select pg_current_xact_id()::text")) & 0xFFFFFFFF
    streamed = SentTransactions()
    streamed.begin(origin(writer), ())
    streamed.note(xid)
    reading = ChunkRead(
        StreamServer(database), ChunkRequest("public", "items", ("p",)), streamed, is_first=False
    )
    eventually("what it waits for", lambda: f"transaction {xid} is visible" in reading.detail)
    assert not reading.is_done
    writer.run("commit")
    eventually("the chunk", lambda: reading.is_done)
    assert reading.chunk is not None
    assert reading.chunk.lines == [b"1\t2\n"]


def test_who_runs_since_before_the_relay_is_waited_for_unless_it_waits_for_its_client(
    database: str, writer: Session
) -> None:
    writer.run("create table items (id int primary key)")
    writer.run("create publication p for all tables")
    writer.run("begin")
    xid = int(writer.value("select pg_current_xact_id()::text")) & 0xFFFFFFFF
    streamed = SentTransactions()
    streamed.begin(origin(writer), [xid])
    # The writer is idle in its transaction, so it has not begun to commit.
    idle = ChunkRead(
        StreamServer(database), ChunkRequest("public", "items", ("p",)), streamed, is_first=False
    )
    eventually("the chunk", lambda: idle.chunk is not None)
    asleep = threading.Thread(target=lambda: writer.run("select pg_sleep(1.5)"))
    asleep.start()
    eventually("that it sleeps", lambda: _is_active(database, xid))
    busy = ChunkRead(
        StreamServer(database), ChunkRequest("public", "items", ("p",)), streamed, is_first=False
    )
    eventually("what it waits for", lambda: f"transaction {xid} is visible" in busy.detail)
    asleep.join()
    writer.run("commit")
    eventually("the chunk", lambda: busy.chunk is not None)


def _is_active(database: str, xid: int) -> bool:
    with session(database) as other:
        sql = "select count(*) from pg_stat_activity where state = 'active' and backend_xid::text = %s"
        return bool(other.value(sql, str(xid)))


def test_lists_and_pages_that_are_too_large_are_asked_for_in_parts(
    writer: Session, reader: Connection
) -> None:
    writer.run("create publication p for all tables")
    writer.run("create table large (id int primary key, body text)")
    writer.run("insert into large select i, repeat('x', 100000) from generate_series(1, 30) i")
    keys = [(str(number),) for number in range(1, 31)]
    with pytest.raises(ChunkTooLarge):
        read_chunk(
            reader, ChunkRequest("public", "large", ("p",), keys=keys, most_bytes=1_000_000), lambda *_: None
        )
    assert reader.closed


def test_a_writer_from_before_the_table_joined_is_waited_for(database: str, writer: Session) -> None:
    """The rows that it wrote before are not published, and are only in the chunk."""
    writer.run("create table items (id int primary key)")
    writer.run("create publication p")
    writer.run("begin")
    writer.run("insert into items values (1)")
    with session(database) as other:
        other.run("alter publication p add table items")
    reading = ChunkRead(
        StreamServer(database), ChunkRequest("public", "items", ("p",)), SentTransactions(), is_first=True
    )
    eventually("what it waits for", lambda: "writes to the table" in reading.detail)
    writer.run("commit")
    eventually("the chunk", lambda: reading.chunk is not None)
    assert reading.chunk is not None
    assert reading.chunk.lines == [b"1\n"]


def test_keys_that_the_type_does_not_have_any_more_hide_no_others(
    writer: Session, reader: Connection
) -> None:
    """A label was renamed, or a column got a narrower type since the comparison: no row has these keys."""
    writer.run("create publication p for all tables; create type mood as enum ('good', 'bad', 'so so')")
    writer.run("create table moods (m mood, n int, v int default 1, primary key (n, m))")
    writer.run("insert into moods values ('good', 1), ('bad', 2), ('so so', 3)")
    writer.run("alter type mood rename value 'bad' to 'poor'")
    keys = [
        ("good", "1"),
        ("bad", "2"),
        ("good", "3000000000"),
        ("poor", "2"),
        ("so so", "x"),
        ("so so", "3"),
    ]
    wanted = {b"good\t1\t1\n", b"poor\t2\t1\n", b"so so\t3\t1\n"}
    cases: tuple[tuple[list[tuple[str, str]], set[bytes]], ...] = (
        (keys, wanted),
        (keys[1:2], set()),
        (keys[2:3] * 50 + keys[3:4], {b"poor\t2\t1\n"}),
    )
    for some, there in cases:
        chunk = read_chunk(reader, ChunkRequest("public", "moods", ("p",), keys=some), lambda *_: None)
        assert {line if line.endswith(b"\n") else line + b"\n" for line in chunk.lines} == there
    # A row that can't be read for another reason causes the same error as before.
    writer.run("drop publication p; create publication p for table moods where (1 / (n - 3) < 9)")
    with pytest.raises(RefusedError, match="DivisionByZero"):
        read_chunk(reader, ChunkRequest("public", "moods", ("p",), keys=keys[-1:]), lambda *_: None)
