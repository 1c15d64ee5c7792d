"""Ctrl-C during the import of a module is raised after the import."""

import signal
import subprocess
import sys
from pathlib import Path

_SLOW = """
import sys, time
print("importing", flush=True)
time.sleep(1.0)
print("imported", flush=True)
"""
_COMMAND = """
import signal, sys
from bwtui.entry import interrupt
signal.signal(signal.SIGINT, interrupt)
try:
    import slow_module
    import time
    time.sleep(60)
except KeyboardInterrupt:
    print("interrupted", "slow_module" in sys.modules, flush=True)
"""


def test_an_import_is_not_cut_off(tmp_path: Path) -> None:
    (tmp_path / "slow_module.py").write_text(_SLOW)
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{_COMMAND}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "importing\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.read() == "imported\ninterrupted True\n"
        assert process.wait(30) == 0


_ENDING = """
import atexit, sys, time
from bwtui.entry import main
atexit.register(lambda: (print("ending", flush=True), time.sleep(60)))
sys.argv = ["bwtui", "--version"]
main()
"""


def test_one_at_the_end_of_the_process_prints_no_traceback() -> None:
    """A handler of the interpreter's end, such as that of its logging, was named with its traceback."""
    command = [sys.executable, "-c", _ENDING]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline().startswith("bwtui, version")
        assert process.stdout.readline() == "ending\n"
        process.send_signal(signal.SIGINT)
        assert (process.wait(30), process.stderr.read()) == (0, "")
