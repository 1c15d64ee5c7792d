"""What a relay that does not run keeps: it goes on with it after its next start."""

import contextlib
from collections.abc import Iterator

from bwtui.errors import ConnectionFailed
from bwtui.relay.backfill.first import named
from bwtui.relay.backfill.store import FOLDER, Store
from bwtui.relay.process.lock import RelayLock
from bwtui.state_folder import known_relays, state_folder


@contextlib.contextmanager
def kept(name: str, error: ConnectionFailed) -> Iterator[Store]:
    """Yield the tasks of a relay that does not run, and see to it that it is not started meanwhile.

    Raises ``error`` where there is no such relay, and RefusedError where it is being started.
    """
    if name not in known_relays():
        raise error
    lock = RelayLock.acquire(name)
    try:
        store = Store(state_folder(name) / FOLDER)
        store.firsts = named(state_folder(name))
        yield store
    finally:
        lock.release()
