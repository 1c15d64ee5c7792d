"""``bwtui verify --database`` of tables of every shape: correct ones first, then differing ones."""

import io
import json
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import fastavro
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from confluent_kafka.schema_registry import SchemaRegistryClient

from tests.attempts import Attempts
from tests.database import Session, session
from tests.fresh_topic import create_topic
from tests.integration.test_verify_database import arguments, relaying, verify
from tests.pipeline.messages import Transactions
from tests.raw_topic import raw_records
from tests.waiting import eventually

pytestmark = pytest.mark.services

_KEYS = """
create domain share as float8;
create table "odd ""names" ("a b" int, "%" text, "c""d" share, primary key ("c""d", "%"));
insert into "odd ""names"
select i, E'x\t''%' || i || E'\\\\"\n\x01\x7fé', i / 7.0 from generate_series(1, 50) i;
create table floats (f float8, g float4, primary key (g, f));
insert into floats
select (random() - 0.5) * 10 ^ i, (random() - 0.5) * 10 ^ (i / 10) from generate_series(-300, 300) i;
insert into floats values ('nan', 'infinity'), (1e15, 1e6), (123456789012345, 123456), (0.0001, 0.00001),
       (1, 1);
create table arrays (a text[], b int[], primary key (a, b));
insert into arrays values ('{}', '{}'), ('{"",NULL,"NULL"}', '{1,2}'), ('{{a,b},{c,d}}', '[0:1]={7,8}'),
       ('{"{x}","a,b","\\\\"}', '{-1}');
create table moneys (m money primary key, d date, t timestamptz, n numeric);
insert into moneys values (-12.34, '0044-03-15 BC', '294276-12-31 23:59:59.999999+00', 'NaN'),
       (1234.5, null, null, 1.50);
create extension hstore;
create table moments (d date, t timestamptz, c time, s timestamp, x xid8, h hstore, n int,
                      primary key (d, t, c, s, x, h));
insert into moments values ('2024-05-06', '2024-05-06 07:08:09.12+02', '07:08', '2024-05-06', '1', 'a=>1', 1),
       ('infinity', '-infinity', '24:00', '0044-03-15 BC', '18446744073709551615', '"\\""=>null', 2),
       ('10000-01-01', 'infinity', '00:00', 'infinity', '0', '', 3),
       ('2024-05-07', 'now', '1:00', 'now', '2', '', 4);
create extension citext;
create table equal (n numeric, f float8, i interval, s citext, primary key (n, f, i, s));
insert into equal values (1.0, 0, '1 day', 'a'), (2.0, 0, '2 days', 'b');
create table parent (id int primary key, v text); create table child (extra int) inherits (parent);
alter table child add primary key (id);
insert into parent values (1, 'p'); insert into child values (2, 'c', 3);
create table parts (id int, at date, v text, primary key (id, at)) partition by range (at);
create table parts1 partition of parts for values from ('2020-01-01') to ('2021-01-01');
create table parts2 partition of parts for values from ('2021-01-01') to ('2022-01-01');
insert into parts select i, date '2020-06-01' + i, 'v' from generate_series(1, 400) i;
create type pair as (a int, b text); create domain couple as pair;
create table pairs (k pair primary key, p pair, c couple);
insert into pairs values ((null, 'x'), (null, null), (1, null)), ((1, ''), null, null),
       ((2, null), (1, 'y'), (null, 'z'));
create table altered (id int primary key, gone int, v text);
insert into altered select i, i, 'v' || i from generate_series(1, 20) i;
"""
_LATER = """
alter table altered drop column gone; alter table altered add column new int;
update altered set new = 1 where id = 1;
update parts set at = date '2021-02-03' where id = 1;
update "odd ""names" set "a b" = 0, "c""d" = 1e-7 where "a b" = 3;
delete from floats where f = 1;
update moments set d = '-infinity', n = 5 where n = 2; update moments set n = 6 where n = 3;
delete from moments where n = 1;
update equal set n = 1.00, f = '-0', i = '24 hours', s = 'A' where n = 1;
update equal set n = 2.00 where n = 2;
"""


def test_tables_of_every_shape(attempts: Attempts, source: Session, database: str) -> None:
    source.run(_KEYS)
    with relaying(attempts, database, source):
        source.run(_LATER)
        ended, report = verify(attempts, database)
        found = [(one["table"], one["class"], one["fields"]) for one in report.get("findings", [])]
        assert (ended.code, found, ended.stderr) == (0, [], "")
        assert len(report["tables"]) == 11
        # The audit leaves no slot once the server sees that its sessions ended.
        left = "select count(*) from pg_replication_slots where temporary"
        eventually("no slot is left", lambda: source.value(left) == 0)


def test_json_and_placeholders(attempts: Attempts, source: Session, database: str) -> None:
    source.run("""
        create table doc (id int primary key, n numeric, f float8, b bool, m money, s text, big text);
        alter table doc alter column big set storage external;
        insert into doc select i, i / 3.0, i / 3.0, i % 2 = 0, i, 's"' || i, repeat('x', 9000)
          from generate_series(1, 20) i""")
    with relaying(attempts, database, source, "-f", "json", "--toast", "placeholder"):
        source.run("update doc set n = 1 where id = 7")
        ended, report = verify(attempts, database)
        assert (ended.code, report["findings"]) == (0, [])
        assert report["notes"] == [
            "1 rows have placeholders for unchanged TOAST values, which were not compared"
        ]
        topic = f"{attempts.name}.doc"
        ((place, key, value),) = [
            (place, key, one.value())
            for place, records in raw_records(attempts.services, [topic]).items()
            for one in records
            if b'"id": 5' in (key := one.key() or b"")
        ]
        assert value is not None
        with closing(Producer({"bootstrap.servers": attempts.services.broker})) as producer:
            producer.produce(topic, value.replace(b'"s\\"5"', b'"s5"'), key, place[1])
            assert not producer.flush(30)
        ended, report = verify(attempts, database)
        fields = [[one["field"] for one in finding["fields"]] for finding in report["findings"]]
        assert (ended.code, fields) == (1, [["s"]])


def test_an_open_transaction_decides_nothing(
    attempts: Attempts, source: Session, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records after the open transaction are not visible, and so not missing; once it has ended, all are."""
    source.run("create table t (id int primary key); insert into t values (1)")
    topic, broker = f"{attempts.name}.t", {"bootstrap.servers": attempts.services.broker}
    admin = AdminClient({**broker})
    create_topic(admin, NewTopic(topic, 1, 1))
    with relaying(attempts, database, source):
        eventually("the row is there", lambda: any(raw_records(attempts.services, [topic]).values()))
        transactions = Transactions(broker, topic)
        transactions.write("stranger")
        source.run("insert into t values (2)")
        # At every fence it waits for the transaction's end, which happens later here.
        monkeypatch.setattr("bwtui.verify.folding._PATIENCE_SECONDS", 1.0)
        ended = attempts.command_here(*arguments(attempts, database), "--json")
        report = json.loads(ended.stdout)
        assert (ended.code, report["verdict"]) == (3, "indeterminate"), ended.stderr
        transactions.producer.abort_transaction(30)
        ended, report = verify(attempts, database)
        assert (ended.code, report["verdict"]) == (0, "clean"), report


@pytest.fixture
def unkeyed(attempts: Attempts, source: Session, database: str) -> Iterator[Any]:
    """A relay of an unkeyed table with rows that are the same."""
    source.run(
        "create table log (a int, t text); insert into log select i % 3, null from generate_series(1, 9) i"
    )
    source.run("create table full_log (a int); alter table full_log replica identity full")
    source.run("insert into full_log select generate_series(1, 9)")
    with relaying(attempts, database, source):
        source.run("insert into log values (7, 'x'); update full_log set a = 10 where a = 1")
        source.run("delete from full_log where a = 2")
        yield


@pytest.mark.usefixtures("unkeyed")
def test_tables_without_a_key(attempts: Attempts, source: Session, database: str) -> None:
    ended, report = verify(attempts, database)
    assert (ended.code, report["verdict"]) == (0, "clean"), ended.stderr or report
    assert report["tables"] == ["public.full_log", "public.log"]
    assert report["notes"] == [
        "only missing rows can be found in tables without a key: public.full_log, public.log; their topics"
        " have 2 more rows than the tables: rows that were deleted, changed or sent again"
    ]
    # A topic that has every row of its table may have others as well.
    assert (report["proven"], report["complete"]) == (["public.log"], ["public.full_log", "public.log"])
    # An update that is not published is not required in the topic.
    source.run("update log set t = 'y' where t = 'x'")
    ended, report = verify(attempts, database)
    assert (ended.code, report["verdict"]) == (3, "indeterminate")
    assert [(one["table"], one["class"]) for one in report["findings"]] == [("public.log", "indeterminate")]
    assert report["expected"] == 18


def test_rows_without_a_key_that_are_missing(attempts: Attempts, source: Session, database: str) -> None:
    source.run("create table full_log (a int); alter table full_log replica identity full")
    source.run("insert into full_log select i / 4 from generate_series(0, 8) i")
    with relaying(attempts, database, source, "--skip-snapshot"):
        source.run("insert into full_log values (0), (5)")
        ended, report = verify(attempts, database, "--show-values")
    assert (ended.code, report["classes"]["missing_row"]) == (1, 9)
    assert sorted((one["key"]["a"], one["note"]) for one in report["findings"]) == [
        *[("0", "5 in the table, 1 in the topic")] * 4,
        *[("1", "4 in the table, 0 in the topic")] * 4,
        ("2", "1 in the table, 0 in the topic"),
    ]


def test_a_row_that_is_written_to_all_the_time(attempts: Attempts, source: Session, database: str) -> None:
    """Its latest record is always newer than the table's row; one of those before it is the row."""
    source.run("create table t (id int primary key, n int); insert into t values (1, 0), (2, 0)")
    stop = threading.Event()

    def write() -> None:
        with session(database) as writer:
            while not stop.is_set():
                writer.run("update t set n = n + 1 where id = 1")

    with relaying(attempts, database, source):
        thread = threading.Thread(target=write)
        thread.start()
        try:
            ended, report = verify(attempts, database)
        finally:
            stop.set()
            thread.join()
    assert (ended.code, report["verdict"]) == (0, "clean"), report


def test_a_null_for_a_composite_with_a_null_in_it(attempts: Attempts, source: Session, database: str) -> None:
    source.run("create type pair as (a int, b text); create table t (id int primary key, p pair)")
    source.run("insert into t values (1, (null, 'x'))")
    with relaying(attempts, database, source):
        topic = f"{attempts.name}.t"
        found = raw_records(attempts.services, [topic])
        ((place, record),) = [(place, one) for place, records in found.items() for one in records]
        with (
            closing(SchemaRegistryClient({"url": attempts.services.schema_registry})) as registry,
            closing(Producer({"bootstrap.servers": attempts.services.broker})) as producer,
        ):
            value = record.value()
            assert value is not None
            schema = registry.get_schema(int.from_bytes(value[1:5], "big")).schema_str
            assert schema is not None
            forged = io.BytesIO(value[:5])
            forged.seek(5)
            fastavro.schemaless_writer(forged, json.loads(schema), {"id": 1, "p": None})
            producer.produce(topic, forged.getvalue(), record.key(), place[1])
            assert not producer.flush(30)
        ended, report = verify(attempts, database)
        told = [(one["class"], [told["field"] for told in one["fields"]]) for one in report["findings"]]
        assert (ended.code, told) == (1, [("different_row", ["p"])])


def test_a_topic_that_is_not_there(attempts: Attempts, source: Session, database: str) -> None:
    """A table in a different schema has a different topic, and its rows are sent there."""
    source.run("create table t (id int primary key); insert into t values (1)")
    source.run("create table u (id int primary key); insert into u values (1), (2)")
    source.publish_all(attempts.name)
    with relaying(attempts, database, source):
        source.run(
            "create schema other; alter table u set schema other; create table later (id int primary key)"
        )
        # Until then they are missing there.
        eventually("its rows", lambda: verify(attempts, database)[0].code == 0)
        _, report = verify(attempts, database)
        assert report["notes"] == [
            f"topic {attempts.name}.later does not exist, so all rows of its table are missing"
        ]
        assert verify(attempts, database, "--table", r"public\.later")[0].code == 2


def test_a_table_that_gets_a_key(attempts: Attempts, source: Session, database: str) -> None:
    """A record without a key sets no key's state: a reader of keys lacks the row until it is sent again."""
    # Otherwise its updates are not published, since it has no key at first.
    source.run("create table late (a int, b text); alter table late replica identity full")
    source.run("insert into late select i, 'x' from generate_series(1, 3) i")
    with relaying(attempts, database, source):
        source.run("alter table late add primary key (a)")
        source.run("insert into late values (4, 'x'); update late set b = 'y' where a = 1")
        ended, report = verify(attempts, database, "--show-values")
        found = [(one["class"], one["key"], one["note"]) for one in report["findings"]]
        note = "the row was sent before the table had this key"
        assert (ended.code, found) == (1, [("missing_key", {"a": key}, note) for key in "23"])
        assert report["balance"]["actual"]["rows"] == 2
        assert report["notes"] == [
            f"3 records of {attempts.name}.late have no key, so they can't be the latest value of "
            "a key: they are from before the table had one, or from a different producer"
        ]
        source.run("update late set b = 'z'")
        ended, report = verify(attempts, database)
        assert (ended.code, report["verdict"], len(report["notes"])) == (0, "clean", 1)


def test_a_table_whose_key_changes(attempts: Attempts, source: Session, database: str) -> None:
    """Keys of different columns differ even if types and values are equal; then the key is dropped."""
    source.run('create table swap (a int primary key, "b b" int not null unique)')
    source.run("insert into swap values (1, 2), (2, 1), (3, 3)")
    # A topic that the relay creates for a keyed table is compacted, and accepts no record without a key.
    broker = {"bootstrap.servers": attempts.services.broker}
    create_topic(AdminClient({**broker}), NewTopic(f"{attempts.name}.swap", 1, 1))
    with relaying(attempts, database, source):
        source.run('alter table swap drop constraint swap_pkey, add primary key ("b b")')
        source.run("insert into swap values (4, 4); delete from swap where a = 3")
        ended, report = verify(attempts, database, "--show-values")
        found = [(one["class"], one["key"], one["note"]) for one in report["findings"]]
        other = "its key has different columns than the table's key"
        sent = "the row was sent before the table had this key"
        assert (ended.code, found) == (
            1,
            [("extra_key", {"a": key}, other) for key in "123"]
            + [("missing_key", {"b b": key}, sent) for key in "12"],
        )
        told = attempts.command(*arguments(attempts, database)).stdout
        assert f"swap · key a=… · {other}" in " ".join(told.replace("public.", "").split())
        # Without a key, it is enough that the topic has had the row.
        source.run("alter table swap drop constraint swap_pkey; alter table swap replica identity full")
        source.run("insert into swap values (5, 5); update swap set a = 6 where a = 4")
        ended, report = verify(attempts, database)
        assert (ended.code, report["verdict"], report["actual"]) == (0, "clean", 6), ended.stderr or report


def test_what_alter_table_explains(attempts: Attempts, source: Session, database: str) -> None:
    """A record from before ALTER TABLE still differs, and the report says which statement explains it."""
    source.run("create table t (id int primary key, gone text, v text)")
    source.run("insert into t select i, 'former', 'v' from generate_series(1, 4) i")
    attempts.succeed(database)
    topic, former = f"{attempts.name}.t", list[tuple[int, bytes | None, bytes | None]]()
    for (_, partition), records in raw_records(attempts.services, [topic]).items():
        former += [(partition, one.key(), one.value()) for one in records]
    source.run("alter table t drop column gone; alter table t add more int default 7")
    source.run("alter table t add gone text; update t set more = 8 where id = 2")
    source.run("update t set gone = 'new' where id = 3; update t set v = 'w' where id = 4")
    with relaying(attempts, database, source):
        # The topic is right now, whether or not the relay has closed the gap already.
        source.run("update t set v = v")
        ended, report = verify(attempts, database)
        assert (ended.code, report.get("findings")) == (0, []), ended.stderr
        with closing(Producer({"bootstrap.servers": attempts.services.broker})) as producer:
            for partition, key, value in former:
                producer.produce(topic, value, key, partition)
            assert not producer.flush(30)
        ended, report = verify(attempts, database, "--show-values")
        told = attempts.command(*arguments(attempts, database)).stdout
    added = "ADD COLUMN explains more: earlier rows got its default without a message"
    again = "DROP COLUMN and ADD COLUMN may explain gone: earlier rows lost its value without a message"
    assert (ended.code, report["verdict"]) == (1, "anomalies")
    assert [(one["class"], one["key"]["id"], one["note"]) for one in report["findings"]] == [
        ("different_row", "1", f"{added}; {again}"),
        ("different_row", "2", f"{again}; no ALTER TABLE explains more"),
        ("different_row", "3", f"{added}; no ALTER TABLE explains gone"),
        ("different_row", "4", f"{added}; {again}; no ALTER TABLE explains v"),
    ]
    assert added in " ".join(told.split())
