"""How many rows a Spark job has read so far, for whoever waits for it."""

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

from pyspark.sql import SparkSession

from bwtui.pipeline.failure import SPARK_ERRORS

#: Told how many rows were read, and how many there are.
OnCount = Callable[[int, int], None]
#: Spark settings under which a task that runs says how far it is; at its end it does so anyway.
COUNTED: Mapping[str, str] = MappingProxyType({"spark.executor.heartbeatInterval": "1s"})
_EVERY_SECONDS = 0.5


@contextlib.contextmanager
def counting(spark: SparkSession, total: int, counted: OnCount | None) -> Iterator[None]:
    """Tell ``counted`` how many of ``total`` rows the block's stages have read, while it runs and after."""
    if counted is None:
        yield
        return
    ended = threading.Event()
    watcher = threading.Thread(target=_watch, args=(spark, total, counted, ended), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
    counted(total, total)


def _watch(spark: SparkSession, total: int, counted: OnCount, ended: threading.Event) -> None:
    tracker = spark.sparkContext.statusTracker()
    stages: set[int] = set()
    before = 0
    while not ended.wait(_EVERY_SECONDS):
        # The job may have failed, or Java ended; whoever runs the job hears of it.
        with contextlib.suppress(*SPARK_ERRORS):
            stages.update(tracker.getActiveStageIds())
            done = min(sum(_read(spark, stage) for stage in stages), total)
            if done > before:
                before = done
                counted(done, total)


def _read(spark: SparkSession, stage: int) -> int:
    store = spark.sparkContext._jsc.sc().statusStore()
    return int(store.lastStageAttempt(stage).inputRecords())
