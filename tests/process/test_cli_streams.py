"""Outputs that can't be written, closed streams, and Ctrl-C during the startup."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.recorded_stream import Stream, table

_BWTUI = [sys.executable, "-m", "bwtui"]
_FULL = (
    b"bwtui: error: can't write the output: No space left on device\n"
    b"hint: free some space on the disk of the output, then try again\n"
)
_CLOSED = (
    b"bwtui: error: can't write the output: it is closed\n"
    b"hint: run the command with an open stdout, or redirect it to /dev/null\n"
)


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("recorded") / "r"
    stream = Stream(folder)
    stream.begin_pass()
    stream.change("insert", table(1, "a"), 1, b"x")
    stream.commit()
    stream.stop()
    return str(folder)


@pytest.mark.parametrize(
    ("args", "unbuffered"),
    [
        (["--version"], ""),
        (["recording", "--help"], ""),
        (["recording", "info", "{}"], "1"),
        (["recording", "check", "{}", "--json"], ""),
        *((["recording", "export", "{}", "--format", "jsonl"], unbuffered) for unbuffered in ("", "1")),
    ],
)
def test_an_output_that_cannot_be_written_is_one_line(
    recording: str, args: list[str], unbuffered: str
) -> None:
    command = [*_BWTUI, *(arg.format(recording) for arg in args)]
    environment = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    with Path("/dev/full").open("wb") as full:
        ran = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, env=environment, check=False)
    assert (ran.returncode, ran.stderr.endswith(_FULL)) == (2, True)
    assert len(ran.stderr.splitlines()) <= 2
    closed = ["sh", "-c", '"$@" >&-', "sh", *command]
    ran = subprocess.run(closed, stderr=subprocess.PIPE, env=environment, check=False)
    assert (ran.returncode, ran.stderr.endswith(_CLOSED)) == (2, True)


def test_no_stream_at_all(recording: str, tmp_path: Path) -> None:
    command = [*_BWTUI, "recording", "export", recording, "--format", "jsonl", "-o", str(tmp_path / "x")]
    ran = subprocess.run(["sh", "-c", '"$@" <&- >&- 2>&-', "sh", *command], check=False)
    assert ran.returncode == 0
    assert (tmp_path / "x").read_bytes().count(b"\n") == 1


def with_nobody_reading(*args: str, stream: str = "stdout") -> tuple[int, bytes]:
    """Run a command whose stdout, or stderr, has no reader; return its exit code and its other output."""
    read, write = os.pipe()
    os.close(read)
    other = {"stdout": "stderr", "stderr": "stdout"}[stream]
    pipes: dict[str, int] = {stream: write, other: subprocess.PIPE}
    try:
        ran = subprocess.run([*_BWTUI, *args], check=False, **pipes)  # type: ignore[call-overload]
    finally:
        os.close(write)
    return ran.returncode, getattr(ran, other)


def test_a_verdict_does_not_depend_on_its_reader(recording: str, tmp_path: Path) -> None:
    damaged = shutil.copytree(recording, tmp_path / "damaged")
    (segment,) = damaged.glob("*.bwj")
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 1
    segment.chmod(0o600)
    segment.write_bytes(data)
    assert with_nobody_reading("recording", "check", str(damaged))[0] == 6
    assert with_nobody_reading("recording", "check", str(damaged), stream="stderr")[0] == 6
    assert with_nobody_reading("recording", "check", recording) == (0, b"")
    assert with_nobody_reading("--help") == (0, b"")


def test_an_export_that_nobody_reads_ends_at_once(recording: str, tmp_path: Path) -> None:
    # It ends before its note on missing parts of the recording.
    assert with_nobody_reading("recording", "export", recording, "--format", "jsonl") == (0, b"")
    # A file is still written completely.
    target = tmp_path / "x"
    command = ["recording", "export", recording, "--format", "jsonl", "-o", str(target)]
    assert with_nobody_reading(*command)[0] == 0
    assert target.read_bytes().count(b"\n") == 1


_AT_ONCE = """
import os
from bwtui.cli.output import streams
streams.prepare()
os.set_blocking(1, False)
streams.write_at_once("x" * 1_000_000)
"""


def test_a_status_into_a_full_pipe_that_does_not_block_is_written_whole() -> None:
    ran = subprocess.run([sys.executable, "-c", _AT_ONCE], capture_output=True, check=False, timeout=60)
    assert (ran.returncode, ran.stderr, len(ran.stdout)) == (0, b"", 1_000_000)


_STUCK = """
import sys, threading
from bwtui.cli.output import streams
from bwtui.console import say
streams.prepare()
saying = threading.Thread(target=say, args=("nobody reads this",), kwargs={"err": True}, daemon=True)
saying.start()
saying.join(1)
sys.exit(5 if saying.is_alive() else 0)
"""


def test_a_thread_whose_stderr_nobody_reads_does_not_hold_up_the_end_of_the_process() -> None:
    """The thread would hold a buffer's lock, and Python waits for that when it exits."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    for size in (65536, 1):
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(writer, b"x" * size)
    os.set_blocking(writer, True)
    try:
        ran = subprocess.run([sys.executable, "-c", _STUCK], stderr=writer, check=False, timeout=30)
    finally:
        os.close(writer)
        os.close(reader)
    assert ran.returncode == 5


def test_what_is_said_on_stderr_goes_out_whole() -> None:
    """An unbuffered stream may write only a part, so our code has to write the rest."""
    prepared = "import sys\nfrom bwtui.cli.output import streams\nstreams.prepare()\n"
    says = f"{prepared}sys.stderr.write('x' * 1_000_000)"
    ran = subprocess.run([sys.executable, "-c", says], capture_output=True, check=False, timeout=30)
    assert (ran.returncode, len(ran.stderr)) == (0, 1_000_000)


_SLOW = """
import importlib.abc, sys, time
class Slow(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "click":
            print("importing", flush=True)
            time.sleep(250)
sys.meta_path.insert(0, Slow())
from bwtui.entry import main
main()
"""


def test_ctrl_c_during_the_imports_is_quiet() -> None:
    ran = subprocess.Popen([sys.executable, "-c", _SLOW], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert ran.stdout is not None and ran.stderr is not None
    with closing(ran.stdout), closing(ran.stderr):
        ran.stdout.readline()
        ran.send_signal(signal.SIGINT)
        assert (ran.wait(60), ran.stderr.read()) == (130, b"")
