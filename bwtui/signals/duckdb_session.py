"""DuckDB sessions that obey Ctrl-C."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import duckdb

from bwtui.signals.signal_thread import handled_in_thread


@contextlib.contextmanager
def session(database: Path | str = ":memory:", **settings: str | int) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open a database with DuckDB settings; Ctrl-C ends the query that the main thread waits for.

    So does any signal that is handled like it (`bwtui.spark.lazy_session`). DuckDB checks for signals only
    between the tasks of a query, and the waiting thread runs tasks itself: one that reads a large table would
    continue to its end, however often Ctrl-C is pressed.
    """
    with duckdb.connect(str(database), config={**settings}) as connection, _interruptible(connection):
        yield connection


@contextlib.contextmanager
def _interruptible(connection: duckdb.DuckDBPyConnection) -> Iterator[None]:
    def on_signal(number: int) -> None:
        if signal.getsignal(number) is signal.default_int_handler:
            connection.interrupt()

    is_main = threading.current_thread() is threading.main_thread()
    with handled_in_thread(on_signal) if is_main else contextlib.nullcontext():
        try:
            yield
        except RuntimeError as error:
            # DuckDB's only message for a Ctrl-C that it has noticed itself: the handler's exception is lost.
            if str(error) != "Query interrupted":
                raise
            raise KeyboardInterrupt from error
