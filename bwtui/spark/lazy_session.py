"""Start a Spark session when it is first needed, and decide which work is small enough to do without.

Starting Spark on this machine takes some seconds, in which its cores could audit or send a million messages.
Larger work gains more from tasks in several processes, and the largest runs on a cluster.
"""

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# Make SIGTERM and SIGHUP end a block as Ctrl-C does.


@contextlib.contextmanager
def as_interrupts() -> Iterator[None]:
    """Handle SIGTERM, or SIGHUP from a closed terminal, like Ctrl-C: end the block with its cleanup."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handled = [one for one in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(one) is signal.SIG_DFL]
    for number in handled:
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        # Only the main thread may restore handlers; if another one closes the session, the process ends soon.
        if threading.current_thread() is threading.main_thread():
            for number in handled:
                signal.signal(number, signal.SIG_DFL)


#: Maximum number of rows for work without Spark: messages of a recording, plus offsets of its topics if read;
SMALL_ROWS = 4_000_000
#: and the maximum size of a journal to seal without Spark, which would be a single task anyway.
SMALL_JOURNAL = 128 << 20

OpenSession = Callable[[], contextlib.AbstractContextManager["SparkSession"]]


class LazySparkSession:
    """A Spark session that starts when it is first needed, and ends with `closing`."""

    def __init__(
        self, open_session: OpenSession, on_phase: Callable[[str], None], *, is_required: bool
    ) -> None:
        """Set ``is_required`` if the user named a master: then Spark is used for any amount of work."""
        self._open_session = open_session
        self._on_phase = on_phase
        self._is_required = is_required
        self._held = contextlib.ExitStack()
        self._spark: SparkSession | None = None
        #: The engine in use, for reports.
        self.name = "threads"
        #: Time that Spark took to start.
        self.start_seconds = 0.0

    @contextlib.contextmanager
    def closing(self) -> Iterator[None]:
        """End what was started, even if the block is interrupted or killed."""
        with as_interrupts(), self._held:
            yield

    @contextlib.contextmanager
    def ended_beside(self) -> Iterator[None]:
        """End what was started in the background, which takes Spark a second, while the block runs."""
        thread = threading.Thread(target=self._held.pop_all().close)
        thread.start()
        try:
            yield
        finally:
            thread.join()

    def does_without(self, rows: int) -> bool:
        """Return whether so few rows are processed faster without Spark, which is not running yet."""
        return self._is_dispensable() and rows <= SMALL_ROWS

    def for_sealing(self, journal_bytes: int) -> contextlib.AbstractContextManager[Any]:
        """Return a Spark session, which stays open, or None if sealing this much is faster without."""
        is_small = self._is_dispensable() and journal_bytes <= SMALL_JOURNAL
        return contextlib.nullcontext(None if is_small else self.spark())

    def _is_dispensable(self) -> bool:
        return self._spark is None and not self._is_required

    def spark(self) -> "SparkSession":
        """Return the session; start it first if necessary. Raises what `spark_session` raises."""
        if self._spark is None:
            begin = time.monotonic()
            self._on_phase("starting Spark")
            self._spark = self._held.enter_context(self._open_session())
            self.name = f"Spark, {self._spark.sparkContext.master}"
            self.start_seconds = time.monotonic() - begin
        return self._spark
