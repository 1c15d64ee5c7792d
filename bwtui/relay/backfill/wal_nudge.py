"""Make an idle stream pass the WAL insert position."""

import threading
import time

from bwtui.relay.backfill.stream_hook import BackfillStream
from bwtui.source.failover.stream_server import StreamServer
from bwtui.source.slot import committed_lsn

#: How often the server is asked for its position, and when a commit is written for it.
_ASK_SECONDS, _PUSH_SECONDS = 0.02, 0.4


class WalNudge:
    """Asks the server for its position, and finally gives it something to send."""

    def __init__(self, server: StreamServer) -> None:
        self._server = server
        self._ask_at = self._push_at = 0.0

    def begin(self) -> None:
        """Restart the timer, since a chunk was read."""
        self._push_at = time.monotonic() + _PUSH_SECONDS

    def ask(self, stream: BackfillStream) -> None:
        """Ask the server, if it is time to."""
        now = time.monotonic()
        if now >= self._ask_at:
            stream.ask_position()
            self._ask_at = now + _ASK_SECONDS
        if now >= self._push_at:
            write_commit(self._server)
            self._push_at = now + _PUSH_SECONDS


def write_commit(server: StreamServer) -> None:
    """Write a commit in a thread, so that a stream passes what was inserted into the WAL before.

    PostgreSQL writes whole pages while a transaction is open, and the rest of a record only with a commit, or
    every 15 s. Failures are ignored: the caller tries again while it is still waiting.
    """

    def push() -> None:
        try:
            connection = server.connect()
            try:
                committed_lsn(connection)
            finally:
                connection.close()
        except Exception:
            return

    threading.Thread(target=push, name="backfill push", daemon=True).start()
