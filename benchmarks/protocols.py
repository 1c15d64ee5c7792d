"""When a large transaction could be sent on, by the version of pgoutput's protocol.

With version 1 PostgreSQL keeps it to itself until it commits, on its own disk. With streaming it sends it
before, and a relay would have to keep it, until it hears how it ended. Nothing is kept here: what is measured
is when the first row of which the end is known was there to be sent.
"""

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

import psycopg2
from bench_table import ROWS
from psycopg.conninfo import make_conninfo

from bwtui.pgoutput.frames import PAYLOAD_OFFSET, XLOG_DATA
from bwtui.source.raw_session import connect_raw
from bwtui.source.raw_stream import ReplicationStream

#: By name: options of pgoutput, the oldest server that has them, and how much memory it may decode in.
PROTOCOLS: dict[str, tuple[dict[str, str], int, str]] = {
    "1": ({}, 14, "64MB"),
    "1, in 4 MB": ({}, 14, "4MB"),
    "2, streaming": ({"proto_version": "2", "streaming": "on"}, 14, "64MB"),
    "4, parallel": ({"proto_version": "4", "streaming": "parallel"}, 16, "64MB"),
}
_SPILL_SQL = "select spill_bytes, stream_bytes from pg_stat_replication_slots where slot_name = %s"


class Reading:
    """Reads a stream to the end of a transaction, and notes when what came."""

    def __init__(self, dsn: str, slot: str, options: dict[str, str]) -> None:
        self._stream = ReplicationStream(connect_raw(dsn), slot, ["bench"], options=options)
        #: By the monotonic clock: of the first row, and of the end, in whichever way that is told.
        self.first_row = self.end = 0.0
        self.bytes = 0
        #: How many bytes had come at which time, ten times a second.
        self.course: list[tuple[float, int]] = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Wait for the transaction's end."""
        self._thread.join()
        self._stream.end()

    def bytes_at(self, moment: float) -> int:
        """Return how many bytes had come by then."""
        return max((size for at, size in self.course if at <= moment), default=0)

    def _read(self) -> None:
        told = 0.0
        while not self.end:
            self._stream.wait(1.0)
            for frame in self._stream.frames():
                if frame[0] == XLOG_DATA:
                    self.bytes += len(frame)
                    tag = frame[PAYLOAD_OFFSET]
                    if tag == ord("I") and not self.first_row:
                        self.first_row = time.monotonic()
                    elif tag in b"Cc":
                        self.end = time.monotonic()
                        break
                    if not self.course or self.bytes - self.course[-1][1] > 1 << 20:
                        self.course.append((time.monotonic(), self.bytes))
            if time.monotonic() - told > 5:
                told = time.monotonic()
                self._stream.send_status(0)


def measure(dsn: str, rows: int, insert: Callable[[Any, int], None]) -> list[dict[str, object]]:
    """Return figures of one transaction of ``rows`` rows for each version, which ``insert`` writes."""
    found: list[dict[str, object]] = []
    with contextlib.closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        for number, (name, (options, since, memory)) in enumerate(PROTOCOLS.items()):
            if connection.server_version < since * 10_000:
                continue
            slot = f"bench_protocol_{number}"
            cursor.execute("truncate bench")
            cursor.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", [slot])
            decoding = make_conninfo(dsn, options=f"-c logical_decoding_work_mem={memory}")
            reading = Reading(decoding, slot, options)
            begun = time.monotonic()
            cursor.execute("begin")
            insert(cursor, rows)
            written = time.monotonic()
            cursor.execute("commit")
            committed = time.monotonic()
            reading.join()
            cursor.execute(_SPILL_SQL, [slot])
            ((spilled, streamed),) = cursor.fetchall()
            drop_slot(cursor, slot)
            may_send = reading.first_row if not options else reading.end
            found.append(
                {
                    "protocol": name,
                    "rows": rows,
                    "write_seconds": round(written - begun, 2),
                    "may_send_after": round(may_send - committed, 2),
                    "all_read_after": round(reading.end - committed, 2),
                    "came_before_commit_mb": round(reading.bytes_at(committed) / 1e6),
                    "bytes_mb": round(reading.bytes / 1e6),
                    "spilled_mb": round((spilled or 0) / 1e6),
                    "streamed_mb": round((streamed or 0) / 1e6),
                }
            )
    return found


def drop_slot(cursor: Any, slot: str) -> None:
    """Drop a slot as soon as the session that read it is gone."""
    active = "select 1 from pg_replication_slots where slot_name = %s and active"
    while cursor.execute(active, [slot]) or cursor.fetchall():
        time.sleep(0.05)
    cursor.execute("select pg_drop_replication_slot(%s)", [slot])


def insert_rows(cursor: Any, rows: int) -> None:
    """Insert rows as one statement."""
    cursor.execute(ROWS.format(low="1", high=str(rows)))
