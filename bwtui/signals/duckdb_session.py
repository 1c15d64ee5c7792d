"""DuckDB that obeys Ctrl-C."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import duckdb

from bwtui.signals.heard import heard


@contextlib.contextmanager
def session(database: Path | str = ":memory:", **settings: str | int) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open a database with some of DuckDB's settings; a Ctrl-C ends the query that the main thread waits for.

    So does any signal that stands for one (`bwtui.spark.interrupts`).

    DuckDB looks for signals only between the tasks of a query, and the thread that waits takes tasks itself:
    one that reads a large table would go on to its end, however often Ctrl-C is pressed.
    """
    with duckdb.connect(str(database), config={**settings}) as connection, _interruptible(connection):
        yield connection


@contextlib.contextmanager
def _interruptible(connection: duckdb.DuckDBPyConnection) -> Iterator[None]:
    def on_signal(number: int) -> None:
        if signal.getsignal(number) is signal.default_int_handler:
            connection.interrupt()

    is_main = threading.current_thread() is threading.main_thread()
    with heard(on_signal) if is_main else contextlib.nullcontext():
        try:
            yield
        except RuntimeError as error:
            # All that DuckDB says of a Ctrl-C that it has looked for itself: what the handler raised is gone.
            if str(error) != "Query interrupted":
                raise
            raise KeyboardInterrupt from error
