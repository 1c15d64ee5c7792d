"""Advise on settings and tables that may cause trouble later, each with the statement that fixes it."""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import psycopg2

from bwtui.errors import BwtuiError
from bwtui.model.sql import quote_literal, quote_qualified
from bwtui.settings import RelaySettings
from bwtui.source.connection import Connection, connect, query
from bwtui.source.hosts import describe, each_host, names_several
from bwtui.source.preflight import selected_tables
from bwtui.source.publication_coverage import Shortfall, is_chosen
from bwtui.source.replica_identity import unused_key
from bwtui.source.slot import SlotState, slot_state
from bwtui.source.sql_hints import format_sql

#: Maximum number of tables that a note names.
_NAMED = 5
_SETTINGS_SQL = "select name, setting from pg_catalog.pg_settings where name = any(%s)"
_RELOAD = "SELECT pg_reload_conf()"
_TOAST_SQL = """
select c.oid from pg_catalog.pg_class c
 where c.oid = any(%s) and c.relreplident <> 'f' and c.reltoastrelid <> 0
   and pg_catalog.pg_relation_size(c.reltoastrelid) > 0
"""
# A root's own setting does not apply to its partitions, and those receive the writes.
_NOTHING_SQL = """
select root.oid, n.nspname, c.relname
  from pg_catalog.pg_class root
 cross join lateral (
       select root.oid as relid union select relid from pg_catalog.pg_partition_tree(root.oid)) t
  join pg_catalog.pg_class c on c.oid = t.relid
  join pg_catalog.pg_namespace n on n.oid = c.relnamespace
 where root.oid = any(%s) and c.relreplident = 'n' order by 2, 3
"""


@dataclass(frozen=True, slots=True)
class Advice:
    """One piece of advice; ``hint`` says what to run."""

    name: str
    message: str
    hint: str


def outside_publication(settings: RelaySettings, shortfalls: Iterable[Shortfall]) -> Iterator[Advice]:
    """Yield advice about tables that are missing from the user's own publication."""
    names = [one.table or "" for one in shortfalls if not is_chosen(settings, one)]
    if not names:
        return
    listed = ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
    yield Advice(
        "tables outside the publication",
        f"publication {settings.publication_name} does not contain {len(names)}: {listed}",
        "no action is needed if that is intended; otherwise run this again with --table for each of them: "
        "'tables are captured' then prints the statements",
    )


def advice(connection: Connection, settings: RelaySettings) -> Iterator[Advice]:
    """Yield advice for the time before the relay starts. Raises RefusedError if no table is chosen."""
    yield from _of_server(connection)
    yield from _of_tables(connection, settings)


#: By setting: a test of its value, the message, and the statement to run.
_SERVER: dict[str, tuple[Callable[[str], bool], str, str]] = {
    "max_slot_wal_keep_size": (
        lambda value: value == "-1",
        "a stalled relay retains WAL without a limit, until the server's disk is full",
        "ALTER SYSTEM SET max_slot_wal_keep_size = '50GB'",
    ),
    "wal_sender_timeout": (
        lambda value: value == "0",
        "the server never detects a lost network connection to the relay, so its slot stays active",
        "ALTER SYSTEM SET wal_sender_timeout = '60s'",
    ),
    "idle_replication_slot_timeout": (
        lambda value: value != "0",
        "the server invalidates the slot of a relay that is down for that long",
        "ALTER SYSTEM SET idle_replication_slot_timeout = 0",
    ),
}


def _of_server(connection: Connection) -> Iterator[Advice]:
    for name, value in sorted(query(connection, _SETTINGS_SQL, list(_SERVER))):
        applies, message, statement = _SERVER[name]
        if applies(value):
            # Printed separately, not as one transaction: ALTER SYSTEM can't run in a transaction block.
            yield Advice(name, message, f"run: {format_sql(statement)} {format_sql(_RELOAD)}")


def _of_tables(connection: Connection, settings: RelaySettings) -> Iterator[Advice]:
    tables = selected_tables(connection, settings)
    toasted = {row[0] for row in query(connection, _TOAST_SQL, [table.oid for table in tables])}
    nothing: dict[int, list[str]] = {}
    for oid, namespace, relation in query(connection, _NOTHING_SQL, [table.oid for table in tables]):
        nothing.setdefault(oid, []).append(f"{_alter(namespace, relation)} DEFAULT")
    for table in tables:
        name = f"table {table.qualified_name}"
        if statements := nothing.get(table.oid):
            message = "REPLICA IDENTITY NOTHING: updates and deletes are not captured"
            yield Advice(name, message, f"run: {format_sql(*statements)}")
        elif not table.has_key and not settings.allow_unkeyed:
            # It is not relayed, as a failed check has already reported.
            pass
        elif unused := None if table.has_key else unused_key(connection, table):
            message = f"{unused.says}: messages have a null key and no defined order"
            yield Advice(name, message, unused.hint)
        elif not table.has_key:
            full = table.replica_identity == "f"
            message = "no key: messages have a null key and no defined order" + (
                "; deletes are not captured" if full else "; updates and deletes are not captured"
            )
            yield Advice(name, message, "add a primary key: the columns that identify its rows")
        if table.oid in toasted:
            message = "an UPDATE sends large values only if it changes them (see --toast)"
            yield Advice(name, message, f"run: {format_sql(f'{_alter(table.namespace, table.name)} FULL')}")


def _alter(namespace: str, name: str) -> str:
    return f"ALTER TABLE {quote_qualified(namespace, name)} REPLICA IDENTITY"


# Inspect the standbys of a primary, from both ends, without changing anything.

# If a standby sends feedback, the primary keeps the xmin of its queries, in its slot or in its walsender. A
# standby that has just connected, or whose details the role may not see, is assumed to send it.
_CONNECTED_SQL = """
select coalesce(nullif(r.application_name, ''), 'pid ' || r.pid), s.slot_name::text,
       coalesce(r.backend_xmin, s.xmin, s.catalog_xmin) is not null or r.state is null
       or r.backend_start > pg_catalog.clock_timestamp() - interval '1 minute'
  from pg_catalog.pg_stat_replication r
  left join pg_catalog.pg_replication_slots s on s.active_pid = r.pid
 where s.slot_type is distinct from 'logical' and r.state is distinct from 'backup'
 order by 1, 2
"""
# The slots that failover slots wait for, and whether a standby reads each; null if the slot does not exist.
_AWAITED_SQL = """
select pg_catalog.btrim(n.name), s.active
  from pg_catalog.string_to_table(
       pg_catalog.current_setting('synchronized_standby_slots', true), ',') n (name)
  left join pg_catalog.pg_replication_slots s
    on s.slot_name = pg_catalog.btrim(n.name) and s.slot_type = 'physical'
 where pg_catalog.btrim(n.name) <> ''
"""
_OWN_SQL = """
select pg_catalog.pg_is_in_recovery(),
       (select system_identifier::text from pg_catalog.pg_control_system()),
       (select pg_catalog.jsonb_object_agg(name, setting) from pg_catalog.pg_settings
         where name in ('sync_replication_slots', 'hot_standby_feedback', 'primary_slot_name',
                        'primary_conninfo'))
"""


@dataclass(frozen=True, slots=True)
class ConnectedStandby:
    """A standby that reads WAL from the primary."""

    name: str
    #: The physical slot that it reads through.
    slot: str | None
    #: True if it reports the xmin that its queries and slots still need (hot_standby_feedback).
    feeds_back: bool


@dataclass(frozen=True, slots=True)
class ClusterHost:
    """A server at one of the hosts of ``-d``."""

    place: str
    in_recovery: bool
    system_identifier: str
    #: The settings of `_OWN_SQL` that the role may see.
    settings: dict[str, str | None]
    #: The slot there that has the name of the relay's slot.
    slot: SlotState | None


def connected(connection: Connection) -> list[ConnectedStandby]:
    """Return the standbys that are connected to the server."""
    return [ConnectedStandby(*row) for row in query(connection, _CONNECTED_SQL)]


def awaited(connection: Connection) -> dict[str, bool | None]:
    """Return whether a standby reads each slot of synchronized_standby_slots; None for a missing slot."""
    return {str(name): active for name, active in query(connection, _AWAITED_SQL)}


def hosts(dsn: str, slot: str) -> Iterator[ClusterHost | tuple[str, BwtuiError]]:
    """Yield the server at each host of ``dsn``, or the host and the error if it can't be reached."""
    for one in each_host(dsn):
        try:
            with contextlib.closing(connect(one)) as connection:
                ((in_recovery, identifier, settings),) = query(connection, _OWN_SQL)
                yield ClusterHost(
                    describe(one), in_recovery, identifier, settings, slot_state(connection, slot)
                )
        except BwtuiError as error:
            yield describe(one), error
        except psycopg2.Error as error:
            problem = error.diag.message_primary or "the connection was lost"
            yield describe(one), BwtuiError(f"PostgreSQL: {problem}", "check PostgreSQL's log")


# Assess whether the relay continues after a promotion: is there a standby, and does it synchronize the slot?
#
# None of this is a prerequisite. See docs/failover.md.

#: The first version that synchronizes slots to standbys.
SINCE = 170_000
_RELOAD = "SELECT pg_reload_conf()"


def prospect(connection: Connection, settings: RelaySettings) -> str:
    """Return what would happen to the slot in a promotion, in one line."""
    if _is_standby(connection):
        return "not checked: the server is a standby"
    standbys = connected(connection)
    if not standbys:
        return "no standby is connected"
    names = ", ".join(one.name for one in standbys)
    if connection.server_version < SINCE:
        return (
            f"{names} can't synchronize the slot before PostgreSQL 17; use 'connect --heal' after a promotion"
        )
    if settings.failover is False:
        return f"--no-failover: {names} will not have the slot"
    slot = slot_state(connection, settings.slot)
    if slot is None:
        return f"the slot will be created as a failover slot, for {names}"
    if not slot.failover and not (settings.failover or names_several(settings.postgres)):
        return f"the slot is not a failover slot, so {names} will not have it: --failover makes it one"
    if not slot.failover:
        waits = "; the relay then receives nothing while a standby in synchronized_standby_slots is down"
        waits = waits if awaited(connection) else ""
        return f"the slot becomes a failover slot, for {names}, when the relay starts{waits}"
    return f"the slot is a failover slot, for {names}"


def failover_advice(connection: Connection, settings: RelaySettings) -> Iterator[Advice]:
    """Yield advice on obstacles to continuing after a promotion; nothing without a standby."""
    if _is_standby(connection):
        return
    standbys = connected(connection)
    several = names_several(settings.postgres)
    if standbys and not several:
        names = ", ".join(one.name for one in standbys)
        yield Advice(
            "failover",
            f"-d/--postgres names one host, but {names} may be promoted: the relay follows only if the "
            "address moves along",
            "name all hosts: -d 'host=one,two dbname=…'; the relay then looks for the primary among them",
        )
    if connection.server_version >= SINCE and settings.failover is not False:
        for one in standbys:
            yield from _of_connected(one)
        if standbys:
            yield from _of_waiting(connection, standbys)
    if several:
        yield from _of_hosts(connection, settings)


def _is_standby(connection: Connection) -> bool:
    return bool(query(connection, "select pg_catalog.pg_is_in_recovery()")[0][0])


def _of_connected(standby: ConnectedStandby) -> Iterator[Advice]:
    name = f"standby {standby.name}"
    if standby.slot is None:
        yield Advice(
            name,
            "it reads WAL without a physical slot, which slot synchronization requires",
            "set primary_slot_name on the standby, and create that slot on the primary: "
            + format_sql("SELECT pg_create_physical_replication_slot('standby_1')"),
        )
    if not standby.feeds_back:
        yield Advice(
            name,
            "hot_standby_feedback seems to be off, but slot synchronization requires it",
            "run there: " + _set("hot_standby_feedback", "on"),
        )


def _of_waiting(connection: Connection, standbys: list[ConnectedStandby]) -> Iterator[Advice]:
    """Yield advice on synchronized_standby_slots."""
    waited = awaited(connection)
    if not waited:
        names = ", ".join(quote_literal(one.slot) for one in standbys if one.slot)
        yield Advice(
            "synchronized_standby_slots",
            "the relay may receive changes before a standby does: a promoted standby may lack them",
            "run: " + _set("synchronized_standby_slots", names or "'standby_1'"),
        )
    for slot, active in waited.items():
        if active:
            continue
        problem = "no standby reads it" if active is False else "that physical slot does not exist"
        yield Advice(
            "synchronized_standby_slots",
            f"it names {slot}, but {problem}: the relay receives nothing until that is fixed",
            "start that standby, or remove its slot from the setting",
        )


def _of_hosts(connection: Connection, settings: RelaySettings) -> Iterator[Advice]:
    """Yield advice on each host of ``-d``, after connecting to each separately."""
    identifier = query(connection, "select system_identifier::text from pg_catalog.pg_control_system()")[0][0]
    primaries = []
    for host in hosts(settings.postgres, settings.slot):
        if not isinstance(host, ClusterHost):
            place, error = host
            yield Advice(f"host {place}", f"it can't be reached: {error.message}", error.hint)
        elif host.system_identifier != identifier:
            yield Advice(
                f"host {host.place}",
                "it belongs to a different cluster: its system identifier differs",
                "list only hosts of one cluster in -d/--postgres",
            )
        elif host.in_recovery:
            if connection.server_version >= SINCE and settings.failover is not False:
                yield from _of_standby(host, slot_exists=slot_state(connection, settings.slot) is not None)
        else:
            primaries.append(host.place)
    if len(primaries) > 1:
        yield Advice(
            "hosts",
            f"{' and '.join(primaries)} both accept writes: the relay uses the first that responds",
            "make the former primary a standby (pg_rewind, or a new pg_basebackup)",
        )


def _of_standby(host: ClusterHost, *, slot_exists: bool) -> Iterator[Advice]:
    name, of = f"standby {host.place}", host.settings

    for setting, wrong, value in (
        ("sync_replication_slots", "off", "on"),
        ("hot_standby_feedback", "off", "on"),
        ("primary_slot_name", "", "'standby_1'"),
    ):
        if of.get(setting) == wrong:
            problem = f"{setting} is {wrong or 'empty'}: no slot is synchronized"
            yield Advice(name, problem, "run there: " + _set(setting, value))
    # Only superusers and members of pg_read_all_settings see it.
    conninfo = of.get("primary_conninfo")
    if conninfo and "dbname" not in conninfo:
        yield Advice(
            name,
            "primary_conninfo has no dbname: no slot is synchronized",
            "add dbname=postgres to primary_conninfo there; then run: " + format_sql(_RELOAD),
        )
    if slot_exists and (host.slot is None or not host.slot.synced or host.slot.temporary):
        problem = "does not exist there" if host.slot is None else "is not synchronized"
        yield Advice(
            name,
            f"the slot {problem}: a relay could not continue from it after a promotion",
            "fix this standby's other findings, wait a minute, and run doctor again; otherwise check its log",
        )
    elif host.slot is not None and host.slot.wal_status == "lost":
        yield Advice(
            name,
            "the slot is lost there: the standby removed WAL that it needs",
            "raise max_slot_wal_keep_size there; the standby then synchronizes the slot again",
        )


def _set(setting: str, value: str) -> str:
    # Printed separately, not as one transaction: ALTER SYSTEM can't run in a transaction block.
    return f"{format_sql(f'ALTER SYSTEM SET {setting} = {value}')} {format_sql(_RELOAD)}"


# Find tables that may omit unchanged large values from the replication stream.

# A table without a TOAST table has no large values. The rows of a partitioned table are in its partitions.
_TABLES_SQL = """
select c.oid from pg_catalog.pg_class c
 where c.oid = any(%s) and c.relreplident <> 'f'
   and (c.reltoastrelid <> 0
        or exists (select from pg_catalog.pg_partition_tree(c.oid) t
                     join pg_catalog.pg_class p on p.oid = t.relid where p.reltoastrelid <> 0))
"""
_MEANING = {
    "fetch": "missing values are read from the table",
    "error": "--on-error applies to rows without them",
    "placeholder": "missing values are marked in the messages",
}


def large_values(connection: Connection, settings: RelaySettings) -> str:
    """Return the affected tables, and how --toast handles them, in one line. Raises RefusedError."""
    tables = [table for table in selected_tables(connection, settings) if table.has_key]
    oids = {row[0] for row in query(connection, _TABLES_SQL, [table.oid for table in tables])}
    names = ", ".join(table.qualified_name for table in tables if table.oid in oids)
    if not names:
        return "no table omits any"
    return f"--toast {settings.toast}: {_MEANING[settings.toast]} ({names}); REPLICA IDENTITY FULL sends them"
