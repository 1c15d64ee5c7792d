"""Send a small replay in a thread of this process: starting Spark would take longer than the replay.

One producer has all lanes, and every message is read once, whereas each Spark task reads all of them.
"""

import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

from bwtui.replay.files import FileRows
from bwtui.replay.lane import LaneResult
from bwtui.replay.placement import RowPlacement
from bwtui.replay.send import TaskSettings, send

_ABANDONED_SECONDS = 5.0


class InProcessReplayEngine:
    """Sends the rows of files; reads and places the next batch while one is being sent."""

    #: Address of the coordinator, and maximum number of tasks that the lanes are divided into.
    host, tasks = "127.0.0.1", 1

    def __init__(self, rows: FileRows) -> None:
        self._rows = rows
        self._is_cancelled = threading.Event()

    def send(self, placing: RowPlacement, work: TaskSettings) -> list[LaneResult]:
        """Send the messages. Raises what `bwtui.replay.send.send` raises."""
        rows = placing.placed(self._rows.files.to_send(placing))
        # Close the rows: if this fails, DuckDB would otherwise still be open, and complain, when the process
        # ends.
        with contextlib.closing(rows) as placed, ThreadPoolExecutor(1, "replay-reader") as pool:
            return list(send(self._ahead(placed, pool), work, self._is_cancelled.is_set))

    def cancel(self) -> None:
        """Stop sending at once; the next run finds the messages in flight in the topics."""
        self._is_cancelled.set()

    def abandon(self, ended: threading.Event) -> None:
        """Stop, and wait briefly: a process must not end while a thread is inside librdkafka."""
        self.cancel()
        ended.wait(_ABANDONED_SECONDS)

    def _ahead(self, batches: Iterator[pa.RecordBatch], pool: ThreadPoolExecutor) -> Iterator[pa.RecordBatch]:
        following = pool.submit(next, batches, None)
        while (batch := following.result()) is not None and not self._is_cancelled.is_set():
            following = pool.submit(next, batches, None)
            yield batch
