"""How long a row takes from its COMMIT to a consumer, at a fixed rate of transactions."""

import contextlib
import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

import psycopg2
from confluent_kafka import Consumer, TopicPartition

from benchmarks.debezium.topics import NO_FIGURES, STUCK_SECONDS, number_of
from bwtui.errors import BwtuiError

RATE = 300
#: The first ones are not counted: they find out whether the stream has begun, and let caches fill.
UNCOUNTED_SECONDS = 5


def transactions(seconds: int) -> int:
    """Return how many are written in so many seconds that count."""
    return RATE * (seconds + UNCOUNTED_SECONDS)


class Arrivals:
    """Notes when each row of a topic comes to a consumer, in a thread."""

    def __init__(self, broker: str, topic: str, partitions: int) -> None:
        # It asks again at once, and the broker answers as soon as there is something.
        self._consumer = Consumer(
            {
                "bootstrap.servers": broker,
                "group.id": "bench",
                "enable.auto.commit": False,
                "fetch.min.bytes": 1,
            }
        )
        self._consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
        #: By key, by the monotonic clock.
        self.at: dict[int, float] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="arrivals", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Look no more."""
        self._ended.set()
        self._thread.join()
        self._consumer.close()

    def _watch(self) -> None:
        while not self._ended.is_set():
            message = self._consumer.poll(0.1)
            if message is not None and message.error() is None:
                self.at.setdefault(number_of(message.key()), time.monotonic())


def measure(
    dsn: str, values: str, arrivals: Arrivals, count: int, check: Callable[[], object]
) -> dict[str, Any]:
    """Write ``count`` rows, a transaction each, and return how long they took in milliseconds.

    Raises BwtuiError when rows do not arrive.
    """
    # Its own percent signs are doubled, as it is given arguments.
    insert = f"insert into bench select {values.replace('%', '%%')} from generate_series(%s, %s) id"
    committed: dict[int, float] = {}
    with contextlib.closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        cursor.execute(insert, [1, 1])
        # The stream has begun once the first is there.
        _wait(lambda: bool(arrivals.at), check)
        begin = time.monotonic()
        for number in range(2, count + 1):
            due = begin + number / RATE
            time.sleep(max(due - time.monotonic(), 0))
            cursor.execute(insert, [number, number])
            committed[number] = time.monotonic()
        seconds = time.monotonic() - begin
    _wait(lambda: len(arrivals.at) >= count, check)
    counted = sorted(
        (arrivals.at[number] - at) * 1e3
        for number, at in committed.items()
        if number > RATE * UNCOUNTED_SECONDS
    )
    return {
        "transactions_per_second": round((count - 1) / seconds, 1),
        **{f"p{part}_ms": round(_part(counted, part / 100), 2) for part in (50, 99)},
        "mean_ms": round(statistics.fmean(counted), 2),
        "most_ms": round(counted[-1], 2),
    }


def _part(counted: list[float], part: float) -> float:
    return counted[min(int(len(counted) * part), len(counted) - 1)]


def _wait(condition: Callable[[], bool], check: Callable[[], object]) -> None:
    deadline = time.monotonic() + STUCK_SECONDS
    while not condition():
        check()
        if time.monotonic() > deadline:
            raise BwtuiError(
                f"rows do not arrive within {STUCK_SECONDS:.0f} seconds",
                NO_FIGURES,
            )
        time.sleep(0.05)
