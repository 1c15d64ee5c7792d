"""The slot that was lost, made anew: its publication, the drop of what is there, and where it begins."""

from collections.abc import Callable

from bwtui.errors import RefusedError, SlotLost
from bwtui.relay.memory import SlotMemory
from bwtui.settings import RelaySettings
from bwtui.source import publication, slot
from bwtui.source.connection import Connection, execute
from bwtui.source.preflight import chosen_tables, wait_for_release
from bwtui.source.slot import SlotState

OnWait = Callable[[str], None]


def lost(connection: Connection, settings: RelaySettings, memory: SlotMemory) -> SlotLost | None:
    """Return how the slot is lost, if it is: gone, moved, without its WAL, or without its publication."""
    state = slot.slot_state(connection, settings.slot)
    try:
        memory.check(state)
        if state is not None and state.plugin == slot.PLUGIN:
            slot.check_readable(state, connection.server_version)
    except SlotLost as error:
        return error
    except RefusedError:
        # Of a slot that is there and can't be read, the checks of a start say what helps.
        return None
    if (
        state is not None
        and is_own(settings)
        and not publication.existing(connection, settings.publication_name)
    ):
        return SlotLost(
            f"slot {settings.slot} is there, and its publication {settings.publication_name} is gone",
            "changes that were written since are in no publication",
        )
    return None


def is_own(settings: RelaySettings) -> bool:
    """Whether bwtui makes the publication where it is missing, and nobody else decides what is in it."""
    return not settings.publication


def make(connection: Connection, settings: RelaySettings, on_wait: OnWait) -> tuple[int, tuple[str, ...]]:
    """Drop the slot if it is there, and make it; return where it begins, and the publications to read.

    The session must have reserved it, see `preflight.obstacle_to_make`. The publications are there first,
    since the stream begins with what they publish then. Raises RefusedError.
    """
    name = settings.slot
    state = wait_for_release(lambda: slot.slot_state(connection, name), on_wait)
    _refuse_others(connection, state)
    publications = publication.existing(connection, settings.publication_name)
    if not publications:
        if not is_own(settings):
            raise RefusedError(
                f"publication {settings.publication_name} is gone, and is not one that bwtui makes anew",
                "make it again as it was, and start again; 'bwtui doctor' says which tables it lacks",
            )
        tables = chosen_tables(connection, settings, None)
        publications = publication.create(connection, settings.publication_name, tables)
    if state is not None:
        execute(connection, "select pg_catalog.pg_drop_replication_slot(%s)", name)
    return slot.create_permanent(connection, name), publications


def _refuse_others(connection: Connection, state: SlotState | None) -> None:
    """Raise RefusedError for a slot of another plugin or database: it was never this relay's."""
    if state is None:
        return
    if state.plugin != slot.PLUGIN or state.database != connection.info.dbname:
        raise RefusedError(
            f"slot {state.name} is another's: plugin {state.plugin}, database {state.database}",
            "name another slot with -s/--slot",
        )
