"""Check the prerequisites of a relay before it starts, without creating or changing anything.

Each prerequisite is one function that raises BwtuiError with the statement that fixes it. `inspect` runs them
in order and returns its findings; ``bwtui doctor`` runs the same ones and shows each result.
"""

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bwtui.errors import RefusedError
from bwtui.model.sql import quote_identifier, quote_qualified
from bwtui.settings import RelaySettings
from bwtui.source import publication
from bwtui.source.catalog import TableFilter, TableInfo, find_named, list_tables
from bwtui.source.connection import Connection, query
from bwtui.source.publication import PublishedTable
from bwtui.source.replica_identity import check_published, unkeyed_refusal
from bwtui.source.slot import HEAL, PLUGIN, SlotInUse, SlotState, check_readable, reserve, slot_state
from bwtui.source.sql_hints import format_sql

# Check the rights that a relay's role needs, and suggest the statements that grant them.

# On Amazon RDS, membership in a role grants the right to replicate, not the attribute.
_ROLE_SQL = """
select r.rolname, r.rolsuper or r.rolreplication or exists (
         select from pg_catalog.pg_roles m
          where m.rolname = 'rds_replication' and pg_catalog.pg_has_role(r.oid, m.oid, 'member'))
  from pg_catalog.pg_roles r where r.rolname = current_user
"""
_CREATE_SQL = """
select current_user, current_database(), pg_catalog.pg_is_in_recovery(),
       pg_catalog.has_database_privilege(current_database(), 'create'),
       exists (select from pg_catalog.pg_publication where pubname = %s)
"""
#: For each table: whether the role may use its schema, whether rows are hidden, and the unreadable columns.
_READ_SQL = """
select n.nspname, c.relname, pg_catalog.has_schema_privilege(n.oid, 'usage'),
       pg_catalog.row_security_active(c.oid),
       array(select a.attname::text from pg_catalog.pg_attribute a
              where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
                and (a.attgenerated = '' or {generated})
                and not pg_catalog.has_column_privilege(c.oid, a.attnum, 'select'))
  from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
 where c.oid = any(%s) order by 1, 2
"""


def check_replicate(connection: Connection) -> str:
    """Return the role's name. Raises RefusedError if it may not replicate."""
    role, allowed = query(connection, _ROLE_SQL)[0]
    if not allowed:
        raise RefusedError(
            f"role {role} lacks the REPLICATION privilege",
            f"let a superuser run: {format_sql(f'ALTER ROLE {quote_identifier(role)} REPLICATION')}",
        )
    return str(role)


def check_create(connection: Connection, name: str, tables: Sequence[TableInfo]) -> str:
    """Return a note that both publications will be created. Raises RefusedError if they can't be."""
    companion = publication.unkeyed_name(name)
    ((role, database, in_recovery, may_create, stands_alone),) = query(connection, _CREATE_SQL, companion)
    if stands_alone:
        message = f"publication {companion} exists, but {name} does not"
        raise RefusedError(message, publication.drop_companion_hint(name))
    statements = format_sql(*publication.create_statements(name, tables))
    if in_recovery:
        message = f"the server is a standby, and publication {name} does not exist"
        raise RefusedError(message, f"run on the primary: {statements}")
    lacking = [] if may_create else [f"lacks the CREATE privilege on database {database}"]
    # A superuser owns them all.
    if unowned := [table.qualified_name for table in tables if not table.owned]:
        lacking.append(f"does not own {', '.join(unowned)}")
    if lacking:
        message = f"role {role} can't create publication {name}: it {' and '.join(lacking)}"
        raise RefusedError(message, f"let a superuser run: {statements}")
    return f"{name} and {companion} will be created"


def check_read(
    connection: Connection, tables: Sequence[TableInfo], published: Sequence[PublishedTable]
) -> str:
    """Return the number of tables, in words. Raises RefusedError if a snapshot could not read one of them."""
    columns = {(table.namespace, table.name): table.columns for table in published}
    closed: dict[str, None] = {}
    hidden: list[tuple[str, str]] = []
    rows_hidden = []
    listable = connection.server_version >= 180000 and published
    sql = _READ_SQL.format(generated="true" if listable else "false")
    for namespace, name, is_open, hides_rows, unreadable in query(connection, sql, [t.oid for t in tables]):
        chosen = columns.get((namespace, name))
        if not is_open:
            closed[namespace] = None
        if any(chosen is None or column in chosen for column in unreadable):
            hidden.append((namespace, name))
        if hides_rows:
            rows_hidden.append(f"{namespace}.{name}")
    role = query(connection, "select current_user")[0][0]
    grantee = quote_identifier(role)
    granted = [f"GRANT USAGE ON SCHEMA {quote_identifier(schema)} TO {grantee}" for schema in closed]
    if hidden:
        listed = ", ".join(quote_qualified(*table) for table in hidden)
        granted.append(f"GRANT SELECT ON {listed} TO {grantee}")
    if granted:
        names = [f"schema {schema}" for schema in closed] + [".".join(table) for table in hidden]
        raise RefusedError(
            f"role {role} can't read {', '.join(names)}", f"let the owner run: {format_sql(*granted)}"
        )
    if rows_hidden:
        raise RefusedError(
            f"row-level security hides rows of {', '.join(rows_hidden)} from role {role}",
            f"let a superuser run: {format_sql(f'ALTER ROLE {grantee} BYPASSRLS')}",
        )
    return f"{len(tables)} tables"


MINIMUM_VERSION = 140_000
#: Wait for a slot that stays active after its relay was killed, until the server notices the closed
#: connection.
_RELEASE_SECONDS = 10.0
_RELEASE_PAUSE_SECONDS = 0.1
#: Maximum number of tables that an error names.
_NAMED = 5
_WAL_LEVEL = "ALTER SYSTEM SET wal_level = logical"

#: Called with a description of what is being waited for.
OnWait = Callable[[str], None]
#: A description of what is being waited for, and the error once that has taken too long.
Obstacle = tuple[str, RefusedError]


@dataclass(frozen=True, slots=True)
class PreflightState:
    """The state of the server as it concerns this relay."""

    server_version: str
    system_identifier: str
    database: str
    slot: SlotState | None
    #: Publications that already exist; empty if they are still to be created.
    publications: tuple[str, ...]
    published: tuple[PublishedTable, ...]
    #: Tables that the relay captures.
    tables: tuple[TableInfo, ...]


@dataclass(frozen=True, slots=True)
class Check:
    """One prerequisite: ``run`` returns its result in a few words, or raises BwtuiError."""

    name: str
    run: Callable[[], str]


def inspect(connection: Connection, settings: RelaySettings, on_wait: OnWait) -> PreflightState:
    """Return the findings. Raises the error of the first unmet prerequisite, or whatever ``on_wait``
    raises.
    """
    for check in server_checks(connection, settings):
        check.run()
        if check.name == "slot":
            # The relay that uses it may have a different publication: the later checks would report that.
            wait_for_release(lambda: slot_state(connection, settings.slot), on_wait)
    slot = wait_for_release(lambda: slot_state(connection, settings.slot), on_wait)
    version, identifier, database = _identity(connection)
    publications = publication.existing(connection, settings.publication_name)
    published = tuple(publication.published_tables(connection, publications)) if publications else ()
    tables = chosen_tables(connection, settings, published if publications else None)
    return PreflightState(version, identifier, database, slot, publications, published, tables)


def server_checks(connection: Connection, settings: RelaySettings) -> Sequence[Check]:
    """Return the prerequisites of the server, the slot and the tables, the most helpful order first."""
    return (
        Check("server version", lambda: _check_version(connection)),
        Check("wal_level", lambda: _check_wal_level(connection)),
        Check("replication privilege", lambda: check_replicate(connection)),
        Check("slot", lambda: _check_slot(connection, settings)),
        Check("tables are keyed", lambda: _check_keys(connection, settings)),
        Check("keys are published", lambda: _check_published(connection, settings)),
        Check("publications", lambda: _check_publications(connection, settings)),
        Check("tables can be read", lambda: _check_readable(connection, settings)),
        Check("room for a slot", lambda: _check_room(connection, settings)),
        Check("room for a WAL sender", lambda: _check_senders(connection, settings)),
    )


def wait_for_release(read_slot: Callable[[], SlotState | None], on_wait: OnWait) -> SlotState | None:
    """Poll the slot until no session uses it. Raises RefusedError if one keeps using it.

    ``on_wait`` is called between two polls with a description of what is being waited for, and may raise.
    """
    slot: SlotState | None = None

    def held() -> Obstacle | None:
        nonlocal slot
        slot = read_slot()
        if slot is None or not slot.active:
            return None
        return (
            f"waiting for slot {slot.name}, which is in use by server process {slot.active_pid}",
            SlotInUse(
                slot.name,
                f"server process {slot.active_pid}",
                "stop the other consumer, or choose a different slot with -s/--slot",
            ),
        )

    wait_while(held, on_wait)
    return slot


def wait_while(
    find_obstacle: Callable[[], Obstacle | None], on_wait: OnWait, pause: Callable[[float], None] = time.sleep
) -> None:
    """Poll until nothing is in the way. Raises the obstacle's error if it stays.

    ``on_wait`` is called before each ``pause`` (seconds) with a description of what is being waited for; both
    may raise.
    """
    deadline = time.monotonic() + _RELEASE_SECONDS
    while (obstacle := find_obstacle()) is not None:
        waiting, refusal = obstacle
        if time.monotonic() > deadline:
            raise refusal
        on_wait(waiting)
        pause(_RELEASE_PAUSE_SECONDS)


def obstacle_to_make(connection: Connection, name: str) -> Obstacle | None:
    """Reserve the creation of slot ``name`` for this session, or return the session that has reserved it."""
    process = reserve(connection, name)
    if process is None:
        return None
    return f"waiting for another relay that is creating slot {name}", RefusedError(
        f"another relay is creating slot {name}, in the server's process {process or '?'}",
        "wait for it, or stop it; if it hangs, end it with: "
        + format_sql(f"SELECT pg_terminate_backend({process})")
        if process
        else "wait until it has finished, then start again",
    )


def _identity(connection: Connection) -> tuple[str, str, str]:
    sql = """select current_setting('server_version'), system_identifier::text, current_database()
               from pg_catalog.pg_control_system()"""
    version, identifier, database = query(connection, sql)[0]
    return str(version), str(identifier), str(database)


def _check_version(connection: Connection) -> str:
    if connection.server_version < MINIMUM_VERSION:
        raise RefusedError(
            f"PostgreSQL {connection.server_version // 10_000} is too old",
            "bwtui needs PostgreSQL 14 or later",
        )
    return str(query(connection, "select current_setting('server_version')")[0][0])


def _check_wal_level(connection: Connection) -> str:
    sql = """select current_setting('wal_level'), current_setting('effective_wal_level', true),
                    pg_catalog.pg_is_in_recovery()"""
    ((level, effective, in_recovery),) = query(connection, sql)
    return enough_wal(level, effective, in_recovery=in_recovery)


def enough_wal(level: str, effective: str | None, *, in_recovery: bool) -> str:
    """Return the level at which the WAL is written, in words. Raises RefusedError if that is too low.

    Since PostgreSQL 19, ``effective`` (effective_wal_level) decides: at wal_level=replica the first logical
    slot raises it to logical. A standby can't do that: its level follows the primary.
    """
    if "logical" in (level, effective):
        return "logical" if level == "logical" else f"logical, although wal_level is {level}"
    if effective is not None and level == "replica":
        if not in_recovery:
            return "replica, and logical once the slot exists"
        raise RefusedError(
            "the primary does not write WAL for logical decoding: its effective_wal_level is replica",
            "create a logical slot on the primary, or run this there and restart it: "
            + format_sql(_WAL_LEVEL),
        )
    raise RefusedError(
        f"the server's wal_level is {level}, not logical",
        f"run this, then restart the server: {format_sql(_WAL_LEVEL)}",
    )


def _check_slot(connection: Connection, settings: RelaySettings) -> str:
    slot = slot_state(connection, settings.slot)
    if slot is None:
        return "will be created"
    another = "choose a different slot with -s/--slot"
    if not slot.plugin:
        raise RefusedError(
            f"slot {slot.name} is a physical replication slot, but the relay needs a logical one",
            another,
        )
    if slot.plugin != PLUGIN:
        raise RefusedError(f"slot {slot.name} uses plugin {slot.plugin}, not {PLUGIN}", another)
    here = query(connection, "select current_database()")[0][0]
    if slot.database != here:
        raise RefusedError(f"slot {slot.name} belongs to database {slot.database}, not {here}", another)
    check_readable(slot, connection.server_version, settings.drop_command)
    return "will be resumed"


def _check_keys(connection: Connection, settings: RelaySettings) -> str:
    tables = selected_tables(connection, settings)
    unkeyed = [table for table in tables if not table.has_key]
    if unkeyed and not settings.allow_unkeyed:
        can_exclude = not settings.tables or len(unkeyed) < len(tables)
        raise unkeyed_refusal(connection, unkeyed, can_exclude=can_exclude)
    return f"{len(tables) - len(unkeyed)} of {len(tables)}"


def _check_published(connection: Connection, settings: RelaySettings) -> str:
    published = _published(connection, settings)
    tables = chosen_tables(connection, settings, published)
    check_published(connection, settings, tables, published)
    return "every key column"


def publication_again(connection: Connection, settings: RelaySettings) -> str:
    """Return how to create the user's own missing publication again, for the selected tables."""
    tables = tuple(filter(TableFilter(settings), list_tables(connection, partitions=False)))
    statement, _ = publication.create_statements(settings.publication_name, tables)
    return f"create it again as it was, for example with: {format_sql(statement)}"


def _publication_hint(connection: Connection, settings: RelaySettings) -> str:
    """Return what to do about a slot whose publication is missing."""
    drop = f"'{settings.drop_command}'"
    if not settings.owns_publication:
        again = publication_again(connection, settings)
        return f"give the slot's publication with --publication, or run {drop}; or {again}"
    if settings.exactly_once:
        return f"run {drop}: the next start then creates both and takes a new snapshot"
    return f"{HEAL} and creates the publication again; or run {drop} for a new snapshot"


def _check_publications(connection: Connection, settings: RelaySettings) -> str:
    name = settings.publication_name
    if names := publication.existing(connection, name):
        return f"{' and '.join(names)} will be read"
    if slot_state(connection, settings.slot) is not None:
        raise RefusedError(
            f"slot {settings.slot} exists, but its publication {name} does not",
            _publication_hint(connection, settings),
        )
    tables = selected_tables(connection, settings)
    if not settings.allow_unkeyed and not all(table.has_key for table in tables):
        return "will be created once every table has a key or is excluded"
    return check_create(connection, name, tables)


def _check_readable(connection: Connection, settings: RelaySettings) -> str:
    if settings.skip_snapshot or slot_state(connection, settings.slot) is not None:
        return "not needed: no snapshot will be taken"
    published = _published(connection, settings)
    tables = chosen_tables(connection, settings, published)
    return check_read(connection, tables, published or ())


def _check_room(connection: Connection, settings: RelaySettings) -> str:
    if slot_state(connection, settings.slot) is not None:
        return "not needed: the slot exists"
    sql = """select current_setting('max_replication_slots')::int,
                    (select count(*)::int from pg_catalog.pg_replication_slots)"""
    limit, used = query(connection, sql)[0]
    needed = 1 if settings.skip_snapshot else 2
    if limit - used < needed:
        raise RefusedError(
            f"{used} of {limit} replication slots are in use, and the relay needs {needed}",
            "drop an unused slot ('bwtui slots list'), or run this and restart the server: "
            + format_sql(f"ALTER SYSTEM SET max_replication_slots = {limit + needed}"),
        )
    return f"{limit - used} of {limit} are free"


def _check_senders(connection: Connection, settings: RelaySettings) -> str:
    # The walsender of the own slot does not count: it ends when the server notices that the relay is gone.
    sql = """select current_setting('max_wal_senders')::int,
                    (select count(*)::int from pg_catalog.pg_stat_replication
                      where pid not in (select active_pid from pg_catalog.pg_replication_slots
                                         where slot_name = %s and active_pid is not null))"""
    limit, used = query(connection, sql, settings.slot)[0]
    if used >= limit:
        raise RefusedError(
            f"{used} of {limit} WAL senders are in use, and the relay needs one",
            "run this, then restart the server: "
            + format_sql(f"ALTER SYSTEM SET max_wal_senders = {limit + 1}"),
        )
    return f"{limit - used} of {limit} are free"


def selected_tables(connection: Connection, settings: RelaySettings) -> tuple[TableInfo, ...]:
    """Return the tables that the relay captures. Raises RefusedError if there are none."""
    return chosen_tables(connection, settings, _published(connection, settings))


def _published(connection: Connection, settings: RelaySettings) -> list[PublishedTable] | None:
    names = publication.existing(connection, settings.publication_name)
    return publication.published_tables(connection, names) if names else None


def chosen_tables(
    connection: Connection, settings: RelaySettings, published: Sequence[PublishedTable] | None
) -> tuple[TableInfo, ...]:
    """Return the tables of ``published`` that the relay captures; without publications, those of all tables.

    Raises RefusedError if the selection matches none.
    """
    chosen = TableFilter(settings)
    # A publication without publish_via_partition_root lists and sends partitions in place of their root.
    listed = list_tables(connection, partitions=published is not None)
    tables = list(filter(chosen, listed))
    if published is not None:
        names = {(table.namespace, table.name) for table in published}
        matching = tables
        tables = [table for table in matching if (table.namespace, table.name) in names]
        if matching and not tables and not chosen.is_open:
            raise _unpublished(connection, settings, matching, {".".join(name) for name in names})
    if not tables and not chosen.is_open:
        if not listed:
            raise RefusedError(
                "no table matches --table and --exclude-table: the database has no permanent table",
                "create the tables, or check the database name in -d/--postgres",
            )
        raise RefusedError(
            "no table matches --table and --exclude-table",
            "each regular expression must match schema.table, or the name of a table in schema public, as a "
            "whole",
        )
    return tuple(tables)


def _unpublished(
    connection: Connection, settings: RelaySettings, matching: Sequence[TableInfo], published: set[str]
) -> RefusedError:
    """Return the error for a selection without any table of the publication."""
    name = settings.publication_name
    for one in find_named(connection, [table.qualified_name for table in matching]):
        if roots := published.intersection(one.ancestors):
            return RefusedError(
                f"table {one.qualified_name} is a partition, and publication {name} publishes it as part of "
                f"table {min(roots)}",
                f"select the root table: --table '{re.escape(min(roots))}'",
            )
    names = [table.qualified_name for table in matching]
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    are = "tables {} are" if len(names) > 1 else "table {} is"
    problem = f"{are.format(', '.join(names[:_NAMED]) + more)} not in publication {name}"
    if not all(table.has_key for table in matching):
        return RefusedError(
            problem, "see 'tables are captured' in 'bwtui doctor' with the same options for the statements"
        )
    added = ", ".join(map(publication.table_clause, matching))
    alter = f"ALTER PUBLICATION {quote_identifier(name)} ADD TABLE {added}"
    return RefusedError(problem, f"let the owner run: {format_sql(alter)}")
