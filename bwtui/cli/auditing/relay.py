"""``bwtui verify --database --relay``: use a running relay's settings, and none of the caller's."""

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from bwtui.cli.options.relay_name import status_of
from bwtui.errors import UsageError

if TYPE_CHECKING:
    from bwtui.settings import RelaySettings


def running_settings(name: str) -> "RelaySettings":
    """Return the settings of relay ``name``. Raises ConnectionFailed; UsageError if it only records."""
    from bwtui.relay.process.control import settings_of

    # Requested first: if the relay has ended, this error says how.
    settings = settings_of(status_of(name).name)
    if settings.record_only:
        raise UsageError(
            f"relay {name} only records, so it has no topics",
            "choose a relay that was started with 'bwtui connect'",
        )
    return settings


def reconnecting(slot: str, database: str) -> str | None:
    """Return the name of the running relay with this slot, although nothing reads the slot at present."""
    from bwtui.relay.process.control import running_relays

    for status in running_relays():
        # It may address the server by another name.
        if status.slot == slot and status.database.rpartition("/")[2] == database:
            return status.name
    return None


@contextlib.contextmanager
def without_variables() -> Iterator[None]:
    """Remove libpq's variables meanwhile: the relay had its own, and its settings include their values."""
    taken = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("PG")}
    try:
        yield
    finally:
        os.environ.update(taken)
