"""Run Spark in its own process during the snapshot, so that the relay keeps nothing of it afterwards.

The relay starts ``python -m bwtui.relay.snapshot.spark_driver MASTER``, whose stdin is the socket to the
engine. It runs one job of one task for each worker, so that a failed job takes no other job's task with it.
"""

import contextlib
import os
import socket
import sys
import threading
import time
from functools import partial
from types import MappingProxyType

from pyspark import SparkContext

from bwtui.crash import crash
from bwtui.errors import BwtuiError, RefusedError
from bwtui.relay.snapshot.spark_connection import SparkFailed, SparkReady, TaskEnded, TaskRequest
from bwtui.relay.snapshot.spark_task import work
from bwtui.relay.snapshot.worker_protocol import BlockingChannel, SerializedError
from bwtui.spark.failure import plain_errors
from bwtui.spark.session import WRITE_ONCE, spark_session
from bwtui.spark.task_secrets import AUTHENTICATE_HINT

#: Data for tasks is encrypted on the network and on disks.
_CONFIG = MappingProxyType(
    {**WRITE_ONCE, "spark.network.crypto.enabled": "true", "spark.io.encryption.enabled": "true"}
)
_MEMORY = "512m"
#: Executors register one after the other: wait this long after the last one, and this long in total.
_SETTLED_SECONDS = 2.0
_MOST_SETTLING_SECONDS = 15.0


def main() -> None:
    """Run jobs for the engine, until it closes the connection."""
    end = BlockingChannel(socket.socket(fileno=os.dup(0)))
    try:
        with contextlib.suppress(EOFError, KeyboardInterrupt):
            _run(sys.argv[1], end)
    except BwtuiError as error:
        _report_failure(end, error)
    except Exception as error:
        _report_failure(end, crash(error))


def _report_failure(end: BlockingChannel, error: BwtuiError) -> None:
    with contextlib.suppress(OSError):
        end.send(SparkFailed(SerializedError.of(error)))


def _run(master: str, end: BlockingChannel) -> None:
    with spark_session(master, "bwtui connect", memory=_MEMORY, config=_CONFIG) as spark:
        context = spark.sparkContext
        conf = context.getConf()
        if conf.get("spark.authenticate", "false").lower() != "true":
            raise RefusedError(
                "this Spark cluster has no spark.authenticate, so anyone on its network could read "
                "the passwords for PostgreSQL and Kafka",
                AUTHENTICATE_HINT,
            )
        host, port = conf.get("spark.driver.host") or "", int(conf.get("spark.bwtui.port") or 0)
        end.send(SparkReady(host, port, _parallelism(context)))
        send_lock = threading.Lock()
        while True:
            job: TaskRequest = end.receive()
            name = f"job {job.number}"
            threading.Thread(target=_job, args=(context, job, end, send_lock), name=name, daemon=True).start()


def _parallelism(context: SparkContext) -> int:
    """Return how many tasks the cluster runs at a time, once no more cores are added."""
    count, changed_at = context.defaultParallelism, time.monotonic()
    until = changed_at + _MOST_SETTLING_SECONDS
    while (
        not str(context.master).startswith("local")
        and changed_at + _SETTLED_SECONDS > time.monotonic() < until
    ):
        time.sleep(0.1)
        if (now := context.defaultParallelism) != count:
            count, changed_at = now, time.monotonic()
    return count


def _job(context: SparkContext, job: TaskRequest, end: BlockingChannel, send_lock: threading.Lock) -> None:
    fault = None
    try:
        with plain_errors():
            context.parallelize([job.number], 1).mapPartitions(partial(work, job.call)).count()
    except BwtuiError as error:
        fault = SerializedError.of(error)
    except BaseException as error:
        fault = SerializedError.of(crash(error))
    with contextlib.suppress(OSError), send_lock:
        end.send(TaskEnded(job.number, fault))


if __name__ == "__main__":
    main()
