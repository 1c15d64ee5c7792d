"""Recreate a lost slot: create its publication, drop the old slot, and determine where the new one begins."""

from collections.abc import Callable

from bwtui.errors import ConnectionFailed, RefusedError, SlotLost
from bwtui.model.sql import quote_identifier
from bwtui.relay.promotion.former_primary import refuse_former
from bwtui.relay.slot_checkpoint import SlotCheckpointStore
from bwtui.settings import RelaySettings
from bwtui.source import publication, slot
from bwtui.source.connection import Connection, execute, query
from bwtui.source.preflight import chosen_tables, wait_for_release
from bwtui.source.raw.session import ServerError, connect_raw, execute_raw
from bwtui.source.raw.timeline import ServerIdentity, identify
from bwtui.source.slot import SlotState

OnWait = Callable[[str], None]
#: Two sessions that get the same answer are with the same server, whichever servers share the address.
_SERVER_SQL = "select pg_catalog.pg_postmaster_start_time()::text"


def lost(connection: Connection, settings: RelaySettings, checkpoint: SlotCheckpointStore) -> SlotLost | None:
    """Return how the slot is lost, if it is: missing, moved, without its WAL, or without its publication."""
    state = slot.slot_state(connection, settings.slot)
    try:
        checkpoint.check(state)
        if state is not None and state.plugin == slot.PLUGIN:
            slot.check_readable(state, connection.server_version)
    except SlotLost as error:
        return error
    except RefusedError:
        # The slot exists but can't be read. The checks at startup report what helps.
        return None
    if (
        state is not None
        and settings.owns_publication
        and not publication.existing(connection, settings.publication_name)
    ):
        return SlotLost(
            f"slot {settings.slot} exists, but its publication {settings.publication_name} is missing",
            "changes written since then were not published",
        )
    return None


def lost_here(
    connection: Connection, settings: RelaySettings, checkpoint: SlotCheckpointStore, how: SlotLost
) -> SlotLost | None:
    """Return how the slot is lost on the server of ``connection``, where it would be dropped.

    ``how`` is how it was lost on the server that answered before; one address may reach several servers.
    Raises ConnectionFailed for a server of a different cluster, for a standby unless the slot was on a
    standby, and for a former primary if several hosts are configured.
    """
    server = _server(connection, settings)
    try:
        checkpoint.check_cluster(server)
    except RefusedError as error:
        raise ConnectionFailed(
            error.message, "the relay does not create the slot there; point the address at the slot's server"
        ) from error
    if server.in_recovery and not checkpoint.on_standby:
        raise ConnectionFailed(
            "a standby answered, but the slot was not on a standby",
            "the relay recreates the slot once the primary answers; point the address at the primary",
        )
    refuse_former(settings, checkpoint, server.timeline)
    try:
        checkpoint.common_end(server, accept=settings.accept_divergence)
    except SlotLost as error:
        return error
    if slot.slot_state(connection, settings.slot) is None:
        return how
    return lost(connection, settings, checkpoint)


def _server(connection: Connection, settings: RelaySettings) -> ServerIdentity:
    """Return the server of ``connection``; only a replication session can read its timeline history."""
    session = connect_raw(settings.postgres)
    try:
        server, began = identify(session), execute_raw(session, _SERVER_SQL)
    except ServerError as error:
        raise ConnectionFailed(error.message, "check PostgreSQL's log") from error
    finally:
        session.finish()
    if began != query(connection, _SERVER_SQL):
        raise ConnectionFailed(
            "different servers answered at the same address",
            "the relay recreates the slot once the same server answers twice; point the address at one "
            "server",
        )
    return server


def make(connection: Connection, settings: RelaySettings, on_wait: OnWait) -> tuple[int, tuple[str, ...]]:
    """Drop the slot if it exists, and create it; return its LSN and the publications to read.

    The session must have reserved the slot, see `preflight.obstacle_to_make`. The publications are created
    first, since the stream begins with what they publish at that point. Raises RefusedError.
    """
    name = settings.slot
    state = wait_for_release(lambda: slot.slot_state(connection, name), on_wait)
    _refuse_foreign(connection, state)
    publications = publication.existing(connection, settings.publication_name)
    if not publications:
        if not settings.owns_publication:
            raise RefusedError(
                f"publication {settings.publication_name} is missing, and bwtui recreates only its own "
                "publications",
                "recreate it as it was and start again; 'bwtui doctor' shows which tables it lacks",
            )
        # Somebody who dropped the publication may have left its unkeyed companion.
        companion = quote_identifier(publication.unkeyed_name(settings.publication_name))
        execute(connection, f"drop publication if exists {companion}")
        tables = chosen_tables(connection, settings, None)
        publications = publication.create(connection, settings.publication_name, tables)
    if state is not None:
        execute(connection, "select pg_catalog.pg_drop_replication_slot(%s)", name)
    return slot.create_permanent(connection, name), publications


def _refuse_foreign(connection: Connection, state: SlotState | None) -> None:
    """Raise RefusedError for a slot of a different plugin or database: it was never this relay's."""
    if state is None:
        return
    if state.plugin != slot.PLUGIN or state.database != connection.info.dbname:
        raise RefusedError(
            f"slot {state.name} does not belong to this relay: plugin {state.plugin}, database "
            f"{state.database}",
            "choose a different slot with -s/--slot",
        )
