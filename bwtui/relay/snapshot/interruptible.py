"""Interrupt statements that wait inside libpq when a stop is requested."""

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import psycopg2

from bwtui.blocking import StopRequested
from bwtui.errors import ConnectionFailed
from bwtui.source.connection import Connection, execute

#: How often to check for a stop request.
_LOOK_SECONDS = 0.2


@contextmanager
def interruptible(connection: Connection, stop_requested: Callable[[], bool]) -> Iterator[None]:
    """Shut down ``connection`` on a stop request in the block: nothing else ends a wait inside libpq.

    COPY may return no row for a long time, if a row filter passes none or the server hangs, and any statement
    may wait for a lock. Raises StopRequested in place of the error that follows, of psycopg2 or of bwtui.
    """
    done, cut = threading.Event(), threading.Event()
    end = socket.socket(fileno=os.dup(connection.fileno()))

    def watch() -> None:
        while not done.wait(_LOOK_SECONDS):
            if stop_requested():
                cut.set()
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
                return

    thread = threading.Thread(target=watch, name="copy interrupt", daemon=True)
    thread.start()
    try:
        yield
    except (psycopg2.Error, ConnectionFailed) as error:
        if cut.is_set():
            raise StopRequested from error
        raise
    finally:
        done.set()
        thread.join()
        end.close()


def check_alive(
    connection: Connection, stop_requested: Callable[[], bool], description: str, hint: str
) -> None:
    """Check that the session of ``connection`` is alive.

    Raises StopRequested, or ConnectionFailed if the session has ended.
    """
    try:
        with interruptible(connection, stop_requested):
            execute(connection, "select")
    except psycopg2.Error as error:
        reason = " ".join(str(error).split())
        raise ConnectionFailed(f"the snapshot was interrupted: {description}: {reason}", hint) from error
