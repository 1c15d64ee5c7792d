"""The engine's answers to its service views, with real services: slots, consumers, commands, settings."""

import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from bwtui.command_log import COMMANDS
from bwtui.encode.schema_differences import differences
from bwtui.kafka.groups import GroupReader
from bwtui.model.service_views import (
    CHANGES,
    NEWEST,
    Commands,
    Configuration,
    Consumers,
    GroupEntry,
    LookName,
    PartitionLag,
    RelayedTransaction,
    Slots,
    SubjectVersions,
    Transactions,
    look_from_json,
)
from bwtui.relay.process import launch
from bwtui.relay.process.control import RequestRefused, request
from bwtui.sandbox.sandbox import ServiceAddresses
from bwtui.settings import RelaySettings
from bwtui.source import lag as retention
from bwtui.source.connection import connect
from bwtui.source.lag import read_slots
from tests.database import Session, session
from tests.fresh_topic import create_topic
from tests.secure_services import USER, Authority, secure_kafka
from tests.waiting import eventually

SECRET = "hunter2"


# -- PostgreSQL ------------------------------------------------------------------------


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any transaction counts as long."""
    monkeypatch.setattr(retention, "_SESSIONS_SQL", retention._SESSIONS_SQL.replace("'5 s'", "'0 s'"))


def test_every_slot_of_the_server_is_seen(database: str, source: Session) -> None:
    names = [f"look_{time.monotonic_ns():x}_{kind}" for kind in ("logical", "physical")]
    source.run("select pg_create_logical_replication_slot(%s, 'pgoutput')", names[0])
    source.run("select pg_create_physical_replication_slot(%s, true)", names[1])
    try:
        source.run("create table t as select repeat('x', 100) from generate_series(1, 10000)")
        # Also in a different database: its slots retain the same WAL.
        other = database.rpartition("/")[0] + "/postgres"
        with closing(connect(other)) as connection:
            found = {slot.name: slot for slot in read_slots(connection).slots}
        logical, physical = (found[name] for name in names)
        own = source.value("select current_database()")
        assert (logical.type, logical.plugin, logical.database) == ("logical", "pgoutput", own)
        assert (physical.type, physical.plugin, physical.database) == ("physical", None, None)
        for slot in (logical, physical):
            assert not slot.active
            assert slot.wal_status == "reserved"
            assert slot.retained_wal_bytes is not None
            assert slot.retained_wal_bytes > 1_000_000
    finally:
        source.run("select pg_drop_replication_slot(%s)", names[1])


def test_a_transaction_that_holds_back_is_named(database: str, source: Session, soon: None) -> None:
    source.run("create table t (id int)")
    with session(database) as writer, session(database) as reader, closing(connect(database)) as connection:
        writer.run("begin")
        writer.run("insert into t values (1)")
        reader.run("begin isolation level repeatable read")
        reader.run("select from t")
        pids = [one.value("select 'pid ' || pg_backend_pid()") for one in (writer, reader)]
        found = {holder.name: holder for holder in read_slots(connection).holders}
        writes, reads = (found[pid] for pid in pids)
        assert (writes.writes, writes.state) == (True, "idle in transaction")
        assert writes.since is not None
        assert abs(writes.since - time.time()) < 60
        assert (reads.writes, reads.xmin_age is None) == (False, False)


def test_a_role_without_rights_gets_what_there_is_and_one_sentence(
    database: str, source: Session, soon: None
) -> None:
    role = f"looker_{time.monotonic_ns():x}"
    source.run(f"create role {role} login password '{SECRET}'")
    source.run("create table t (id int)")
    try:
        with (
            session(database) as writer,
            closing(connect(f"{database}?user={role}&password={SECRET}")) as weak,
        ):
            writer.run("begin")
            writer.run("insert into t values (1)")
            pid = writer.value("select 'pid ' || pg_backend_pid()")
            look = read_slots(weak)
            holder = next(holder for holder in look.holders if holder.name == pid)
            # Every role may see that the session writes, but not since when.
            assert (holder.writes, holder.since, holder.state) == (True, None, "")
            assert look.failure == ""
            assert [note.endswith(f'GRANT pg_read_all_stats TO "{role}";') for note in look.notes] == [True]
            source.run(f"grant pg_read_all_stats to {role}")
            look = read_slots(weak)
            assert look.notes == ()
            assert next(holder for holder in look.holders if holder.name == pid).since is not None
    finally:
        source.run(f"drop role {role}")


# -- Kafka -----------------------------------------------------------------------------


@pytest.fixture
def topic(services: ServiceAddresses) -> str:
    """A topic of two partitions."""
    name = f"look-{time.monotonic_ns():x}"
    config = {"retention.ms": "-1"}
    create_topic(AdminClient({"bootstrap.servers": services.broker}), NewTopic(name, 2, 1, config=config))
    return name


@pytest.fixture
def reader(services: ServiceAddresses) -> Iterator[GroupReader]:
    """Return a reader of consumer groups."""
    opened = GroupReader({"bootstrap.servers": services.broker})
    yield opened
    opened.close()


def produce(services: ServiceAddresses, topic: str, number: int, partition: int = 0, stamp: int = 0) -> None:
    """Send messages whose timestamps begin at ``stamp`` milliseconds and are one second apart."""
    producer = Producer({"bootstrap.servers": services.broker})
    for index in range(number):
        producer.produce(topic, b"x", partition=partition, timestamp=stamp + 1000 * index)
    producer.flush(30)


def commit(services: ServiceAddresses, group: str, *offsets: TopicPartition) -> None:
    """Commit as a consumer of ``group`` would."""
    config = {"bootstrap.servers": services.broker, "group.id": group, "enable.auto.commit": False}
    with closing(Consumer(config)) as consumer:
        consumer.commit(offsets=list(offsets), asynchronous=False)


def groups(reader: GroupReader, topic: str) -> dict[str, GroupEntry]:
    look = reader.poll([topic])
    assert look.failure == ""
    return {group.name: group for group in look.groups}


def test_a_group_is_behind_by_what_it_committed(
    services: ServiceAddresses, reader: GroupReader, topic: str
) -> None:
    stamp = 1_700_000_000_000
    produce(services, topic, 10, stamp=stamp)
    produce(services, topic, 3, partition=1)
    late, done = f"{topic}-late", f"{topic}-done"
    commit(services, late, TopicPartition(topic, 0, 4))
    commit(services, done, TopicPartition(topic, 0, 10), TopicPartition(topic, 1, 3))
    commit(services, f"{topic}-elsewhere", TopicPartition("__consumer_offsets", 0, 1))
    found = groups(reader, topic)
    assert list(found) == [late, done]
    behind = found[late]
    assert (behind.unread, behind.unread_since, behind.partition_count) == (6, stamp / 1000 + 4, 2)
    assert (behind.state, behind.members, behind.uncommitted) == ("empty", 0, 1)
    lags = [(lag.partition, lag.committed, lag.end) for lag in behind.partitions]
    assert lags == [(0, 4, 10), (1, None, 3)]
    assert (found[done].unread, found[done].unread_since, found[done].uncommitted) == (0, None, 0)
    # A broker that has answered before and now closes connections does not need another protocol.
    assert reader._heard.has_answered
    # Records are not read again until the group has moved on.
    before = _reads()
    assert groups(reader, topic)[late] == behind
    assert _reads() == before
    commit(services, late, TopicPartition(topic, 0, 9))
    assert groups(reader, topic)[late].unread_since == stamp / 1000 + 9
    assert _reads() == before + 1


def _reads() -> int:
    found = COMMANDS.snapshot().commands
    return sum(entry.count for entry in found if entry.text.startswith("read the first unread"))


def _at_end(lag: PartitionLag, end: int) -> PartitionLag | None:
    return lag if lag.end == end else None


def test_a_mark_of_a_transaction_is_nothing_to_read(
    services: ServiceAddresses, reader: GroupReader, topic: str
) -> None:
    producer = Producer({"bootstrap.servers": services.broker, "transactional.id": topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"x", partition=0)
    producer.commit_transaction(30)
    commit(services, topic, TopicPartition(topic, 0, 1))
    # Kafka writes the mark a moment after it has answered the commit.
    lag = eventually("the mark", lambda: _at_end(groups(reader, topic)[topic].partitions[0], 2))
    assert (lag.committed, lag.unread) == (1, 0)
    produce(services, topic, 1)
    assert groups(reader, topic)[topic].unread == 2


def test_kafka_that_is_away_is_one_sentence() -> None:
    with closing(GroupReader({"bootstrap.servers": "127.0.0.1:1", "socket.timeout.ms": 1000})) as reader:
        look = reader.poll(["t"])
    assert look.failure.startswith("can't reach Kafka at 127.0.0.1:1")
    assert look.groups == ()


def test_a_user_without_rights_is_told_what_is_missing(tmp_path: Path) -> None:
    with secure_kafka(Authority(tmp_path)) as config, closing(GroupReader({**config})) as reader:
        admin = AdminClient({**config})
        create_topic(admin, NewTopic("guarded", 1, 1))
        with closing(Consumer({**config, "group.id": "secret", "enable.auto.commit": False})) as consumer:
            consumer.commit(offsets=[TopicPartition("guarded", 0, 0)], asynchronous=False)
        eventually("the group is seen", lambda: [group.name for group in reader.poll(["guarded"]).groups])
        name = (ResourceType.GROUP, "secret", ResourcePatternType.LITERAL, f"User:{USER}", "*")
        denied = AclBinding(*name, AclOperation.DESCRIBE, AclPermissionType.DENY)
        for change in admin.create_acls([denied]).values():
            change.result(30)
        look = eventually("it is refused", lambda: _without_groups(reader.poll(["guarded"])))
        assert look.failure == ""
        assert len(look.notes) == 1
        assert "ACL" in look.notes[0]


def _without_groups(look: Consumers) -> Consumers | None:
    return None if look.groups else look


# -- the engine ------------------------------------------------------------------------


@pytest.fixture
def relay(
    database: str,
    services: ServiceAddresses,
    source: Session,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[str]:
    """The name of a relay in a separate process, on one table with large values."""
    monkeypatch.setenv("BWTUI_STATE_HOME", str(tmp_path))
    source.run("create table t (id text primary key, n int, body text)")
    source.run("alter table t alter column body set storage external")
    source.run("insert into t values (%s, 1, repeat('x', 10000))", SECRET)
    name = f"look_{time.monotonic_ns():x}"
    settings = RelaySettings(
        postgres=database,
        slot=name,
        topic_prefix=name,
        broker=services.broker,
        schema_registry=services.schema_registry,
        kafka_config=(("sasl.password", SECRET),),
        origins=(("slot", "command line"), ("kafka.sasl.password", "./bwtui.toml")),
    )
    engine = launch.start(settings)
    try:
        engine.wait_ready()
        yield name
    finally:
        engine.stop()
        source.wait_released(name)


def ask(relay: str, name: LookName) -> Any:
    return look_from_json(name, request(relay, {"request": name}))


def test_the_engine_answers_at_once_and_looks_while_it_is_asked(
    relay: str, services: ServiceAddresses, source: Session
) -> None:
    eventually("it streams", lambda: source.reader(relay))
    slots: Slots = eventually("the slots were looked at", lambda: _if_taken(ask(relay, "slots")))
    assert relay in [slot.name for slot in slots.slots if slot.active]
    commit(services, f"{relay}-group", TopicPartition(f"{relay}.t", 0, 0))
    found = eventually("the group is seen", lambda: ask(relay, "consumers").groups)
    assert [group.name for group in found] == [f"{relay}-group"]
    configuration: Configuration = ask(relay, "configuration")
    known = {one.name: (one.value, one.origin) for one in configuration.settings}
    assert known["slot"] == (relay, "command line")
    assert known["kafka.sasl.password"] == ("***", "./bwtui.toml")
    assert known["toast"] == ("fetch", "default")


def _if_taken(look: Slots) -> Slots | None:
    return look if look.time else None


def test_the_log_has_every_service_and_no_value_of_a_row(relay: str, source: Session) -> None:
    eventually("it streams", lambda: source.reader(relay))
    for number in range(20):
        source.run("update t set n = %s", number)
    eventually("large values were fetched", partial(_fetches, relay))
    commands: Commands = ask(relay, "commands")
    by_service = {entry.service for entry in commands.commands}
    assert by_service == {"PostgreSQL", "registry", "Kafka"}
    texts = [entry.text for entry in commands.commands]
    assert any(text.startswith("CREATE_REPLICATION_SLOT") for text in texts)
    assert any(text.startswith("START_REPLICATION SLOT") for text in texts)
    assert any(text.startswith("POST ") and text.endswith(f"{relay}.t-value/versions") for text in texts)
    assert any(text == f"create_topics {relay}.t" for text in texts)
    assert SECRET not in "".join(texts)
    assert len(commands.commands) < 150


def _fetches(relay: str) -> bool:
    commands: Commands = ask(relay, "commands")
    texts = [entry.text for entry in commands.commands]
    return any(text.startswith("copy (select ") and '"body" from' in text for text in texts)


def test_the_versions_of_a_subject_are_told_while_somebody_asks(relay: str, source: Session) -> None:
    eventually("it streams", lambda: source.reader(relay))
    source.run("insert into t values ('a', 1, 'x')")
    source.run("alter table t add column added int")
    source.run("insert into t values ('b', 1, 'x')")
    about = [f"{relay}.t-value", CHANGES, NEWEST]

    def both() -> SubjectVersions | None:
        seen: Any = look_from_json("subject", request(relay, {"request": "subject", "about": about}))
        return seen if len(seen.texts) == 2 and seen.versions[-1].added is not None else None

    seen = eventually("both versions are told", both)
    assert seen.failure == ""
    assert seen.level in ("NONE", "BACKWARD", "FULL")
    assert [(one.version, one.added, one.removed) for one in seen.versions] == [(1, None, None), (2, 1, 0)]
    [difference] = differences(*(text.schema for text in seen.texts))
    assert (difference.field, difference.kind) == ("added", "added")
    with pytest.raises(RequestRefused, match="not a list of strings"):
        request(relay, {"request": "subject", "about": "t"})


def test_transactions_are_listed_with_what_they_took(relay: str, source: Session) -> None:
    eventually("it streams", lambda: source.reader(relay))
    for number in range(5):
        source.run("insert into t values (%s, 1, '')", f"small {number}")
    source.run("insert into t select 'large ' || n, 1, repeat('x', 20) from generate_series(1, 5000) n")
    source.run("create table other (id int)")
    source.run("insert into other values (1)")

    def all_acknowledged() -> list[RelayedTransaction] | None:
        look: Transactions = ask(relay, "transactions")
        found = sorted(look.transactions, key=lambda one: one.number)
        return found if len(found) == 6 and all(one.relayed_seconds is not None for one in found) else None

    *small, large = eventually("all are acknowledged", all_acknowledged)
    assert [one.rows for one in small] == [1] * 5
    assert {tuple(one.tables or ()) for one in small} == {("public.t",)}
    assert (large.rows, large.tables) == (5_000, {"public.t": 5_000})
    assert large.bytes > 5_000 * 20
    for one in (*small, large):
        assert one.acknowledged
        assert one.relayed_seconds is not None
        assert one.commit_seconds is not None
        assert 0 <= one.relayed_seconds < 60
        # Both clocks are this machine's.
        assert one.relayed_seconds <= one.commit_seconds < 60
        assert abs(one.commit_time - time.time()) < 60
    assert large.xid == source.value("select xmin::text::bigint from t where id = 'large 1'")
    assert len({one.commit_lsn for one in (*small, large)}) == 6
