"""Inspect the standbys of a primary, from both ends, without changing anything."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import psycopg2

from bwtui.errors import BwtuiError
from bwtui.source.connection import Connection, connect, query
from bwtui.source.failover.hosts import describe, each_host
from bwtui.source.slot import SlotState, slot_state

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
