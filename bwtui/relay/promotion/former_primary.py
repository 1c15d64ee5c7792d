"""Wait for a former primary to go away: it still accepts writes although a different server was promoted."""

import contextlib
import time
from collections.abc import Callable

from bwtui.errors import ConnectionFailed
from bwtui.relay.run_state import RunState
from bwtui.relay.slot_checkpoint import SlotCheckpointStore
from bwtui.settings import RelaySettings
from bwtui.source.connection import Connection, connect
from bwtui.source.failover.hosts import names_several
from bwtui.source.raw.timeline import primary_timeline
from bwtui.source.slot import server_and_database
from bwtui.state_folder import state_folder

_AGAIN_SECONDS = 1.0


def refuse_former(settings: RelaySettings, checkpoint: SlotCheckpointStore, timeline: int) -> None:
    """Raise ConnectionFailed for a server from before a promotion, if several hosts are configured."""
    last = checkpoint.last
    if last is None or timeline >= last.timeline or settings.accept_divergence:
        return
    if names_several(settings.postgres):
        raise ConnectionFailed(
            f"a former primary answered: it is on timeline {timeline}, but this relay was on timeline "
            f"{last.timeline}",
            "make it a standby of the new primary, for which the relay waits; or follow it anyway with "
            "--accept-divergence",
        )


def connect_to_newest(
    settings: RelaySettings, report: RunState, on_wait: Callable[[str], None]
) -> Connection:
    """Connect, and retry while a former primary answers: the state of its slot is meaningless.

    ``on_wait`` gets a description of the wait, and may raise. Raises ConnectionFailed and StateFailed.
    """
    while True:
        connection = connect(settings.postgres)
        try:
            with contextlib.ExitStack() as closing:
                closing.callback(connection.close)
                _check(settings, connection)
                closing.pop_all()
                return connection
        except ConnectionFailed as error:
            report.error("outage", error, dependency="PostgreSQL")
            on_wait(f"waiting for PostgreSQL: {error.message}")
            time.sleep(_AGAIN_SECONDS)


def _check(settings: RelaySettings, connection: Connection) -> None:
    timeline = primary_timeline(connection) if names_several(settings.postgres) else None
    if timeline is not None:
        folder = state_folder(settings.relay_name)
        checkpoint = SlotCheckpointStore(folder, *server_and_database(connection), settings.slot)
        refuse_former(settings, checkpoint, timeline)
