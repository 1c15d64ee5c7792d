"""``bwtui verify --database --relay``: the settings of a relay that runs, and nothing of whoever calls."""

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from bwtui.cli.options.relay_name import status_of
from bwtui.errors import UsageError

if TYPE_CHECKING:
    from bwtui.settings import RelaySettings


def running_settings(name: str) -> "RelaySettings":
    """Return what the relay called ``name`` does. Raises ConnectionFailed; UsageError if it only records."""
    from bwtui.relay.process.control import settings_of

    # Asked first, for of a relay that is gone it can say how it ended.
    settings = settings_of(status_of(name).name)
    if settings.record_only:
        raise UsageError(
            f"relay {name} only records: it has no topics", "name one that 'bwtui connect' has started"
        )
    return settings


def reconnecting(slot: str, database: str) -> str | None:
    """Return the name of the relay that runs with this slot, though nothing reads the slot just now."""
    from bwtui.relay.process.control import running_relays

    for status in running_relays():
        # It may know the server by another name.
        if status.slot == slot and status.database.rpartition("/")[2] == database:
            return status.name
    return None


@contextlib.contextmanager
def without_variables() -> Iterator[None]:
    """Take libpq's variables away meanwhile: the relay had others, and its settings say what they said."""
    taken = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("PG")}
    try:
        yield
    finally:
        os.environ.update(taken)
