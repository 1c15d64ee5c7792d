"""Has a stream that has nothing to say come past what was inserted into the WAL."""

import threading
import time

from bwtui.relay.backfill.beside import Stream
from bwtui.source.failover.stream_server import StreamServer
from bwtui.source.slot import committed_lsn

#: How often it is asked where it stands, and when a commit is written for it.
_ASK_SECONDS, _PUSH_SECONDS = 0.02, 0.4


class Prompt:
    """Asks the server where it stands, and at last gives it something to send."""

    def __init__(self, server: StreamServer) -> None:
        self._server = server
        self._ask_at = self._push_at = 0.0

    def begin(self) -> None:
        """Begin anew: a chunk was read."""
        self._push_at = time.monotonic() + _PUSH_SECONDS

    def ask(self, stream: Stream) -> None:
        """Ask, if it is time to."""
        now = time.monotonic()
        if now >= self._ask_at:
            stream.ask_position()
            self._ask_at = now + _ASK_SECONDS
        if now >= self._push_at:
            push_on(self._server)
            self._push_at = now + _PUSH_SECONDS


def push_on(server: StreamServer) -> None:
    """Have a commit written, so that a stream comes past what was inserted into the WAL before.

    PostgreSQL writes whole pages while a transaction is open, and the rest of a record only with a commit, or
    every 15 s. In a thread; what fails is tried again by whoever still waits.
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
