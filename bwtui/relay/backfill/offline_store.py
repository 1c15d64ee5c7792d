"""Access to the tasks of a stopped relay, which resumes them after its next start."""

import contextlib
from collections.abc import Iterator

from bwtui.errors import ConnectionFailed
from bwtui.relay.backfill.chunk_snapshot import unfinished_task_ids
from bwtui.relay.backfill.store import FOLDER, BackfillStore
from bwtui.relay.process.lock import RelayLock
from bwtui.state_folder import relay_names, state_folder


@contextlib.contextmanager
def offline_store(name: str, error: ConnectionFailed) -> Iterator[BackfillStore]:
    """Yield the tasks of a relay that does not run, and prevent it from starting in the meantime.

    Raises ``error`` if there is no such relay, and RefusedError if it is starting.
    """
    if name not in relay_names():
        raise error
    lock = RelayLock.acquire(name)
    try:
        store = BackfillStore(state_folder(name) / FOLDER)
        store.firsts = unfinished_task_ids(state_folder(name))
        yield store
    finally:
        lock.release()
