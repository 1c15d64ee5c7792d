"""The standbys of a primary, as it sees them, and as they see themselves; nothing is changed."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import psycopg2

from bwtui.errors import BwtuiError
from bwtui.source.connection import Connection, connect, query
from bwtui.source.failover.hosts import describe, each_host
from bwtui.source.slot import SlotState, slot_state

# For a standby that sends feedback the primary keeps what its queries see, in its slot or its sender. One
# that has just come, or of which the role may see nothing, is believed to send it.
_CONNECTED_SQL = """
select coalesce(nullif(r.application_name, ''), 'pid ' || r.pid), s.slot_name::text,
       coalesce(r.backend_xmin, s.xmin, s.catalog_xmin) is not null or r.state is null
       or r.backend_start > pg_catalog.clock_timestamp() - interval '1 minute'
  from pg_catalog.pg_stat_replication r
  left join pg_catalog.pg_replication_slots s on s.active_pid = r.pid
 where s.slot_type is distinct from 'logical' and r.state is distinct from 'backup'
 order by 1, 2
"""
# Each slot that failover slots wait for, and whether a standby reads it: null where there is none.
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
class Connected:
    """A standby that reads WAL from the primary."""

    name: str
    #: The physical slot that it reads through.
    slot: str | None
    #: Whether it tells what its queries, and its slots, still need.
    feeds_back: bool


@dataclass(frozen=True, slots=True)
class Host:
    """A server at one of the hosts of ``-d``."""

    place: str
    in_recovery: bool
    system_identifier: str
    #: Those of `_OWN_SQL` that the role may see.
    settings: dict[str, str | None]
    #: Its slot of the relay's name.
    slot: SlotState | None


def connected(connection: Connection) -> list[Connected]:
    """Return the standbys that are connected to the server."""
    return [Connected(*row) for row in query(connection, _CONNECTED_SQL)]


def awaited(connection: Connection) -> dict[str, bool | None]:
    """Return the slots of synchronized_standby_slots: whether a standby reads each; None, it is missing."""
    return {str(name): active for name, active in query(connection, _AWAITED_SQL)}


def hosts(dsn: str, slot: str) -> Iterator[Host | tuple[str, BwtuiError]]:
    """Yield what answers at each host that ``dsn`` names, or its place and why nothing does."""
    for one in each_host(dsn):
        try:
            with contextlib.closing(connect(one)) as connection:
                ((in_recovery, identifier, settings),) = query(connection, _OWN_SQL)
                yield Host(describe(one), in_recovery, identifier, settings, slot_state(connection, slot))
        except BwtuiError as error:
            yield describe(one), error
        except psycopg2.Error as error:
            problem = error.diag.message_primary or "the connection was lost"
            yield describe(one), BwtuiError(f"PostgreSQL: {problem}", "check PostgreSQL's log")
