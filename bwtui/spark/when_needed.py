"""A session of Spark that starts when it is first needed, and what is small enough to do without one.

Spark on this machine takes some seconds to start, in which its cores audit or send a million messages. What
is larger gains more by its tasks' own processes, and what outgrows one machine runs on a cluster.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from bwtui.spark.interrupts import as_interrupts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: So many rows are few: messages of a recording, and offsets of its topics where these are read, too;
SMALL_ROWS = 4_000_000
#: and so many bytes of a journal, which are sealed without Spark: what is one task of sealing anyway.
SMALL_JOURNAL = 128 << 20

OpenSession = Callable[[], contextlib.AbstractContextManager["SparkSession"]]


class SparkWhenNeeded:
    """Spark starts when it is first needed, and ends with `closing`."""

    def __init__(
        self, open_session: OpenSession, on_phase: Callable[[str], None], *, is_wanted: bool
    ) -> None:
        """``is_wanted``: the user named a master, so nothing is too small for it."""
        self._open_session = open_session
        self._on_phase = on_phase
        self._is_wanted = is_wanted
        self._held = contextlib.ExitStack()
        self._spark: SparkSession | None = None
        #: What is used, for a report.
        self.name = "threads"
        #: How long Spark took to start.
        self.start_seconds = 0.0

    @contextlib.contextmanager
    def closing(self) -> Iterator[None]:
        """End what was started, also when the block is interrupted or killed."""
        with as_interrupts(), self._held:
            yield

    @contextlib.contextmanager
    def ended_beside(self) -> Iterator[None]:
        """End what was started, which takes Spark a second, while the block runs."""
        thread = threading.Thread(target=self._held.pop_all().close)
        thread.start()
        try:
            yield
        finally:
            thread.join()

    def does_without(self, rows: int) -> bool:
        """Return whether so many rows are done sooner without Spark, which has not started either."""
        return self._is_dispensable() and rows <= SMALL_ROWS

    def for_sealing(self, journal_bytes: int) -> contextlib.AbstractContextManager[Any]:
        """Return a session of Spark, which stays, or None where so much is sealed sooner without."""
        is_small = self._is_dispensable() and journal_bytes <= SMALL_JOURNAL
        return contextlib.nullcontext(None if is_small else self.spark())

    def _is_dispensable(self) -> bool:
        return self._spark is None and not self._is_wanted

    def spark(self) -> "SparkSession":
        """Return the session. Raises what `spark_session` raises."""
        if self._spark is None:
            begin = time.monotonic()
            self._on_phase("starting Spark")
            self._spark = self._held.enter_context(self._open_session())
            self.name = f"Spark, {self._spark.sparkContext.master}"
            self.start_seconds = time.monotonic() - begin
        return self._spark
