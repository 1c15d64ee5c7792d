"""How far the slot is behind, asked of PostgreSQL once a second by a thread of its own."""

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import psycopg2

from bwtui.errors import BwtuiError
from bwtui.source.connection import Connection, connect, query
from bwtui.source.slot import CURRENT_LSN, slot_state

_PAUSE_SECONDS = 1.0
_KEPT = 7_200
_SPILL_SQL = "select spill_bytes from pg_catalog.pg_stat_replication_slots where slot_name = %s"


@dataclass(frozen=True, slots=True)
class Lag:
    """One look at the slot; all zero before the first."""

    time: float = 0.0
    server_lsn: int = 0
    restart_lsn: int = 0
    wal_status: str = ""
    safe_wal_bytes: int | None = None
    retained_bytes: int = 0
    spill_bytes: int | None = None


class LagSampler:
    """Looks at the slot once a second; while the server does not answer, the last look ages."""

    def __init__(self, dsn: str, slot: Callable[[], str], on_tick: Callable[[Connection], None]) -> None:
        """``slot`` names the slot in use now; ``on_tick`` may ask more over the sampler's session."""
        self.lag = Lag()
        self._dsn = dsn
        self._slot = slot
        self._on_tick = on_tick
        self._history: deque[tuple[float, int]] = deque(maxlen=_KEPT)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lag", daemon=True)

    def start(self) -> None:
        """Start looking."""
        self._thread.start()

    def stop(self) -> None:
        """Stop, and wait for the thread."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    def seconds_behind(self, confirmed_lsn: int) -> float:
        """Return for how long WAL beyond ``confirmed_lsn`` has been there, as far as the samples tell."""
        for moment, lsn in tuple(self._history):
            if lsn > confirmed_lsn:
                return max(0.0, time.time() - moment)
        return 0.0

    def forget_before(self, confirmed_lsn: int) -> None:
        """Drop samples that are confirmed, so that `seconds_behind` stays cheap."""
        history = self._history
        while history and history[0][1] <= confirmed_lsn:
            history.popleft()

    def _run(self) -> None:
        connection: Connection | None = None
        while not self._stop.wait(_PAUSE_SECONDS if self.lag.time else 0):
            try:
                connection = connection or connect(self._dsn)
                self._look(connection)
                self._on_tick(connection)
            except (psycopg2.Error, BwtuiError):
                if connection is not None:
                    connection.close()
                connection = None
                self._stop.wait(_PAUSE_SECONDS)
        if connection is not None:
            connection.close()

    def _look(self, connection: Connection) -> None:
        name = self._slot()
        state = slot_state(connection, name)
        if state is None:
            server = query(connection, f"select ({CURRENT_LSN}::pg_lsn - '0/0')::bigint")[0][0]
            self.lag = Lag(time.time(), int(server))
        else:
            spill = query(connection, _SPILL_SQL, name)
            self.lag = Lag(
                time=time.time(),
                server_lsn=state.server_lsn,
                restart_lsn=state.restart_lsn,
                wal_status=state.wal_status or "",
                safe_wal_bytes=state.safe_wal_bytes,
                retained_bytes=max(0, state.server_lsn - state.restart_lsn) if state.restart_lsn else 0,
                spill_bytes=int(spill[0][0]) if spill else None,
            )
        self._history.append((self.lag.time, self.lag.server_lsn))
