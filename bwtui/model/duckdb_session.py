"""DuckDB that obeys Ctrl-C."""

import contextlib
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import duckdb


@contextlib.contextmanager
def session(database: Path | str = ":memory:", **settings: str | int) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open a database with some of DuckDB's settings; a Ctrl-C ends the query that the main thread waits for.

    DuckDB looks for signals only between the tasks of a query, and the thread that waits takes tasks itself:
    one that reads a large table would go on to its end, however often Ctrl-C is pressed.
    """
    with duckdb.connect(str(database), config={**settings}) as connection, _interruptible(connection):
        yield connection


@contextlib.contextmanager
def _interruptible(connection: duckdb.DuckDBPyConnection) -> Iterator[None]:
    # Python's own handler runs in the main thread, once that is back; this descriptor is written at once.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    reader, writer = socket.socketpair()
    writer.setblocking(False)

    def watch() -> None:
        while number := reader.recv(1):
            if number[0] == signal.SIGINT:
                connection.interrupt()

    thread = threading.Thread(target=watch, name="duckdb signals", daemon=True)
    before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        writer.close()
        thread.join()
        reader.close()
