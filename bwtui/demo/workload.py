"""The demo's workload: transactions at a constant rate, some rolled back, until it is stopped.

``python -m bwtui.demo.workload`` is a separate process, so that it takes no time from the relay or the UI. It
reads its settings as one JSON line from stdin, and writes its counts as one JSON line per second to stdout,
and a last one with ``"done": true``. It stops on SIGTERM, and when its stdin ends: so it never outlives the
demo, even if that was killed; then it also asks the demo's relay to stop, because nothing else would.
"""

import contextlib
import json
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import psycopg2
from psycopg2.extensions import connection as Connection

from bwtui.console import say, say_json
from bwtui.demo import shop
from bwtui.demo.rows import ShopRowMaker
from bwtui.demo.transactions import Rows, ShopKeys, ShopTransaction, choose
from bwtui.errors import BwtuiError
from bwtui.relay.process.control import request

#: Fractions of all transactions.
_ROLLED_BACK = 0.03
_WITH_SAVEPOINT = 0.06
_STEPS_OF_LONG_TRANSACTION = 40


@dataclass(slots=True)
class WorkloadCounts:
    """The work done; ``rows`` includes only committed transactions."""

    committed: int = 0
    rolled_back: int = 0
    savepoints_rolled_back: int = 0
    rows: Rows = field(default_factory=Counter)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object, with rows as ``{"schema.table": {"inserts": n, …}}``."""
        tables: dict[str, dict[str, int]] = {}
        for (table, operation), count in sorted(self.rows.items()):
            tables.setdefault(table, {})[operation] = count
        return {
            "committed": self.committed,
            "rolled_back": self.rolled_back,
            "savepoints_rolled_back": self.savepoints_rolled_back,
            "rows": self.rows.total(),
            "tables": tables,
        }


class Workload:
    """Runs transactions on two connections; the same seed on the same shop does the same.

    The second connection has one long transaction that stays open while dozens of others commit, so that the
    stream interleaves; it only inserts into the audit, so it never waits for a lock.
    """

    def __init__(self, dsn: str, seed: int) -> None:
        self.counts = WorkloadCounts()
        self._make = ShopRowMaker(seed)
        self._connection = shop.connect(dsn)
        self._long = _LongTransaction(shop.connect(dsn), self._make, self.counts)
        self._memory = ShopKeys.load(self._connection)

    def run(self, rate: float, stop: threading.Event, report: Callable[[], None]) -> None:
        """Run ``rate`` transactions a second until ``stop`` is set; call ``report`` once a second.

        A workload that is late by a second skips the missed transactions: it never catches up in a burst.
        """
        due = reported = time.monotonic()
        while not stop.is_set():
            self.step()
            due += 1 / rate
            now = time.monotonic()
            if now - reported >= 1:
                report()
                reported = now
            if due > now:
                stop.wait(due - now)
            elif now - due > 1:
                due = now

    def step(self) -> None:
        """Run one transaction, and one step of the long one."""
        self._long.step()
        draw = self._make.random
        action = choose(draw, self._memory)
        rolled_back, with_savepoint = draw.random() < _ROLLED_BACK, draw.random() < _WITH_SAVEPOINT
        with self._connection.cursor() as cursor:
            session = ShopTransaction(cursor, self._make, self._memory)
            if with_savepoint:
                self._try_in_vain(session)
            action(session)
        if rolled_back:
            self._connection.rollback()
            self.counts.rolled_back += 1
            return
        self._connection.commit()
        self.counts.committed += 1
        self.counts.rows += session.rows
        for change in session.on_commit:
            change(self._memory)

    def close(self) -> None:
        """Finish the long transaction and close both connections."""
        self._long.close()
        self._connection.close()

    def _try_in_vain(self, session: ShopTransaction) -> None:
        """Run an action after a savepoint and roll it back; then keep a row of a different subtransaction."""
        session.cursor.execute("savepoint attempt")
        attempt = ShopTransaction(session.cursor, self._make, self._memory)
        choose(session.draw, self._memory)(attempt)
        session.cursor.execute("rollback to savepoint attempt")
        self.counts.savepoints_rolled_back += 1
        session.cursor.execute("savepoint kept")
        session.insert(shop.AUDIT, [self._make.audit(0)])
        session.cursor.execute("release savepoint kept")


class _LongTransaction:
    """A transaction of many small steps, on its own connection."""

    def __init__(self, connection: Connection, make: ShopRowMaker, counts: WorkloadCounts) -> None:
        self._connection, self._make, self._counts = connection, make, counts
        self._steps = 0
        self._rows: Rows = Counter()

    def step(self) -> None:
        """Insert a row, and end the transaction once it is long enough."""
        with self._connection.cursor() as cursor:
            session = ShopTransaction(cursor, self._make, ShopKeys([], [], []), self._rows)
            session.insert(shop.AUDIT, [self._make.audit(self._steps)])
        self._steps += 1
        if self._steps >= _STEPS_OF_LONG_TRANSACTION:
            self._end(keep=not self._make.chance(0.2))

    def close(self) -> None:
        """Commit an open transaction, and close the connection."""
        if self._steps:
            self._end(keep=True)
        self._connection.close()

    def _end(self, keep: bool) -> None:
        if keep:
            self._connection.commit()
            self._counts.committed += 1
            self._counts.rows += self._rows
        else:
            self._connection.rollback()
            self._counts.rolled_back += 1
        self._rows, self._steps = Counter(), 0


def main() -> int:
    """Run the workload with settings from stdin: ``{"dsn": …, "rate": …, "seed": …, "relay": name}``."""
    settings = json.loads(sys.stdin.readline())
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    # Ctrl-C is for the demo, which stops its processes in order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    demo = _DemoWatch(stop, settings["relay"])
    try:
        workload = Workload(settings["dsn"], settings["seed"])
        with contextlib.closing(workload):
            workload.run(settings["rate"], stop, lambda: _say(workload.counts, done=False))
        _say(workload.counts, done=True)
    except (BwtuiError, psycopg2.Error, BrokenPipeError) as error:
        # If the demo was killed, its PostgreSQL ends too, and the demo's end of the pipe is closed.
        demo.finish()
        with contextlib.suppress(BrokenPipeError):
            say(f"bwtui: error: the workload stopped: {_reason(error)}", err=True)
        return 4
    demo.finish()
    return 0


class _DemoWatch(threading.Thread):
    """Waits for the end of stdin, which precedes the signal to stop only if the demo was killed."""

    def __init__(self, stop: threading.Event, relay: str) -> None:
        super().__init__(daemon=True)
        self._stop_writes, self._relay = stop, relay
        self._killed = threading.Event()
        self.start()

    def run(self) -> None:
        while sys.stdin.readline():
            pass
        if not self._stop_writes.is_set():
            self._killed.set()
            # The relay first: it can confirm what it sent while Kafka and PostgreSQL are still running.
            with contextlib.suppress(BwtuiError):
                request(self._relay, {"request": "stop"})
            self._stop_writes.set()

    def finish(self) -> None:
        """Wait until the relay was asked to stop, if necessary."""
        if self._killed.is_set():
            self.join(10)


def _say(counts: WorkloadCounts, done: bool) -> None:
    say_json({"done": done, **counts.to_json()})


def _reason(error: Exception) -> str:
    """Return the first line: PostgreSQL includes row values in the DETAIL after it."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


if __name__ == "__main__":
    sys.exit(main())
