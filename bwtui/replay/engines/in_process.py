"""The sending of a small replay in a thread of this process: Spark would start longer than it takes.

One producer has all lanes, and every message is read once: tasks of Spark each read all of them.
"""

import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

from bwtui.replay.files import FileRows
from bwtui.replay.lane import Sent
from bwtui.replay.place import Placing
from bwtui.replay.send import Work, send

_ABANDONED_SECONDS = 5.0


class InProcess:
    """Sends the rows of files; reads and places the next while some are sent."""

    #: Where the coordinator listens, and into how many tasks the lanes are shared out at most.
    host, tasks = "127.0.0.1", 1

    def __init__(self, rows: FileRows) -> None:
        self._rows = rows
        self._is_cancelled = threading.Event()

    def send(self, placing: Placing, work: Work) -> list[Sent]:
        """Send them. Raises what `bwtui.replay.send.send` raises."""
        rows = placing.placed(self._rows.files.to_send(placing))
        # Closed, or DuckDB would be open at the end of the process, and tell of that, if this fails.
        with contextlib.closing(rows) as placed, ThreadPoolExecutor(1, "replay-reader") as pool:
            return list(send(self._ahead(placed, pool), work, self._is_cancelled.is_set))

    def cancel(self) -> None:
        """End the sending at once; what was under way, the topics tell the next run."""
        self._is_cancelled.set()

    def abandon(self, ended: threading.Event) -> None:
        """End it, and wait a little for that: a process does not end well while a thread is in librdkafka."""
        self.cancel()
        ended.wait(_ABANDONED_SECONDS)

    def _ahead(self, batches: Iterator[pa.RecordBatch], pool: ThreadPoolExecutor) -> Iterator[pa.RecordBatch]:
        following = pool.submit(next, batches, None)
        while (batch := following.result()) is not None and not self._is_cancelled.is_set():
            following = pool.submit(next, batches, None)
            yield batch
