"""Assess whether the relay continues after a promotion: is there a standby, and does it synchronize the slot?

None of this is a prerequisite. See docs/failover.md.
"""

from collections.abc import Iterator

from bwtui.model.sql import quote_literal
from bwtui.settings import RelaySettings
from bwtui.source.connection import Connection, query
from bwtui.source.doctor.advice import Advice
from bwtui.source.failover.hosts import names_several
from bwtui.source.failover.standbys import ClusterHost, ConnectedStandby, awaited, connected, hosts
from bwtui.source.slot import slot_state
from bwtui.source.sql_hints import format_sql

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
                yield from _of_standby(host, is_made=slot_state(connection, settings.slot) is not None)
        else:
            primaries.append(host.place)
    if len(primaries) > 1:
        yield Advice(
            "hosts",
            f"{' and '.join(primaries)} both accept writes: the relay uses the first that responds",
            "make the former primary a standby (pg_rewind, or a new pg_basebackup)",
        )


def _of_standby(host: ClusterHost, *, is_made: bool) -> Iterator[Advice]:
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
    if is_made and (host.slot is None or not host.slot.synced or host.slot.temporary):
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
