"""The engines of an audit: threads of this process while it is small, otherwise Spark's tasks."""

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from itertools import zip_longest
from typing import TYPE_CHECKING

from bwtui.kafka.client import Config
from bwtui.kafka.scan import Split
from bwtui.spark.lazy_session import LazySparkSession
from bwtui.verify.digests import DecodeResult, DigestEngine, DigestJob

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# The tasks of a small audit in threads of this process: starting Spark would take longer.

#: More threads would wait for the interpreter lock, each with the data that it has read.
_MOST_THREADS = 8


class _TaskCancelled(Exception):
    """Another task has failed, or the user has cancelled."""


class ThreadDigestEngine:
    """Runs the tasks on this machine's cores; reading, hashing and DuckDB release the interpreter lock."""

    is_here = True

    def __init__(self) -> None:
        self.cores = min(os.cpu_count() or 1, _MOST_THREADS)

    def run(self, job: DigestJob, config: Config) -> Iterable[DecodeResult]:
        """Run all tasks. Raises the error of the first that fails, once all have ended."""
        stopped = threading.Event()
        failed: list[BaseException] = []

        def check() -> None:
            if stopped.is_set():
                raise _TaskCancelled

        def run(number: int) -> list[DecodeResult]:
            check()
            try:
                return list(job.run(number, config, check))
            except _TaskCancelled:
                raise
            except BaseException as error:
                failed.append(error)
                stopped.set()
                raise

        with ThreadPoolExecutor(self.cores, "audit") as pool:
            try:
                futures = [pool.submit(run, number) for number in _alternately(job)]
                wait(futures, return_when=FIRST_EXCEPTION)
            finally:
                # A thread inside librdkafka or DuckDB would abort the process when it ends.
                stopped.set()
        if failed:
            raise failed[0]
        return [one for future in futures for one in future.result()]


def _alternately(job: DigestJob) -> Iterator[int]:
    """Yield the tasks of both sides in turn.

    Decoding Kafka's messages needs the interpreter lock, and reading a recording does not.
    """
    kafka = [number for number, task in enumerate(job.tasks) if isinstance(task, Split)]
    recording = [number for number, task in enumerate(job.tasks) if not isinstance(task, Split)]
    for pair in zip_longest(kafka, recording):
        yield from (number for number in pair if number is not None)


# Choose the engine of an audit: threads of this process while it is small, otherwise Spark.

_MEMORY = "1g"


class DigestEngines(LazySparkSession):
    """The engines available to an audit."""

    def __init__(self, master: str | None, on_phase: Callable[[str], None]) -> None:
        """Take ``master``, the Spark master that the user named, if any: then Spark is used."""

        def opened() -> contextlib.AbstractContextManager["SparkSession"]:
            from bwtui.spark.session import LOCAL, spark_session

            return spark_session(master or LOCAL, "bwtui verify", memory=_MEMORY)

        super().__init__(opened, on_phase, is_required=master is not None)

    def of(self, rows: int) -> DigestEngine:
        """Return the engine for this number of rows: the recording's messages plus its topics' offsets."""
        if self.does_without(rows):
            return ThreadDigestEngine()
        from bwtui.verify.spark_engine import SparkDigestEngine

        return SparkDigestEngine(self.spark())
