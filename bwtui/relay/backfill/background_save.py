"""Write progress in a thread while the stream continues, because a disk may be slow."""

import threading

from bwtui.errors import BwtuiError
from bwtui.relay.backfill.store import BackfillStore, BackfillTask


class BackgroundSave:
    """One task that is being written; nothing changes the task until that is done."""

    def __init__(self, store: BackfillStore, task: BackfillTask) -> None:
        self._error: BwtuiError | None = None
        self._thread = threading.Thread(
            target=self._run, args=[store, task], name="backfill save", daemon=True
        )
        self._thread.start()

    def is_done(self) -> bool:
        """Return whether the task is on the disk. Raises StateFailed."""
        if self._thread.is_alive():
            return False
        if self._error is not None:
            raise self._error
        return True

    def _run(self, store: BackfillStore, task: BackfillTask) -> None:
        try:
            store.save(task)
        except BwtuiError as error:
            self._error = error
