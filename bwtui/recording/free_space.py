"""Free disk space, for callers that must not block: a hanging disk never answers."""

import os
import threading
import time
from pathlib import Path

#: Seconds for which a result stays valid, and for which a caller waits for a new one before it gets the old
#: one.
_FRESH_SECONDS, _PATIENCE_SECONDS = 0.5, 0.1
#: Age in seconds from which on a result is not returned.
_STALE_SECONDS = 10.0


class FreeSpace:
    """Queries the system in its own thread; any thread may call `bytes`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._looked_at = 0.0
        #: Set when no query is running.
        self._done = threading.Event()
        self._done.set()
        self._bytes: int | None = None

    def bytes(self) -> int | None:
        """Return the number of free bytes from the last query, or None if it is unknown.

        An old result counts as unknown: the disk may have filled up since.
        """
        with self._lock:
            begins = self._done.is_set() and time.monotonic() - self._looked_at > _FRESH_SECONDS
            if begins:
                self._done.clear()
                threading.Thread(target=self._look, name="free space", daemon=True).start()
        if begins or not self._looked_at:
            # Every caller waits until there is a first result.
            self._done.wait(_PATIENCE_SECONDS)
        return self._bytes if time.monotonic() - self._looked_at < _STALE_SECONDS else None

    def _look(self) -> None:
        try:
            disk = os.statvfs(self._folder)
            self._bytes = disk.f_bavail * disk.f_frsize
        except OSError:
            self._bytes = None
        finally:
            self._looked_at = time.monotonic()
            self._done.set()
