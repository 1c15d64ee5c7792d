"""``bwtui verify --database``, with a running relay and a table that is written to."""

import json
import re
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest
from confluent_kafka import Producer

from tests.attempts import Attempts, Ended
from tests.database import Session, session
from tests.raw_topic import raw_records
from tests.waiting import eventually

pytestmark = pytest.mark.services

_ROWS = 300
_TABLE = """
create table kinds (
    id int, part text, f4 float4, f8 float8, m money, d date, ts timestamp, tz timestamptz, t time,
    iv interval, j jsonb, u uuid, ba bytea, n numeric, n2 numeric(8,3), b bool, words text[], numbers int[],
    span int4range, c char(5), nothing text, primary key (id, part));
insert into kinds
select g, 'it''s "' || g || '"', g / 3.0, g / 7.0, (g * 12.34)::numeric::money, date '2020-01-01' + g,
       timestamp '2020-01-01' + g * interval '1.5 sec',
       timestamptz '2021-01-01 00:00+02' + g * interval '1 min',
       time '10:00' + g * interval '0.25 sec', g * interval '1 hour', json_build_object('a', g),
       gen_random_uuid(), decode(lpad(to_hex(g), 8, '0'), 'hex'), g / 9.0, g / 9.0, g %% 2 = 0,
       array['x' || g, null, 'a "b" , {c}'], array[g, null, -g], int4range(g, g + 5), 'c' || g, null
  from generate_series(1, %s) g;
update kinds set d = 'infinity', ts = '-infinity', n = 'NaN', f8 = '-0', f4 = 'NaN' where id = 5;
create table unkeyed (a int); insert into unkeyed values (1);
"""


@contextmanager
def relaying(
    attempts: Attempts, database: str, source: Session, *args: str
) -> Iterator["subprocess.Popen[str]"]:
    """Keep a relay running that has completed its snapshot, and yield its process."""
    with attempts.start(database, "--allow-unkeyed", *args) as process:
        try:
            eventually("the relay streams", lambda: source.reader(attempts.name), 60)
            yield process
        finally:
            process.terminate()
            process.communicate(timeout=60)


@contextmanager
def written_to(database: str) -> Iterator[None]:
    """Update, insert and delete rows continuously, in another thread."""
    stop = threading.Event()

    def write() -> None:
        with session(database) as writer:
            turn = 0
            # Without a pause it would leave hundreds of thousands of records for the audit to wait for.
            while not stop.wait(0.005):
                turn += 1
                writer.run(
                    "update kinds set f8 = f8 + 1, words[1] = %s where id = %s", f"é{turn}", turn % 100
                )
                writer.run("delete from kinds where id = %s", 1_000 + turn - 5)
                writer.run("insert into kinds (id, part) values (%s, 'new')", 1_000 + turn)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def verify(attempts: Attempts, database: str, *args: str) -> tuple[Ended, dict[str, Any]]:
    """Run ``bwtui verify --database``; return its exit, and its report if there is one."""
    ended = attempts.command(*arguments(attempts, database), "--json", *args)
    return ended, json.loads(ended.stdout) if ended.stdout else {}


def arguments(attempts: Attempts, database: str) -> list[str]:
    """Return the command that compares the relay's tables with its topics."""
    full = ["verify", "--database", "-d", database, "-s", attempts.name, "-p", attempts.name]
    return [*full, "-b", attempts.services.broker, "-r", attempts.services.schema_registry]


def plant(attempts: Attempts) -> None:
    """Remove a row, change one, and add one, in the topic."""
    topic = f"{attempts.name}.kinds"
    rows: list[tuple[int, bytes, bytes]] = []
    for (_, partition), records in raw_records(attempts.services, [topic]).items():
        newest = {record.key(): record.value() for record in records}
        for key, value in newest.items():
            assert key is not None
            rows += [(partition, key, value)] if value is not None else []
    rows.sort(key=lambda row: row[1])
    producer = Producer({"bootstrap.servers": attempts.services.broker})
    with closing(producer):
        producer.produce(topic, None, rows[0][1], rows[0][0])
        producer.produce(topic, rows[2][2], rows[1][1], rows[1][0])
        # The key's last byte, except for one more in the length before it.
        strange = rows[3][1][:-2] + bytes([rows[3][1][-2] ^ 0x01]) + rows[3][1][-1:]
        producer.produce(topic, rows[3][2], strange, rows[3][0])
        assert not producer.flush(30)


def test_a_table_that_is_written_to(attempts: Attempts, source: Session, database: str) -> None:
    source.run(_TABLE, _ROWS)
    with relaying(attempts, database, source):
        with written_to(database):
            ended, report = verify(attempts, database)
        assert (ended.code, report["verdict"]) == (0, "clean"), ended.stderr or report
        assert report["expected"] >= _ROWS
        assert report["notes"] == ["only missing rows can be found in tables without a key: public.unkeyed"]
        assert report["tables"] == ["public.kinds", "public.unkeyed"]

        plant(attempts)
        ended, report = verify(attempts, database, "--show-values", "--table", r"public\.kinds")
        assert (ended.code, report["verdict"]) == (1, "anomalies")
        assert sorted(one["class"] for one in report["findings"]) == [
            "different_row",
            "extra_key",
            "missing_key",
        ]
        (different,) = (one for one in report["findings"] if one["class"] == "different_row")
        assert {one["field"] for one in different["fields"]} >= {"id", "part", "u"}
        assert set(different["key"]) == {"id", "part"}
        assert all(one["postgresql"] != one["kafka"] for one in different["fields"])
        assert all(None not in (one["partition"], one["offset"]) for one in report["findings"])
        told = attempts.command(*arguments(attempts, database), "--table", r"public\.kinds").stdout
        assert told.startswith("anomalies: 3 (")
        for name in ("different_row", "extra_key", "missing_key"):
            assert re.search(
                rf"\n{name}: 1\n  {attempts.name}\.kinds \d+@\d+ · public.kinds · key id=…", told
            )
        assert "differs: " in told and " → " not in told, "values are masked unless asked for"

        ended, _ = verify(attempts, database, "--table", "nothing")
        assert ended.code == 2
        assert "no table is selected for the comparison" in ended.stderr

    ended, _ = verify(attempts, database)
    assert ended.code == 3
    assert "no relay reads slot" in ended.stderr
    ended, _ = verify(attempts, database, "-s", "another", "--publication", f"bwtui_{attempts.name}")
    assert ended.code == 2
    assert "slot 'another' does not exist" in ended.stderr


def test_both_sides_are_counted_at_one_fence(attempts: Attempts, source: Session, database: str) -> None:
    """Keys inserted or deleted after the fence count on neither side, or on both."""
    source.run("create table a (id serial primary key); insert into a select generate_series(1, 3000)")
    source.run("create table b (id int primary key); insert into b select generate_series(1, 100000)")
    stop = threading.Event()

    def write() -> None:
        with session(database) as writer:
            turn = 0
            while not stop.wait(0.002):
                turn += 1
                writer.run("insert into a values (%s)", 10_000 + turn)
                writer.run("delete from b where id = %s", turn)

    with relaying(attempts, database, source):
        thread = threading.Thread(target=write)
        thread.start()
        try:
            counted = []
            for name in "ab":
                ended, report = verify(attempts, database, "--table", rf"public\.{name}")
                assert (ended.code, report["verdict"]) == (0, "clean"), ended.stderr or report
                counted.append((report["expected"], report["actual"]))
        finally:
            stop.set()
            thread.join()
    assert all(expected == actual for expected, actual in counted), counted


def test_a_relay_that_reconnects_is_waited_for(attempts: Attempts, database: str, source: Session) -> None:
    source.run(_TABLE % _ROWS)
    ended = []
    with relaying(attempts, database, source) as relay:
        relay.send_signal(signal.SIGSTOP)
        source.run("select pg_terminate_backend(%s)", source.reader(attempts.name))
        source.wait_released(attempts.name)
        thread = threading.Thread(target=lambda: ended.append(verify(attempts, database)[0]))
        thread.start()
        temporary = (
            "select count(*) from pg_replication_slots where temporary and database = current_database()"
        )
        eventually("the audit has a fence", lambda: source.value(temporary))
        relay.send_signal(signal.SIGCONT)
        thread.join()
    assert [(one.code, one.stderr) for one in ended] == [(0, "")]


def test_a_relay_that_can_not_connect_again_is_named(
    attempts: Attempts, database: str, source: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    role = f"relay_{attempts.name}"
    source.run(f"create role {role} login replication password 'x'; create table t (id int primary key)")
    source.run(f"alter table t owner to {role}")
    source.run(f"grant create on database {urlsplit(database).path[1:]} to {role}")
    here = urlsplit(database)
    monkeypatch.setattr("bwtui.verify.database._RECONNECT_SECONDS", 0.5)
    as_role = here._replace(netloc=f"{role}:x@{here.hostname}:{here.port}").geturl()
    with relaying(attempts, as_role, source):
        # A connection limit does not apply to walsenders.
        source.run(f"alter role {role} nologin")
        source.run("select pg_terminate_backend(%s)", source.reader(attempts.name))
        source.wait_released(attempts.name)
        ended = attempts.command_here(*arguments(attempts, database))
        source.run(f"alter role {role} login")
        assert ended.code == 3
        assert f"relay {attempts.name} is reconnecting to PostgreSQL" in ended.stderr
    source.run(f"drop owned by {role} cascade; drop role {role}")
