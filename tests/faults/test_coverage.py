"""Gaps that neither the stream nor Kafka reports: the relay detects each, and closes it or names the fix."""

import contextlib
import json
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psycopg2
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from psycopg2.extensions import make_dsn, parse_dsn

from bwtui.demo.shop import DemoTable
from bwtui.model.backfill import BackfillStatus
from bwtui.model.status import Status
from bwtui.relay.backfill.backfill import CHUNK_ROWS
from bwtui.relay.history.late_records import RARE_SECONDS
from bwtui.relay.process.control import announce_foreign_records, begin_audit, report_audit, request
from bwtui.sandbox.sandbox import ServiceAddresses
from bwtui.source.raw_session import connect_raw
from bwtui.source.raw_stream import reached_server
from bwtui.state_folder import state_folder
from tests.attempts import Attempts
from tests.faults.administration import configure_topic, empty_topic, make_topic
from tests.faults.records import assert_equal, difference
from tests.faults.relays import Relay, execute, new_name, wait_for
from tests.faults.writer import TABLES, Writer, create_tables
from tests.raw_topic import raw_records

pytestmark = pytest.mark.services

NewRelay = Callable[..., Relay]
ROWS = 200
TABLE = "public.accounts"
#: Changes of a table that the relay does not cover: an insert, an update, a delete and a changed key.
WRITES = (
    "insert into accounts select n, 1, 'unseen' from generate_series(1001, 1050) n",
    "update accounts set note = 'unseen' where id between 11 and 60",
    "delete from accounts where id between 61 and 110",
    "update accounts set id = id + 5000 where id between 111 and 120",
)


@dataclass(frozen=True, slots=True)
class Gap:
    """Changes to a table while no relay checks it; ``{p}`` in a statement is the publication."""

    name: str
    statements: Sequence[str]
    since: int = 14
    #: The statements that create the publication; if empty, the relay creates its own.
    publication: str = ""
    before: Sequence[str] = ()


#: The table as a partitioned one, without partitions.
ROOT = (
    "drop table accounts",
    "create table accounts (id bigint primary key, number bigint not null, note text)"
    " partition by range (id)",
)
PARTITIONED = (
    *ROOT,
    "create table low partition of accounts for values from (0) to (10000)",
    f"insert into accounts select n, 0, 'row ' || n from generate_series(1, {ROWS}) n",
    "create table middle (like accounts including all) partition by range (id)",
    "create table leaf partition of middle for values from (20000) to (30000)",
)
FILL = "insert into middle select n, 0, 'elsewhere' from generate_series(20001, 20050) n"
ATTACH = "alter table accounts attach partition middle for values from (20000) to (30000)"
VIA_ROOT = "create publication {p} for table accounts, visits with (publish_via_partition_root)"
LEAVES = Gap(
    "the table leaves the publication and returns",
    ("alter publication {p} drop table accounts", *WRITES, "alter publication {p} add table only accounts"),
)
#: Gaps of one table, which leave other tables alone: each may have a table of its own.
TABLE_GAPS = [
    LEAVES,
    Gap(
        "its key becomes text",
        (
            "alter table accounts alter column id type text",
            "update accounts set note = 'by text' where id = '7'",
        ),
    ),
    Gap(
        "the table is renamed, written and renamed back",
        (
            "alter table accounts rename to others",
            *[one.replace("accounts", "others") for one in WRITES],
            "alter table others rename to accounts",
        ),
    ),
    Gap("the table is truncated", ("truncate accounts", "insert into accounts values (7, 7, 'after it')")),
    Gap(
        "a column is dropped and added again",
        ("alter table accounts drop column note", "alter table accounts add column note text"),
    ),
    Gap("a column is renamed", ("alter table accounts rename column note to remark",)),
    Gap(
        "a column is renamed and renamed back",
        (
            "alter table accounts rename column note to remark",
            "update accounts set number = 7 where id between 11 and 60",
            "alter table accounts rename column remark to note",
        ),
    ),
    Gap(
        "a composite type gets an attribute",
        ("alter type pair add attribute c int",),
        before=(
            "create type pair as (a int, b int)",
            "alter table accounts add pair pair not null default '(1,2)'",
        ),
    ),
    Gap("a column comes with a default", ("alter table accounts add more text default 'as before'",)),
    Gap(
        "values are rewritten by ALTER TABLE",
        ("alter table accounts alter number type bigint using number + 1",),
    ),
]
#: Gaps of a publication, or of a table in a publication of its own.
PUBLICATION_GAPS = [
    Gap(
        "only inserts are published for a while",
        (
            "alter publication {p} set (publish = 'insert')",
            *WRITES,
            "alter publication {p} set (publish = 'insert, update, delete, truncate')",
        ),
    ),
    Gap(
        "its schema leaves the publication and returns",
        (
            "alter publication {p} drop tables in schema public",
            *WRITES,
            "alter publication {p} add tables in schema public",
        ),
        since=15,
        publication="create publication {p} for tables in schema public",
    ),
    Gap(
        "a row filter comes and goes",
        (
            "alter publication {p} set table accounts where (id < 0), visits",
            *WRITES,
            "alter publication {p} set table accounts, visits",
        ),
        since=15,
    ),
    Gap(
        "the table is dropped and created again",
        (
            "drop table accounts",
            "create table accounts (id bigint primary key, number bigint not null, note text)",
            "insert into accounts values (7, 7, 'after it')",
        ),
        publication="create publication {p} for all tables",
    ),
    Gap(
        "a partition of two levels is attached with rows",
        (FILL, ATTACH),
        publication=VIA_ROOT,
        before=PARTITIONED,
    ),
    Gap(
        "a partition of two levels is detached, written and attached again",
        ("alter table accounts detach partition middle", FILL, ATTACH),
        publication=VIA_ROOT,
        before=(*PARTITIONED, ATTACH),
    ),
    Gap(
        "a partition comes and goes with its rows",
        (
            "create table young partition of accounts for values from (20000) to (30000)",
            "insert into accounts select n, 0, 'young' from generate_series(20001, 20050) n",
            "drop table young",
        ),
        publication=VIA_ROOT,
        before=PARTITIONED,
    ),
]


def begin(database: str, new_relay: NewRelay, gap: Gap = LEAVES, *args: str) -> Relay:
    """Return a relay that streams two tables."""
    create_tables(database, ROWS)
    if gap.before:
        execute(database, *gap.before)
    relay = new_relay(*args)
    if gap.publication:
        execute(database, gap.publication.format(p=f"bwtui_{relay.name}"))
    relay.start()
    relay.wait_streaming()
    return relay


def not_proven(status: Status) -> bool:
    """Return whether the table is reported as not proven."""
    return TABLE in {entry.table for entry in status.not_proven}


def is_proven(status: Status) -> bool:
    """Return whether every table is proven."""
    return not status.not_proven


def reports_and_closes(relay: Relay, *tables: str) -> None:
    """Check that the relay reports the gaps of ``tables``, and closes them."""
    for table in tables:
        says = f"{table} is not proven since"
        wait_for(f"{says} …", lambda says=says: says in relay.log())  # type: ignore[misc]
    relay.wait("all is closed", is_proven, every=0.2)


def closes(
    relay: Relay,
    services: ServiceAddresses,
    database: str,
    *,
    in_partitions: bool = False,
    tables: Sequence[DemoTable] = TABLES,
    gaps: Sequence[str] = (TABLE,),
) -> None:
    """Check that the relay reports the gaps of ``gaps`` and closes them, and that the topics agree."""
    reports_and_closes(relay, *gaps)
    relay.wait_caught_up()
    relay.stop()
    # This topic holds rows from the time when the table had another name.
    with contextlib.suppress(KafkaException):
        remove(services, f"{relay.name}.others")
    if in_partitions:
        assert_live_once(services, database, relay)
    else:
        assert_equal(services, database, tables, relay.name)


def remove(services: ServiceAddresses, *topics: str) -> None:
    """Delete the topics."""
    admin = AdminClient({"bootstrap.servers": services.broker})
    for deleted in admin.delete_topics([*topics]).values():
        deleted.result(30)
    wait_for("they are gone", lambda: not {*topics} & {*admin.list_topics(timeout=10).topics})


def assert_live_once(
    services: ServiceAddresses, database: str, relay: Relay, table: str = "accounts"
) -> None:
    """Check that the latest records of each partition equal the table, so that no key has two live rows."""
    topic = f"{relay.name}.{table}"
    latest = {
        (partition, record.key()): record.value()
        for (_, partition), records in raw_records(services, [topic]).items()
        for record in records
    }
    with closing(SchemaRegistryClient({"url": services.schema_registry})) as registry:
        decode = AvroDeserializer(registry, conf={"subject.name.strategy.type": "TOPIC"})
        field = SerializationContext(topic, MessageField.VALUE)
        live = [tuple(decode(value, field).values()) for value in latest.values() if value is not None]
    with closing(psycopg2.connect(database)) as connection, connection.cursor() as cursor:
        cursor.execute(f"select id, number, note from {table} order by id")
        assert sorted(live) == cursor.fetchall()


def create_copies(database: str, *tables: str) -> list[DemoTable]:
    """Create the two tables, and copies of accounts with these names; return the copies."""
    create_tables(database, ROWS)
    for table in tables:
        copy = f"create table {table} (like accounts including all)"
        execute(database, copy, f"insert into {table} select * from accounts")
    return [DemoTable("public", table, ("id",)) for table in tables]


@pytest.mark.parametrize("runs", [True, False], ids=["between two looks", "while stopped"])
def test_gaps_of_a_table_are_seen_and_closed(
    services: ServiceAddresses, database: str, new_relay: NewRelay, runs: bool
) -> None:
    """Each gap is in a table of its own, since a relay that is started for each would take minutes."""
    gaps = {f"accounts_{number}": gap for number, gap in enumerate(TABLE_GAPS)}
    copies = create_copies(database, *gaps)
    for table, gap in gaps.items():
        for statement in gap.before:
            execute(database, statement.replace("accounts", table))
    relay = new_relay()
    relay.start()
    relay.wait_streaming()
    if not runs:
        relay.stop()
    for table, gap in gaps.items():
        for statement in gap.statements:
            execute(database, statement.replace("accounts", table).format(p=f"bwtui_{relay.name}"))
    if not runs:
        relay.start()
    named = [copy.full_name for copy in copies]
    closes(relay, services, database, tables=[*TABLES, *copies], gaps=named)
    assert f"{TABLE} is not proven since" not in relay.log()


def _cases() -> Iterator[Any]:
    """Yield each gap, between two polls and while the relay is stopped; `make test` runs half of them."""
    for number, gap in enumerate(PUBLICATION_GAPS):
        for runs in (True, False):
            marks = [pytest.mark.since(gap.since, "publications' own options")]
            if runs == bool(number % 2):
                marks.append(pytest.mark.long)
            yield pytest.param(
                gap, runs, id=f"{gap.name}, {'between two looks' if runs else 'while stopped'}", marks=marks
            )


@pytest.mark.parametrize(("gap", "runs"), list(_cases()))
def test_a_gap_of_a_publication_is_seen_and_closed(
    services: ServiceAddresses, database: str, new_relay: NewRelay, gap: Gap, runs: bool
) -> None:
    relay = begin(database, new_relay, gap)
    if not runs:
        relay.stop()
    for statement in gap.statements:
        execute(database, statement.format(p=f"bwtui_{relay.name}"))
    if not runs:
        relay.start()
    closes(relay, services, database)


def test_a_heal_does_not_forget_a_table_that_was_dropped(
    services: ServiceAddresses, database: str, new_relay: NewRelay
) -> None:
    """The table's topic still holds the earlier rows when a table of that name is created."""
    *_, again = (gap for gap in PUBLICATION_GAPS if gap.name == "the table is dropped and created again")
    relay = begin(database, new_relay, again)
    relay.stop()
    drop, *create = again.statements
    execute(database, f"select pg_drop_replication_slot('{relay.name}')", drop)
    relay.start("--heal")
    relay.wait("the slot is made good", lambda status: status.heal is None and status.state == "streaming")
    execute(database, *create)
    closes(relay, services, database)


@pytest.mark.parametrize("runs", [True, False], ids=["between two looks", "while stopped"])
def test_topics_that_change_are_filled_again(
    services: ServiceAddresses, database: str, new_relay: NewRelay, runs: bool
) -> None:
    """Each topic changes in another way; at last only the relay's own records are in them."""
    recreated, deleted, emptied, more, later = copies = create_copies(
        database, "recreated", "deleted", "emptied", "given_partitions", "given_partitions_before_writes"
    )
    relay = new_relay()
    relay.start()
    relay.wait_streaming()
    if not runs:
        relay.stop()
    admin = AdminClient({"bootstrap.servers": services.broker})
    for topic in (one.topic(relay.name) for one in (more, later)):
        admin.create_partitions([NewPartitions(topic, 9)])[topic].result(30)
    # Kafka does not delete records of a topic that is only compacted.
    topic = emptied.topic(relay.name)
    configure_topic(services, topic, "cleanup.policy", "compact,delete")
    empty_topic(admin, topic)
    configure_topic(services, topic, "cleanup.policy", "compact")
    remove(services, *(one.topic(relay.name) for one in (recreated, deleted)))
    new = NewTopic(recreated.topic(relay.name), 3, 1, config={"cleanup.policy": "compact"})
    admin.create_topics([new])[new.topic].result(30)
    if not runs:
        relay.start()
        relay.wait_streaming()
    for table in (recreated, deleted, emptied, more):
        execute(database, *(one.replace("accounts", table.name) for one in WRITES))
    reports_and_closes(relay, *(copy.full_name for copy in copies))
    # Each key must be in its own partition, and in no other, when the comparison ends.
    execute(database, *(one.replace("accounts", later.name) for one in WRITES))
    relay.wait_caught_up()
    if not runs:
        # The relay must not mistake the tombstones of the repair for those of another producer.
        until = time.monotonic() + RARE_SECONDS + 2
        wait_for("a look at the topics' ends", lambda: time.monotonic() > until, every=0.5)
        assert "did not send" not in relay.log()
    relay.stop()
    for table in (more, later):
        assert_live_once(services, database, relay, table.name)
    # Keys in their former partitions would look like rows that differ.
    remove(services, *(one.topic(relay.name) for one in (more, later)))
    assert_equal(services, database, [*TABLES, recreated, deleted, emptied], relay.name)
    assert f"{TABLE} is not proven since" not in relay.log()


@pytest.mark.parametrize("runs", [True, False], ids=["between two looks", "while stopped"])
def test_keyed_topics_that_lose_records_are_not_proven_until_they_are_compacted(
    services: ServiceAddresses, database: str, new_relay: NewRelay, runs: bool
) -> None:
    tables = create_copies(database, "to_compact", "to_delete")
    relay = new_relay()
    topics = compacted, deleted = [table.topic(relay.name) for table in tables]
    for topic in topics:
        make_topic(services, topic, 1 << 20, "delete")
    admin = AdminClient({"bootstrap.servers": services.broker})
    relay.start()
    relay.wait_streaming()
    if not runs:
        relay.stop()
    for topic in topics:
        empty_topic(admin, topic)
    if not runs:
        relay.start()
        relay.wait_streaming()
    status = relay.wait("both are reported", lambda seen: len(seen.not_proven) == len(tables), every=0.2)
    entries = {entry.table: entry for entry in status.not_proven}
    for table, topic in zip(tables, topics, strict=True):
        assert f"topic {topic} has cleanup.policy=delete" in entries[table.full_name].reason
        assert entries[table.full_name].command == (
            f"kafka-configs --bootstrap-server {services.broker} --alter --entity-type topics "
            f"--entity-name {topic} --add-config cleanup.policy=compact"
        )
    configure_topic(services, compacted, "cleanup.policy", "compact")
    # The relay creates a new topic, with its own cleanup policy.
    admin.delete_topics([deleted])[deleted].result(30)
    gaps = [table.full_name for table in tables]
    closes(relay, services, database, tables=[*TABLES, *tables], gaps=gaps)


def test_only_a_comparison_with_the_streams_own_server_proves_a_table(
    services: ServiceAddresses, database: str, new_relay: NewRelay, tmp_path: Path
) -> None:
    """A standby that lags still holds the earlier rows, as the topic does."""
    relay = begin(database, new_relay, LEAVES, "--on-gap", "report")
    execute(database, "truncate accounts")
    status = relay.wait("it is reported", not_proven, every=0.2)
    found = {"complete": [one.table for one in status.not_proven]}
    connection = connect_raw(database)
    own = reached_server(connection, database).identity
    connection.finish()
    for servers in ([["7", *own[1:]]], [[*own[:2], None]], []):
        report_audit(relay.name, "clean", {**found, "servers": servers}, begin_audit(relay.name))
        seen = relay.status()
        assert seen is not None
        assert not_proven(seen)
    run = Attempts(services, tmp_path).command("repair", "--relay", relay.name, "--yes")
    assert run.code == 0, run.stderr
    relay.wait("it is proven", is_proven, every=0.2)
    relay.stop()
    assert_equal(services, database, TABLES, relay.name)


def test_an_audit_with_anomalies_has_the_table_compared(
    services: ServiceAddresses, database: str, new_relay: NewRelay, tmp_path: Path
) -> None:
    """The relay takes the old row for one that a repair sent, and so does not notice it."""
    relay = begin(database, new_relay)
    producer = Producer({"bootstrap.servers": services.broker})
    topics = raw_records(services, [f"{relay.name}.accounts"]).values()
    former = next(record for records in topics for record in records)
    execute(database, "update accounts set number = 77")
    relay.wait_caught_up()
    announce_foreign_records(relay.name, f"{relay.name}.accounts", 1)
    producer.produce(f"{relay.name}.accounts", former.value(), former.key(), former.partition() or 0)
    producer.flush(30)
    run = Attempts(services, tmp_path).command("verify", "--database", "--relay", relay.name, "--json")
    assert run.code == 1, run.stderr
    assert json.loads(run.stdout)["differing"] == [TABLE]
    wait_for("it is reported", lambda: "it differs from its topic: an audit found anomalies" in relay.log())
    closes(relay, services, database)


def test_a_gap_that_lasts_names_what_ends_it(
    services: ServiceAddresses, database: str, new_relay: NewRelay
) -> None:
    relay = begin(database, new_relay)
    publication = f"bwtui_{relay.name}"
    execute(database, f"alter publication {publication} drop table accounts")
    status = relay.wait("it is reported", not_proven, every=0.2)
    (entry,) = status.not_proven
    assert entry.reason.startswith(
        "it is not in the publication: none of its changes are sent, deletes included"
    )
    execute(database, *WRITES)
    relay.kill()
    relay.start()
    assert not_proven(relay.wait_streaming())
    # The reported command does what it says.
    execute(database, entry.command)
    relay.wait("it is closed", is_proven, every=0.2)
    relay.stop()
    assert_equal(services, database, TABLES, relay.name)


def test_a_root_that_leaves_the_publication_names_what_brings_it_back(
    services: ServiceAddresses, database: str, new_relay: NewRelay
) -> None:
    """ADD TABLE would not help: the relay would remove the table again, or PostgreSQL would reject it."""
    relay = begin(database, new_relay, Gap("-", (), before=(*PARTITIONED, ATTACH)))
    publication = f"bwtui_{relay.name}"
    for statement, command in (
        ("alter table leaf replica identity nothing", "ALTER TABLE public.leaf REPLICA IDENTITY DEFAULT;"),
        (
            f"alter publication {publication} set (publish_via_partition_root = false)",
            f'ALTER PUBLICATION "{publication}" SET (publish_via_partition_root = true);',
        ),
    ):
        execute(database, statement)
        relay.wait(
            "it is named",
            lambda seen, command=command: command in [one.command for one in seen.not_proven],  # type: ignore[misc]
            every=0.2,
        )
        execute(database, command)
        relay.wait("it is proven", is_proven, every=0.2)
    says = "table public.low is sent as a part of public.accounts"
    relay.wait("its topic ends", lambda seen: any(says in one.message for one in seen.errors), every=0.2)
    relay.stop()


def test_a_partition_is_truncated_behind_its_root(
    services: ServiceAddresses, database: str, new_relay: NewRelay
) -> None:
    create_tables(database, 1)
    execute(
        database,
        *ROOT,
        "create table low partition of accounts for values from (0) to (100)",
        "create table high partition of accounts for values from (100) to (10000)",
        "insert into accounts select n, 0, 'row ' || n from generate_series(1, 200) n",
    )
    relay = new_relay()
    relay.start()
    relay.wait_streaming()
    execute(database, "truncate low")
    closes(relay, services, database)
    relay.start()
    relay.wait_streaming()
    # One partition is attached with rows, another is created empty as a partition.
    execute(
        database,
        "create table more (like accounts including all)",
        "insert into more select n, 0, 'row ' || n from generate_series(20001, 20100) n",
        "alter table accounts attach partition more for values from (20000) to (30000)",
        "create table later partition of accounts for values from (30000) to (40000)",
    )
    wait_for("it is reported", lambda: "got partition public.more that already had rows" in relay.log())
    closes(relay, services, database)
    assert "public.later" not in relay.log()


def test_a_partition_takes_its_rows_along(
    services: ServiceAddresses, database: str, new_relay: NewRelay
) -> None:
    """Before PostgreSQL 15 a session sends a partition's rows under the partition's name at its first row."""
    everything = "create publication {p} for all tables with (publish_via_partition_root)"
    relay = begin(database, new_relay, Gap("", (), publication=everything, before=PARTITIONED[:4]))
    make = "create table others (like accounts including all)"
    execute(database, make, "insert into others select n, 0, 'first' from generate_series(10001, 10050) n")
    # The session has sent rows of both tables.
    execute(database, "update accounts set note = 'root'", "update others set note = 'own'")
    relay.wait("others", lambda status: status.tables.get("public.others"), every=0.2)
    relay.wait_caught_up()
    attach = "alter table accounts attach partition others for values from (10000) to (20000)"
    execute(database, "alter table accounts detach partition low", attach)
    relay.wait("low joins", lambda status: "public.low" in {one.table for one in status.backfills}, every=0.2)
    relay.wait("all to be proven", is_proven, every=0.2)
    execute(database, "update low set note = 'own' where id > 9", "delete from low where id < 5")
    execute(
        database, "update accounts set note = 'root' where id < 10020", "delete from others where id > 10040"
    )
    closes(relay, services, database, tables=[*TABLES, DemoTable("public", "low", ("id",))])


def test_an_old_row_without_its_key_does_not_end_the_relay(
    services: ServiceAddresses, database: str, new_relay: NewRelay
) -> None:
    """A partition with its own replica identity sends old rows without the root's key."""
    create_tables(database, 1)
    execute(
        database,
        *ROOT,
        "create table low partition of accounts for values from (0) to (10000)",
        "create unique index by_number on low (number)",
        "insert into accounts select n, n, 'row ' || n from generate_series(1, 200) n",
    )
    relay = new_relay()
    relay.start()
    relay.wait_streaming()
    relay.stop()
    execute(
        database,
        "alter table low replica identity using index by_number",
        "delete from accounts where id = 7",
        "update accounts set id = id + 5000, number = -number where id = 8",
    )
    relay.start()
    status = relay.wait("what helps is named", lambda s: any(e.command for e in s.not_proven), every=0.2)
    (entry,) = status.not_proven
    assert "REPLICA IDENTITY FULL" in entry.command
    execute(database, entry.command)
    closes(relay, services, database)


def test_other_settings_are_refused_on_the_same_slot(
    services: ServiceAddresses, database: str, new_relay: NewRelay
) -> None:
    relay = begin(database, new_relay)
    relay.stop()
    relay.start("-f", "json")
    assert relay.join() == 2
    words = relay.last_words()
    assert "--output-format was avro and is json now" in words
    assert "--accept-settings" in words
    relay.start("-p", f"{relay.name}.new", "--accept-settings")
    relay.wait_streaming()
    relay.wait("all is compared", is_proven, every=0.2)
    relay.stop()
    assert_equal(services, database, TABLES, f"{relay.name}.new")


def test_another_partitioner_is_refused_on_the_same_slot(
    services: ServiceAddresses, database: str, new_relay: NewRelay
) -> None:
    """Later rows of a key would go to another partition than earlier ones."""
    relay = begin(database, new_relay)
    relay.stop()
    other = ("-C", "partitioner=consistent")
    relay.start(*other)
    assert relay.join() == 2
    assert "-C partitioner was murmur2 and is consistent now" in relay.last_words()
    relay.start(*other, "--accept-settings")
    relay.wait_streaming()
    execute(database, *WRITES)
    closes(relay, services, database, in_partitions=True)


def test_a_new_snapshot_into_topics_that_hold_deleted_rows(
    services: ServiceAddresses, database: str, new_relay: NewRelay
) -> None:
    """The snapshot lacks rows deleted between the two slots, and so does the stream."""
    relay = begin(database, new_relay)
    relay.stop()
    execute(database, f"select pg_drop_replication_slot('{relay.name}')", *WRITES)
    shutil.rmtree(state_folder(relay.name))
    relay.start()
    relay.wait_streaming()
    relay.wait("they are compared", is_proven, every=0.2)
    relay.wait_caught_up()
    relay.stop()
    assert_equal(services, database, TABLES, relay.name)
    assert "had messages in its topic before its snapshot" in relay.log()


def test_a_slot_without_a_record_is_not_proven(
    services: ServiceAddresses, database: str, new_relay: NewRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    relay = begin(database, new_relay)
    relay.stop()
    # The table's topic has rows of the former table.
    again = "create table accounts (id bigint primary key, number bigint not null, note text)"
    execute(database, "drop table accounts", again, "insert into accounts values (1, 1, 'again')")
    monkeypatch.setenv("BWTUI_STATE_HOME", f"{relay._folder}/elsewhere")
    relay.start()
    status = relay.wait("all to be named", lambda status: len(status.not_proven) == len(TABLES), every=0.2)
    assert {entry.table for entry in status.not_proven} == {"public.accounts", "public.visits"}
    assert all("bwtui repair --relay" in entry.command for entry in status.not_proven)
    relay.stop()


def test_a_ledger_that_was_removed_is_no_upgrade(
    services: ServiceAddresses, database: str, new_relay: NewRelay
) -> None:
    relay = begin(database, new_relay)
    relay.stop()
    (ledger,) = state_folder(relay.name).glob("coverage-*.json")
    (checkpoint,) = state_folder(relay.name).glob("slot-*.json")
    ledger.unlink()
    relay.start()
    status = relay.wait_streaming()
    assert {entry.table for entry in status.not_proven} == {"public.accounts", "public.visits"}
    assert "the coverage ledger of its slot was removed" in status.not_proven[0].reason
    relay.stop()
    # A version without a ledger left this state.
    ledger.unlink()
    kept = json.loads(checkpoint.read_text())
    assert kept.pop("has_ledger")
    checkpoint.write_text(json.dumps(kept))
    relay.start()
    assert is_proven(relay.wait_streaming())
    relay.stop()


@pytest.mark.parametrize(
    ("name", "is_damaged"),
    [
        ("joined.json", True),
        pytest.param("joined.json", False, marks=pytest.mark.long),
        ("topics.json", False),
        ("slot-*.json", False),
        pytest.param("ends-*.json", True, marks=pytest.mark.long),
        pytest.param("ends-*.json", False, marks=pytest.mark.long),
    ],
)
def test_a_file_that_is_lost_alone_proves_nothing(
    services: ServiceAddresses, database: str, new_relay: NewRelay, name: str, is_damaged: bool
) -> None:
    relay = begin(database, new_relay)
    relay.stop()
    execute(
        database,
        "create table late (id bigint primary key)",
        "insert into late select generate_series(1, 100)",
        f"alter publication bwtui_{relay.name} add table late",
    )
    (path,) = state_folder(relay.name).glob(name)
    if is_damaged:
        path.write_text(path.read_text()[:20])
    else:
        path.unlink()
    relay.start()
    wait_for("it is reported", lambda: f"{path}" in relay.log())
    relay.wait("it is closed", is_proven)
    relay.wait_caught_up()
    relay.stop()
    assert_equal(services, database, [*TABLES, DemoTable("public", "late", ("id",))], relay.name)


def healing(database: str, new_relay: NewRelay) -> Relay:
    """Return a relay that was stopped while a heal was pending."""
    relay = begin(database, new_relay)
    relay.stop()
    execute(database, f"select pg_drop_replication_slot('{relay.name}')", *WRITES)
    relay.start("--heal")
    relay.wait("the heal", lambda status: status.heal is not None and status.heal.state == "comparing")
    relay.wait_streaming()
    return relay


def beginning(database: str, new_relay: NewRelay) -> Relay:
    """Return a relay that was stopped within the first snapshot of a table."""
    create_tables(database, 3 * CHUNK_ROWS)
    relay = new_relay("--snapshot-by", "chunks")
    relay.start()
    pause(relay, TABLE)
    return relay


def joining(database: str, new_relay: NewRelay) -> Relay:
    """Return a relay that was stopped while it sent the earlier rows of a table that joined."""
    relay = begin(database, new_relay)
    execute(
        database,
        "create table late (id bigint primary key)",
        f"insert into late select generate_series(1, {3 * CHUNK_ROWS})",
    )
    pause(relay, "public.late")
    return relay


def pause(relay: Relay, table: str) -> None:
    """Pause the backfill of ``table`` after its first chunk."""

    def found(state: Callable[[BackfillStatus], object]) -> Callable[[Status], BackfillStatus | None]:
        return lambda status: next(
            (one for one in status.backfills if one.table == table and state(one)), None
        )

    status = relay.wait("a chunk", found(lambda one: one.chunks))
    (one,) = (one for one in status.backfills if one.table == table)
    request(relay.name, {"request": "backfill_control", "id": one.id, "what": "pause"})
    relay.wait("the pause", found(lambda one: one.state == "paused"))


@pytest.mark.parametrize(
    ("name", "prepare"),
    [
        ("heal-*.json", healing),
        pytest.param("first-*.json", beginning, marks=pytest.mark.long),
        pytest.param("backfills/*-late.json", joining, marks=pytest.mark.long),
    ],
)
def test_lost_work_is_closed_by_a_comparison(
    services: ServiceAddresses, database: str, new_relay: NewRelay, name: str, prepare: Callable[..., Relay]
) -> None:
    """A file that lists missing topic rows is removed while the relay is stopped."""
    relay = prepare(database, new_relay)
    relay.stop()
    (path,) = state_folder(relay.name).glob(name)
    path.unlink()
    relay.start()
    wait_for("it is reported", lambda: f"{path} is missing" in relay.log())
    relay.wait("it is closed", is_proven)
    relay.wait_caught_up()
    relay.stop()
    tables = [*TABLES, DemoTable("public", "late", ("id",))] if prepare is joining else TABLES
    assert_equal(services, database, tables, relay.name)
    # Completed work leaves nothing to find.
    relay.start()
    assert is_proven(relay.wait_streaming())
    relay.stop()


def test_a_record_of_joined_tables_that_can_not_be_read_is_refused(
    database: str, new_relay: NewRelay
) -> None:
    relay = begin(database, new_relay)
    relay.stop()
    path = state_folder(relay.name) / "joined.json"
    path.unlink()
    path.mkdir()
    relay.start()
    assert relay.join() != 0
    assert f"{path} can't be read: Is a directory" in relay.last_words()


@pytest.mark.long
@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("args", [(), ("--exactly-once",)], ids=["plain", "once"])
def test_another_producer_is_noticed(
    services: ServiceAddresses, database: str, new_relay: NewRelay, args: tuple[str, ...], partitions: int
) -> None:
    create_tables(database, ROWS)
    relay = new_relay(*args)
    new = NewTopic(f"{relay.name}.accounts", partitions, 1, config={"cleanup.policy": "compact"})
    admin = AdminClient({"bootstrap.servers": services.broker})
    admin.create_topics([new])[new.topic].result(30)
    relay.start()
    relay.wait_streaming()
    for number in range(5):
        execute(database, f"update accounts set number = {number} where id <= 50")
        relay.wait_caught_up()
    # Nothing should be noticed before this point.
    time.sleep(2 * RARE_SECONDS)
    assert is_proven(relay.wait_streaming())
    execute(database, "update accounts set number = 5 where id = 5")
    write_as_another(services, f"{relay.name}.accounts")
    relay.wait("it is reported", not_proven, every=0.2)
    assert "another producer or relay writes to it" in relay.log()
    relay.wait("it is closed", is_proven, every=0.2)
    relay.stop()
    assert agree(services, database, relay)


@pytest.mark.long
def test_another_producer_of_rows_without_a_key(
    services: ServiceAddresses, database: str, new_relay: NewRelay
) -> None:
    """No row is missing, and no comparison finds records that are not rows: only a new topic fixes it."""
    before = ("create table notes (note text)", "insert into notes values ('one')")
    relay = begin(database, new_relay, Gap("-", (), before=before), "-u")
    execute(database, "insert into notes values ('two')")
    relay.wait_caught_up()
    topic = f"{relay.name}.notes"
    record = next(record for some in raw_records(services, [topic]).values() for record in some)
    producer = Producer({"bootstrap.servers": services.broker})
    producer.produce(topic, record.value())
    producer.flush(30)
    status = relay.wait("a person has to end it", lambda seen: any(one.command for one in seen.not_proven))
    (entry,) = status.not_proven
    assert (entry.table, entry.command) == ("public.notes", "bwtui snapshot -u public.notes")
    assert "delete the topic" in entry.reason
    relay.stop()


def reach(writer: Writer, changes: int) -> bool:
    """Return whether the writer has made that many changes."""
    return len(writer.changes) >= changes


def kill_and_write(services: ServiceAddresses, database: str, relay: Relay, *, is_running: bool) -> None:
    """Kill the relay; another producer writes before or after the next start, and the relay notices."""
    execute(database, "update accounts set number = 6 where id between 1 and 50")
    relay.wait_caught_up()
    relay.kill()
    before = relay.log().count("records in topic")
    if is_running:
        relay.start()
        relay.wait_streaming()
        assert relay.log().count("records in topic") == before
    write_as_another(services, f"{relay.name}.accounts")
    if not is_running:
        relay.start()
    wait_for("it is reported", lambda: relay.log().count("records in topic") > before)
    assert "20 records in topic" in relay.log()
    relay.wait("it is closed", is_proven, every=0.2)


def test_rows_from_before_a_table_had_its_key(
    services: ServiceAddresses, database: str, new_relay: NewRelay
) -> None:
    """The records have no key, so no later record replaces them: only a new topic fixes it."""
    before = ("create table notes (note text)", "insert into notes select 'a' from generate_series(1, 9)")
    relay = begin(database, new_relay, Gap("-", (), before=before), "-u")
    relay.wait_caught_up()
    execute(database, "alter table notes add column id serial primary key", "insert into notes values ('b')")
    topic = f"{relay.name}.notes"
    status = relay.wait("a person has to end it", lambda seen: any(one.command for one in seen.not_proven))
    (entry,) = status.not_proven
    assert entry.command == f"kafka-topics --bootstrap-server {services.broker} --delete --topic {topic}"
    assert entry.reason.startswith(f"it has records without a key in topic {topic}, from before")
    admin = AdminClient({"bootstrap.servers": services.broker})
    admin.delete_topics([topic])[topic].result()
    relay.wait("it is proven", is_proven, every=0.2)
    relay.wait_caught_up()
    relay.stop()
    assert_equal(services, database, [*TABLES, DemoTable("public", "notes", ("id",))], relay.name)


def write_as_another(services: ServiceAddresses, topic: str) -> None:
    """Write 20 records of the topic again, in one request, as another relay that lags would."""
    consumer = Consumer({"bootstrap.servers": services.broker, "group.id": "unused"})
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    producer = Producer({"bootstrap.servers": services.broker, "linger.ms": 500})
    for record in consumer.consume(5, timeout=30):
        for _ in range(4):
            producer.produce(topic, record.value(), record.key(), 0)
    consumer.close()
    assert producer.flush(30) == 0


def count(services: ServiceAddresses, relay: Relay) -> int:
    """Return the number of records in the topic of the table."""
    return sum(map(len, raw_records(services, [f"{relay.name}.accounts"]).values()))


def agree(services: ServiceAddresses, database: str, relay: Relay) -> bool:
    """Return whether the topics equal the tables."""
    return all(table.equal for table in difference(services, database, TABLES, relay.name).tables)


@pytest.mark.long
def test_another_producer_is_noticed_in_a_topic_that_was_made_again(
    services: ServiceAddresses, database: str, new_relay: NewRelay
) -> None:
    relay = begin(database, new_relay)
    execute(database, "update accounts set number = 6")
    relay.wait_caught_up()
    topic = f"{relay.name}.accounts"
    admin = AdminClient({"bootstrap.servers": services.broker})
    admin.delete_topics([topic])[topic].result()
    wait_for("it is reported", lambda: f"{topic} was deleted" in relay.log())
    relay.wait("it is closed", is_proven, every=0.2)
    execute(database, "update accounts set number = 7")
    relay.wait_caught_up()
    # The relay counts the records of the new topic once it has read its end offset.
    time.sleep(RARE_SECONDS)
    write_as_another(services, topic)
    wait_for("it is reported", lambda: "records in topic" in relay.log())
    relay.wait("it is closed", is_proven, every=0.2)
    relay.stop()
    assert agree(services, database, relay)


@pytest.mark.parametrize("args", [(), ("--exactly-once",)], ids=["plain", "once"])
def test_another_producer_is_noticed_after_a_stop(
    services: ServiceAddresses, database: str, new_relay: NewRelay, args: tuple[str, ...]
) -> None:
    relay = begin(database, new_relay, LEAVES, *args)
    execute(database, "update accounts set number = 5 where id = 5")
    relay.wait_caught_up()
    relay.stop()
    # Nothing was written meanwhile.
    relay.start()
    relay.wait_streaming()
    assert is_proven(relay.wait_streaming())
    execute(database, "update accounts set number = 6 where id between 1 and 50")
    relay.wait_caught_up()
    relay.stop()
    write_as_another(services, f"{relay.name}.accounts")
    relay.start()
    wait_for("it is reported", lambda: "20 records in topic" in relay.log())
    relay.wait("it is closed", is_proven, every=0.2)
    relay.wait_caught_up()
    relay.stop()
    found = difference(services, database, TABLES, relay.name)
    assert all(table.equal for table in found.tables), found.sentence
    assert "public.visits is not proven" not in relay.log()


@pytest.mark.parametrize("args", [(), ("--exactly-once",)], ids=["plain", "once"])
def test_another_producer_is_noticed_after_a_kill(
    services: ServiceAddresses, database: str, new_relay: NewRelay, args: tuple[str, ...]
) -> None:
    relay = begin(database, new_relay, LEAVES, *args)
    for number in range(3):
        execute(database, f"update accounts set number = {number} where id <= 50")
        relay.wait_caught_up()
        relay.kill()
        relay.start()
        assert is_proven(relay.wait_streaming())
        assert "records in topic" not in relay.log()
    kill_and_write(services, database, relay, is_running=False)
    kill_and_write(services, database, relay, is_running=True)
    relay.stop()
    assert agree(services, database, relay)
    assert "public.visits is not proven" not in relay.log()


def test_kills_under_writes_are_attributed_to_no_other_producer(
    services: ServiceAddresses, database: str, new_relay: NewRelay
) -> None:
    relay = begin(database, new_relay)
    writer = Writer(database, ROWS)
    with writer.going_on():
        for number in range(4):
            wanted = 100 * (number + 1)
            wait_for("changes", partial(reach, writer, wanted))
            relay.kill()
            relay.start()
            relay.wait_streaming()
            assert is_proven(relay.wait_streaming()), number
    relay.wait_caught_up()
    write_as_another(services, f"{relay.name}.accounts")
    wait_for("it is reported", lambda: "records in topic" in relay.log())
    relay.wait("it is closed", is_proven, every=0.2)
    relay.stop()
    assert agree(services, database, relay)


def test_another_producer_is_noticed_in_a_topic_that_came_later(
    services: ServiceAddresses, database: str, new_relay: NewRelay
) -> None:
    relay = begin(database, new_relay)
    rows = "insert into later select generate_series(1, 30)"
    execute(database, "create table later (id int primary key)", rows)
    relay.wait("it joined", lambda status: "public.later" in status.tables)
    relay.wait("its rows", lambda status: status.tables["public.later"].messages >= 30, every=0.2)
    relay.wait_caught_up()
    write_as_another(services, f"{relay.name}.later")
    wait_for("it is reported", lambda: "20 records in topic" in relay.log())
    relay.wait("it is closed", is_proven, every=0.2)
    relay.stop()


def test_the_snapshot_is_watched(services: ServiceAddresses, database: str, new_relay: NewRelay) -> None:
    """A topic is deleted during the first snapshot, and a table leaves the publication meanwhile."""
    create_tables(database, 20_000)
    relay = new_relay("--snapshot-workers", "1")
    publication = f"bwtui_{relay.name}"
    # Rows of the topic are sent, and more are to come.
    relay.start(failpoint="before-copy:3:stop")
    relay.wait_frozen()
    topic = f"{relay.name}.accounts"
    remove(services, topic)
    admin = AdminClient({"bootstrap.servers": services.broker})
    admin.create_topics([NewTopic(topic, 3, 1)])[topic].result(30)
    execute(database, f"alter publication {publication} drop table visits")
    execute(database, "delete from visits where id <= 100")
    execute(database, f"alter publication {publication} add table only visits")
    relay.signal(signal.SIGCONT)
    relay.wait("it streams", lambda status: status.state == "streaming", every=0.2)
    reports_and_closes(relay, TABLE, "public.visits")
    relay.wait_caught_up()
    relay.stop()
    assert_equal(services, database, TABLES, relay.name)


def test_a_catalog_that_can_not_be_read_is_reported(
    services: ServiceAddresses, database: str, new_relay: NewRelay
) -> None:
    """The stream continues meanwhile, but it does not show whether a table left the publication."""
    create_tables(database, 1)
    role = f"{new_name()}_reader"
    execute(
        database,
        f"create role {role} login replication password 'x'",
        f"alter table accounts owner to {role}",
        f"alter table visits owner to {role}",
        f"grant create on database {parse_dsn(database)['dbname']} to {role}",
    )
    relay = new_relay("-d", make_dsn(database, user=role, password="x"))
    relay.start()
    relay.wait_streaming()
    assert is_proven(relay.wait_streaming())
    execute(database, "revoke select on pg_catalog.pg_enum from public")
    status = relay.wait("it is reported", not_proven, every=0.2)
    assert {entry.table for entry in status.not_proven} == {"public.accounts", "public.visits"}
    assert all("permission denied for table pg_enum" in one.reason for one in status.not_proven)
    assert status.verdict.condition == "not_proven"
    execute(database, "grant select on pg_catalog.pg_enum to public")
    relay.wait("it is proven", is_proven, every=0.2)
    assert "was not clean" not in relay.log()
    relay.stop()
