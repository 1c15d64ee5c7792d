"""How much room a disk has left, for those who must not wait: a disk that hangs does not answer at all."""

import os
import threading
import time
from pathlib import Path

#: What was found is good for so long, and a look may take so long before what is known is told (seconds).
_FRESH_SECONDS, _PATIENCE_SECONDS = 0.5, 0.1


class FreeSpace:
    """Asks the system in a thread of its own; any thread may ask this."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._looked_at = 0.0
        #: Done once the look that is under way is.
        self._done = threading.Event()
        self._done.set()
        self._bytes: int | None = None

    def bytes(self) -> int | None:
        """Return how many bytes are free, as far as is known; None where that can't be said."""
        with self._lock:
            begins = self._done.is_set() and time.monotonic() - self._looked_at > _FRESH_SECONDS
            if begins:
                self._done.clear()
                threading.Thread(target=self._look, name="free space", daemon=True).start()
        if begins or not self._looked_at:
            # While nothing is known yet, each waits.
            self._done.wait(_PATIENCE_SECONDS)
        return self._bytes

    def _look(self) -> None:
        try:
            disk = os.statvfs(self._folder)
            self._bytes = disk.f_bavail * disk.f_frsize
        except OSError:
            self._bytes = None
        finally:
            self._looked_at = time.monotonic()
            self._done.set()
