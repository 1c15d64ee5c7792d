"""--namespace and --connect-names: names in schemas in addition to types, for topics new and old."""

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient

from tests.attempts import Attempts
from tests.database import Session
from tests.decoded_topic import decoded_avro, latest
from tests.integration.test_schema_changes import set_rule
from tests.integration.test_verify_database import relaying, verify
from tests.raw_topic import raw_messages

pytestmark = pytest.mark.services

_ROW = """
    'fc3b2bd9-8e4e-4f14-b4ba-2bd0a1fa3b33', '2026-01-31 10:15:30.5', '2026-01-31 10:15:30.5+00',
    '10:15:30.25', '2026-01-31', '{"a": 1}', '1 mon 2 days -3 s', 12.5, array['10:15'::time, null],
    array['{}'::jsonb]"""


@pytest.fixture
def source(database: str) -> Iterator[Session]:
    """A session on a database with one table of the types that Connect has names for, and a row."""
    with closing(Session(database)) as opened:
        opened.run(
            "create table order_items (id uuid primary key, at timestamp, made timestamptz, opens time,"
            " day date, doc jsonb, lasts interval, price numeric(10, 2), times time[], docs jsonb[])"
        )
        opened.run(f"insert into order_items values ({_ROW})")
        yield opened


def schemas(attempts: Attempts, table: str = "order_items") -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the newest schemas of a table's key and value."""
    with closing(SchemaRegistryClient({"url": attempts.services.schema_registry})) as registry:
        newest = [
            registry.get_latest_version(f"{attempts.name}.{table}-{part}").schema.schema_str
            for part in ("key", "value")
        ]
    key, value = (json.loads(text or "") for text in newest)
    return key, value


def connect_names(value: dict[str, Any]) -> dict[str, str]:
    """Return the names that Connect's converters find, by column; for an array, those of its elements."""
    found = {}
    for one in value["fields"]:
        avro = one["type"][1]
        if isinstance(avro, dict) and avro["type"] == "array":
            avro = avro["items"][1]
        if isinstance(avro, dict) and "connect.name" in avro:
            assert avro["connect.version"] == 1
            found[one["name"]] = avro["connect.name"].removeprefix("io.debezium.")
    return found


def asked(attempts: Attempts, database: str, *args: str) -> tuple[str, ...]:
    """Return the options that select the relay's topics."""
    ends = ("-d", database, "-r", attempts.services.schema_registry)
    return ("-s", attempts.name, "-p", attempts.name, *ends, *args)


def check_tables(attempts: Attempts, source: Session, database: str, *args: str) -> None:
    """Check that an audit of the tables, with a relay with these options, finds their topics clean."""
    with relaying(attempts, database, source, *args):
        ended, report = verify(attempts, database)
    assert (ended.code, report.get("verdict")) == (0, "clean"), ended.stderr


def test_names_for_connect_change_no_bytes_of_topics_that_are_there(
    attempts: Attempts, source: Session, database: str
) -> None:
    """Rows under the new schema read as before; keys keep their partition."""
    attempts.succeed(database)
    topic = f"{attempts.name}.order_items"
    old_key, old_value = schemas(attempts)
    assert not connect_names(old_value)
    for part in ("key", "value"):
        set_rule(attempts.services, f"{topic}-{part}", "FULL_TRANSITIVE")
    checked = attempts.command("schema", "check", *asked(attempts, database, "--connect-names", "--json"))
    (told,) = json.loads(checked.stdout)["tables"].values()
    assert (told["key"]["result"], told["value"]["result"]) == ("unchanged", "compatible")
    source.run("update order_items set id = id")
    attempts.succeed(database, "--connect-names")
    key, value = schemas(attempts)
    assert key == old_key and value != old_value
    assert connect_names(value) == {
        "id": "data.Uuid",
        "at": "time.MicroTimestamp",
        "made": "time.MicroTimestamp",
        "opens": "time.MicroTime",
        "doc": "data.Json",
        "lasts": "time.Interval",
        "times": "time.MicroTime",
        "docs": "data.Json",
    }
    first, second = raw_messages(attempts.services, topic)
    assert first[0] == second[0] and first[1] is not None and second[1] is not None
    assert first[1][5:] == second[1][5:] and first[1][:5] != second[1][:5]
    (_, before), (_, after) = decoded_avro(attempts.services, topic)
    assert before == after
    # And back again, as after a downgrade: the topic has values under either schema.
    source.run(f"insert into order_items values ({_ROW.replace('fc3b', 'fc3c')})")
    check_tables(attempts, source, database)


def test_records_named_after_their_tables(
    attempts: Attempts, source: Session, database: str, tmp_path: Path
) -> None:
    """Everything works as with other names, including the recording and both audits."""
    source.run("create schema sales; create table sales.orders (id int primary key)")
    source.run("insert into sales.orders values (1), (2); delete from sales.orders where id = 2")
    names = ("--namespace", "com.acme.shop", "--connect-names", "--record", str(tmp_path / "shop"))
    attempts.succeed(database, *names)
    source.run("update order_items set price = 13; update sales.orders set id = 3")
    attempts.succeed(database, *names)
    for table, namespace, record in (
        ("order_items", "com.acme.shop", "OrderItems"),
        ("sales.orders", "com.acme.shop.sales", "Orders"),
    ):
        key, value = schemas(attempts, table)
        assert (key["namespace"], key["name"]) == (namespace, f"{record}Key")
        assert (value["namespace"], value["name"]) == (namespace, record)
    rows = latest(decoded_avro(attempts.services, f"{attempts.name}.sales.orders"))
    assert set(rows) == {(3,)}
    check_tables(attempts, source, database, *names[:3])
    ends = ("-b", attempts.services.broker, "-r", attempts.services.schema_registry)
    ended = attempts.command("verify", str(tmp_path / "shop"), *ends, "--json")
    assert (ended.code, json.loads(ended.stdout)["verdict"]) == (0, "clean"), ended.stderr


@pytest.mark.parametrize("rule", ["NONE", pytest.param("BACKWARD", marks=pytest.mark.long)])
def test_topics_that_are_there_keep_their_names(
    attempts: Attempts, source: Session, database: str, rule: str
) -> None:
    """Different names would be different keys: a compacted topic would have rows twice."""
    attempts.succeed(database)
    topic = f"{attempts.name}.order_items"
    for part in ("key", "value"):
        set_rule(attempts.services, f"{topic}-{part}", rule)
    source.run("update order_items set price = 14")
    ended = attempts.run(database, "--namespace", "com.acme", "--accept-settings")
    message, hint = ended.stderr.splitlines()[-2:]
    assert ended.code != 0
    assert f"subject {topic}-" in message and "not com.acme.OrderItems" in message
    assert "has records named public.order_items." in message
    assert "--namespace is for topics that are new" in hint and "--topic-prefix" in hint
    checked = attempts.command("schema", "check", *asked(attempts, database, "--namespace", "com.acme"))
    assert checked.code == 1 and "has records named public.order_items." in checked.stdout
    # Nothing is lost by the attempt.
    attempts.succeed(database, "--accept-settings")
    (row,) = latest(decoded_avro(attempts.services, topic)).values()
    assert row["price"] == 14


def test_tables_whose_records_would_share_a_name(attempts: Attempts, source: Session, database: str) -> None:
    source.run('create table a_b (id int primary key); create table "A_B" (id int primary key)')
    message, hint = attempts.fail(database, 2, "--namespace", "com.acme")
    assert "would share the record name com.acme.AB" in message
    assert "public.a_b" in message and "public.A_B" in message
    assert "--exclude-table" in hint
    checked = attempts.command("schema", "check", *asked(attempts, database, "--namespace", "com.acme"))
    assert checked.code == 1 and "would share the record name com.acme.AB" in checked.stdout
    attempts.succeed(database, "--namespace", "com.acme", "--exclude-table", r"public\.A_B")
