"""The answers of the services around the made-up shop: slots, consumers, commands and settings."""

import json
from collections.abc import Sequence

from bwtui.config import listed
from bwtui.model.service_views import (
    NEWEST,
    CommandEntry,
    Commands,
    Configuration,
    Consumers,
    DeadLetterTopic,
    GroupEntry,
    LongRunningTransaction,
    Look,
    LookName,
    PartitionLag,
    RelayedTransaction,
    SlotEntry,
    Slots,
    Stages,
    Standby,
    SubjectVersions,
    Transactions,
    VersionEntry,
    VersionText,
)
from bwtui.settings import RelaySettings
from tests.tui.shop import NOON

MB = 1024**2
GB = 1024**3
DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}


def look(name: LookName, now: float, about: Sequence[str] = ()) -> Look:
    """Return the views at a moment."""
    if name == "slots":
        return slots(now)
    if name == "consumers":
        return consumers(now)
    if name == "stages":
        return Stages(now)
    if name == "letters":
        return DeadLetterTopic(now)
    if name == "subject":
        return subject(now, about)
    if name == "transactions":
        return transactions(now)
    return commands(now) if name == "commands" else configuration(now)


#: Four versions of the orders' values; the relay itself has only the last one.
ORDERS: tuple[tuple[str, ...], ...] = (
    ("id", "customer_id", "status"),
    ("id", "customer_id", "status", "note"),
    ("id", "customer_id", "status", "note", "total"),
    ("id", "customer_id", "status", "total", "placed"),
)


def subject(now: float, about: Sequence[str]) -> SubjectVersions:
    """Return the versions of a subject; only that of the orders' values has more than one."""
    name, wanted = about[0], about[1:]
    if name != "orders-value":
        return SubjectVersions(
            now, name=name, level="BACKWARD", versions=(VersionEntry(1, 1, None, False, 3),)
        )
    entries = (
        VersionEntry(1, 3, NOON - 86400 * 40, False, 3),
        VersionEntry(2, 11, None, True, 4, 1, 0, 0),
        VersionEntry(3, 12, None, False, 5, 1, 0, 0),
        VersionEntry(4, 6, None, False, 5, 1, 1, 0),
    )
    numbers = {3, 4} if NEWEST in wanted else {int(one) for one in wanted if one.isdecimal()}
    texts = tuple(VersionText(number, orders_schema(number)) for number in sorted(numbers))
    return SubjectVersions(now, name=name, level="BACKWARD", versions=entries, texts=texts)


def orders_schema(number: int) -> str:
    """Return the text of a version; adding or removing a field that is never null breaks a rule."""
    kinds = {"status": "string", "total": DECIMAL if number == 3 else "string"}
    fields: list[dict[str, object]] = []
    for field in ORDERS[number - 1]:
        avro = kinds.get(field, "long")
        given = {"type": "long"} if field == "placed" else {"type": ["null", avro], "default": None}
        fields.append({"name": field, **given})
    return json.dumps({"type": "record", "name": "orders_value", "fields": fields})


def slots(now: float) -> Slots:
    """Return an active slot, an inactive one, one of a standby, and a lost one."""
    read = {"plugin": "pgoutput", "database": "shop", "active": True, "wal_status": "reserved"}
    old = {"plugin": "wal2json", "database": "warehouse", "wal_status": "extended"}
    return Slots(
        time=now,
        keep_limit_bytes=40 * GB,
        slots=(
            SlotEntry(
                "bottledwater",
                "logical",
                **read,  # type: ignore[arg-type]
                active_pid=4712,
                restart_lsn="16/B3740000",
                confirmed_lsn="16/B3758A10",
                retained_wal_bytes=2 * MB,
                safe_wal_bytes=40 * GB - 2 * MB,
                spill_bytes=0,
            ),
            SlotEntry(
                "reporting_2024",
                "logical",
                **old,  # type: ignore[arg-type]
                restart_lsn="D/10000000",
                confirmed_lsn="D/10000A38",
                retained_wal_bytes=37 * GB,
                safe_wal_bytes=3 * GB,
                inactive_since=now - 3 * 86400,
                spill_bytes=912 * MB,
            ),
            SlotEntry(
                "standby_a",
                "physical",
                active=True,
                active_pid=811,
                wal_status="reserved",
                restart_lsn="16/B3700000",
                retained_wal_bytes=3 * MB,
                safe_wal_bytes=40 * GB - 3 * MB,
            ),
            SlotEntry(
                "trial",
                "logical",
                "pgoutput",
                "shop",
                wal_status="lost",
                invalidation_reason="wal_removed",
                inactive_since=now - 9 * 86400,
            ),
        ),
        holders=(
            LongRunningTransaction(
                "pid 5120", "batch", "shop", "load", "idle in transaction", now - 1860, True, 91_000
            ),
            LongRunningTransaction(
                "prepared transfer-7", "bank", "shop", "", "prepared", now - 7200, True, 4_100
            ),
            LongRunningTransaction("pid 6001", "analyst", "shop", "psql", "active", now - 42, False, 12),
        ),
        standbys=(
            Standby("standby_a", "10.0.0.7", "streaming", "async", "standby_a", 48_000, 0.02),
            Standby("standby_b", "10.0.0.8", "catchup", "async", None, 2 * GB, 640.0),
        ),
    )


def consumers(now: float) -> Consumers:
    """Return a group that has read everything, one that keeps up, and one without members."""
    late = (
        PartitionLag("public.orders", 2, 41_000, 84_300, 43_300, now - 5400),
        PartitionLag("public.orders", 0, 80_100, 84_211, 4_111, now - 300),
        PartitionLag("public.orders", 1, None, 84_090),
    )
    soon = (PartitionLag("public.order_items", 0, 1_250_000, 1_250_031, 31, now - 1.4),)
    done = tuple(PartitionLag("public.customers", n, 900 + n, 900 + n) for n in range(3))
    return Consumers(
        time=now,
        seconds=0.012,
        groups=(
            GroupEntry("reporting", "empty", 0, ("public.orders",), 47_411, now - 5400, 3, 1, late),
            GroupEntry("search-indexer", "stable", 2, ("public.order_items",), 31, now - 1.4, 1, 0, soon),
            GroupEntry("mailer", "stable", 3, ("public.customers",), 0, None, 3, 0, done),
        ),
    )


def commands(now: float) -> Commands:
    """Statements and requests of all services, one of which failed, and one without an answer."""
    sql = "select (slot_name)::text, (plugin)::text from pg_catalog.pg_replication_slots where slot_name ="
    start = """START_REPLICATION SLOT "bottledwater" LOGICAL 0/0 (proto_version '1', publication_names 'p')"""
    fetch = 'copy (select "photo" from only "public"."products" where "id" operator("pg_catalog".=) cast(…'
    return Commands(
        time=now,
        commands=(
            CommandEntry("PostgreSQL", start, "", 1, now - 60, now - 60, 0.004, 0.004, 0.004),
            CommandEntry("Kafka", "create_topics public.orders", "", 1, now - 59, now - 59, 0.18, 0.18, 0.18),
            CommandEntry(
                "registry",
                "POST /subjects/public.orders-value/versions",
                "HTTP 409",
                2,
                now - 50,
                now - 9,
                0.031,
                0.042,
                0.073,
            ),
            CommandEntry("PostgreSQL", fetch, "", 212, now - 55, now - 2, 0.0004, 0.0031, 0.11),
            CommandEntry("PostgreSQL", sql, "", 60, now - 60, now - 1, 0.0006, 0.0045, 0.05),
            CommandEntry("Kafka", "list_topics", "under way", 1, now - 4, now - 4, 4.0, 4.0, 4.0),
        ),
    )


def configuration(now: float) -> Configuration:
    """Settings of every origin, with a password among them."""
    settings = RelaySettings(
        postgres="postgresql://cdc:hunter2@db.shop:5432/shop",
        topic_prefix="shop",
        kafka_config=(("linger.ms", "20"), ("sasl.password", "hunter2")),
        on_error="log",
        origins=(
            ("postgres", "BWTUI_POSTGRES"),
            ("topic-prefix", "command line"),
            ("on-error", "./bwtui.toml [profile.production]"),
            ("kafka.linger.ms", "./bwtui.toml"),
            ("kafka.sasl.password", "/home/me/.config/bwtui/bwtui.toml"),
        ),
    )
    return Configuration(time=now, settings=listed(settings))


def transactions(now: float) -> Transactions:
    """Return small transactions, one of a million rows, one read twice, one waiting, and one being read."""
    base = int(now)
    small = tuple(
        RelayedTransaction(
            number,
            40_000 + number,
            f"16/B{number:07X}",
            base - number * 0.37,
            1 + number % 4,
            180 * (1 + number % 4),
            base - number * 0.37 + 0.002,
            {"public.orders": 0, "public.order_items": 0} if number % 3 else {"public.audit": 0},
            True,
            0.004 + number % 7 / 1000,
            0.006 + number % 7 / 1000,
        )
        for number in range(10, 60)
    )
    load = {"warehouse.stock": 1_000_000, "public.audit": 204_511}
    special = (
        RelayedTransaction(
            4, 39_001, "16/A0000000", now - 480, 1_204_511, 212_000_000, now - 479, load, True, 14.2, 15.1
        ),
        RelayedTransaction(
            5,
            39_777,
            "16/A8000000",
            now - 95,
            12,
            2_100,
            now - 94,
            {"public.customers": 0},
            True,
            31.0,
            31.8,
            2,
        ),
        RelayedTransaction(
            61, 40_061, "16/B9000000", now - 9, 3, 540, now - 8.9, {"public.orders": 0}, False
        ),
    )
    under_way = (
        RelayedTransaction(
            0, 40_062, "16/BF000000", now - 13, 312_400, 41_000_000, now - 12, {"public.stock": 312_000}
        ),
    )
    return Transactions(
        time=now, total=1_204_777, newest=52, largest=50, under_way=under_way, transactions=small + special
    )
