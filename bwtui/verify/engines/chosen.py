"""Which engine an audit runs on: threads of ours while it is small, else Spark, and where it was asked for.

Spark on this machine takes some seconds to start, in which its cores audit a million messages. What is larger
gains more by its tasks' own processes, and what outgrows one machine runs on a cluster.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from bwtui.spark.interrupts import as_interrupts
from bwtui.verify.digests import Engine
from bwtui.verify.engines.in_threads import InThreads

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Messages of the recording and offsets of its topics, together, up to which an audit is small;
SMALL_ROWS = 4_000_000
#: and bytes of a journal that are sealed without Spark: what is one task of sealing anyway.
SMALL_JOURNAL = 128 << 20

_MEMORY = "1g"


class Engines:
    """What an audit may run on; Spark starts when it is first needed, and ends with `closing`."""

    def __init__(self, master: str | None, on_phase: Callable[[str], None]) -> None:
        """``master`` is Spark's, if one was named: then Spark it is."""
        self._master = master
        self._on_phase = on_phase
        self._held = contextlib.ExitStack()
        self._spark: SparkSession | None = None
        #: What is used, for the report.
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

    def of(self, rows: int) -> Engine:
        """Return what reads so many rows."""
        if self._spark is None and self._master is None and rows <= SMALL_ROWS:
            return InThreads()
        from bwtui.verify.engines.on_spark import OnSpark

        return OnSpark(self.spark())

    def for_sealing(self, journal_bytes: int) -> contextlib.AbstractContextManager[Any]:
        """Return a session of Spark, which stays, or None where so much is sealed sooner without."""
        is_small = self._spark is None and self._master is None and journal_bytes <= SMALL_JOURNAL
        return contextlib.nullcontext(None if is_small else self.spark())

    def spark(self) -> "SparkSession":
        """Return the session. Raises what `spark_session` raises."""
        if self._spark is None:
            from bwtui.spark.session import LOCAL, spark_session

            begin = time.monotonic()
            self._on_phase("starting Spark")
            opened = spark_session(self._master or LOCAL, "bwtui verify", memory=_MEMORY)
            self._spark = self._held.enter_context(opened)
            self.name, self.start_seconds = (
                f"Spark, {self._spark.sparkContext.master}",
                time.monotonic() - begin,
            )
        return self._spark
