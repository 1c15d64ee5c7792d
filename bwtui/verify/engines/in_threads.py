"""The tasks of a small audit in threads of this process: Spark would start longer than they take."""

import os
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from itertools import zip_longest

from bwtui.kafka.client import Config
from bwtui.kafka.splits import Split
from bwtui.verify.digests import Compared, Job

#: More of them would wait for Python's lock, each with what it has read.
_MOST_THREADS = 8


class _Stopped(Exception):
    """Another task has failed, or the user wants no more."""


class InThreads:
    """Runs the tasks on this machine's cores; reading, hashing and DuckDB let other threads run."""

    is_here = True

    def __init__(self) -> None:
        self.cores = min(os.cpu_count() or 1, _MOST_THREADS)

    def run(self, job: Job, config: Config) -> Iterable[Compared]:
        """Run all tasks. Raises what the first that fails raises, when all have ended."""
        stopped = threading.Event()
        failed: list[BaseException] = []

        def check() -> None:
            if stopped.is_set():
                raise _Stopped

        def run(number: int) -> list[Compared]:
            check()
            try:
                return list(job.run(number, config, check))
            except _Stopped:
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
                # A thread that is in librdkafka or DuckDB when the process ends would have it aborted.
                stopped.set()
        if failed:
            raise failed[0]
        return [one for future in futures for one in future.result()]


def _alternately(job: Job) -> Iterator[int]:
    """Yield the tasks, of both sides in turn: Kafka's messages need Python's lock, a recording does not."""
    kafka = [number for number, task in enumerate(job.tasks) if isinstance(task, Split)]
    recording = [number for number, task in enumerate(job.tasks) if not isinstance(task, Split)]
    for pair in zip_longest(kafka, recording):
        yield from (number for number in pair if number is not None)
