"""Ctrl-C ends a query of DuckDB, whatever task of the query the main thread runs."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import duckdb
import pytest

from bwtui.cli.main import _plain_ends
from bwtui.errors import Interrupted
from bwtui.signals.duckdb_session import session

#: Takes hours, and has one task that does not end earlier.
ENDLESS = "select sum(hash(range)) from range(1000000000000)"


@pytest.mark.parametrize("after", [0.02, 0.1, 0.3])
def test_ctrl_c_within_a_query_is_an_interrupt(after: float) -> None:
    """One Ctrl-C is enough; DuckDB itself ignores it while the main thread runs a task."""
    wakeup = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(wakeup)
    interrupt = threading.Timer(after, os.kill, (os.getpid(), signal.SIGINT))
    with pytest.raises(Interrupted), _plain_ends(), session() as connection:
        interrupt.start()
        connection.execute(ENDLESS)
    interrupt.join()
    assert signal.set_wakeup_fd(wakeup) == wakeup, "whoever had the signals before has them again"


def test_the_first_ctrl_c_ends_a_process_that_queries() -> None:
    code = (
        "from bwtui.cli.main import guarded\n"
        "from bwtui.signals.duckdb_session import session\n"
        "def query():\n"
        "    with session() as connection:\n"
        "        print('now', flush=True)\n"
        f"        connection.execute({ENDLESS!r})\n"
        "raise SystemExit(guarded(query))\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None and child.stderr is not None
        try:
            assert child.stdout.readline() == "now\n"
            child.send_signal(signal.SIGINT)
            assert child.wait(30) == Interrupted.exit_code
            assert child.stderr.read() == "bwtui: error: interrupted\n"
        finally:
            child.kill()


def test_a_ctrl_c_that_duckdb_sees_first_is_one() -> None:
    """DuckDB's exception then replaces the handler's."""
    with pytest.raises(KeyboardInterrupt), session():
        raise RuntimeError("Query interrupted")
    with pytest.raises(RuntimeError, match="another"), session():
        raise RuntimeError("another")


def test_a_query_of_another_thread_asks_for_no_signals() -> None:
    found: list[object] = []

    def ask() -> None:
        with session() as connection:
            found.append(connection.execute("select 7").fetchone())

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert found == [(7,)]


def test_settings_and_a_file_are_duckdbs(tmp_path: Path) -> None:
    with session(tmp_path / "kept.duckdb", threads=1) as connection:
        connection.execute("create table kept as select 5 as n")
        assert connection.execute("select current_setting('threads')").fetchone() == (1,)
    with pytest.raises(duckdb.Error):
        connection.execute("select 1")
    with session(tmp_path / "kept.duckdb") as connection:
        assert connection.execute("from kept").fetchone() == (5,)
