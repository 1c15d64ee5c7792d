"""A terminal that runs commands and screens, and collects their output."""

import contextlib
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

#: Runs several commands in one process, each after a line with its number.
_PROGRAM = """
import json, os, sys
from bwtui.cli.output import streams
from bwtui.cli.main import cli
streams.prepare()
for number, args in enumerate(json.loads(sys.argv[1])):
    os.write(1, f"<{number}>\\n".encode())
    try:
        cli.main(args, "bwtui")
    except SystemExit as end:
        os.write(1, f"<{end.code}/>\\n".encode())
"""
#: Sequences that a program may send to a terminal besides text: colours, cursor moves, modes that Textual
#: sets. None of them contains text, except for queries to the terminal itself.
SEQUENCES = re.compile(
    r"\x1b\[[0-9;:]*m"  # colours
    r"|\x1b\[[0-9;]*[ABCDHKf]"  # the cursor, the rest of a line
    r"|\x1b\[\?[0-9;]+[hl]"  # modes: alternate screen, mouse, paste
    r"|\x1b\[\?[0-9;]+\$p"  # queries a mode
    r"|\x1b\[[<>=][0-9;]*u"  # keys
    r"|\x1b\[[0-9;]*t|\x1b\[c"
    r"|\x1b\]22;[a-z-]*\x07"  # the shape of the mouse's pointer
)


class Terminal:
    """Collects a program's output."""

    def __init__(self, size: tuple[int, int] = (100, 40)) -> None:
        self.master, self._slave = pty.openpty()
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
        self.got = bytearray()

    def start(
        self, args: Sequence[str], environment: dict[str, str], folder: Path
    ) -> "subprocess.Popen[bytes]":
        """Run a Python program on it."""
        try:
            return subprocess.Popen(
                [sys.executable, *args],
                stdin=self._slave,
                stdout=self._slave,
                stderr=self._slave,
                env=environment | {"TERM": "xterm-256color", "COLORTERM": "truecolor"},
                cwd=folder,
                start_new_session=True,
            )
        finally:
            os.close(self._slave)

    def type(self, keys: str) -> None:
        """Press keys."""
        os.write(self.master, keys.encode())

    def read_until(self, seen: Callable[[str], bool], seconds: float = 60) -> None:
        """Read until a text arrives."""
        deadline = time.monotonic() + seconds
        while not seen(self.text):
            if time.monotonic() > deadline:
                raise AssertionError(f"the terminal got: {self.text[-2000:]!r}")
            self._take(0.2)

    def read_to_the_end(self, process: "subprocess.Popen[bytes]", seconds: float = 120) -> int:
        """Read all output, and return the exit code."""
        deadline = time.monotonic() + seconds
        while self._take(0.2) or process.poll() is None:
            assert time.monotonic() < deadline, self.text[-2000:]
        os.close(self.master)
        return process.wait()

    @property
    def text(self) -> str:
        """All output so far, as text."""
        return self.got.decode("utf-8", "replace")

    def _take(self, seconds: float) -> bool:
        if not select.select([self.master], [], [], seconds)[0]:
            return False
        # The other side was closed.
        with contextlib.suppress(OSError):
            piece = os.read(self.master, 65_536)
            self.got += piece
            return bool(piece)
        return False


def program(commands: str) -> list[str]:
    """Return the arguments of Python for commands as JSON."""
    return ["-c", _PROGRAM, commands]


def parts(got: str) -> Iterator[tuple[str, int]]:
    """Return the output of each command of a program, and its exit code."""
    for number, rest in enumerate(got.split("<0>\r\n", 1)[-1].split("/>\r\n")):
        text, _, code = rest.rpartition("<")
        if code.lstrip("-").isdigit():
            yield text.removeprefix(f"<{number}>\r\n"), int(code)


def sequences(got: str) -> Counter[str]:
    """Return how often each kind of allowed sequence occurs."""
    return Counter(re.sub(r"[0-9;:]+", "n", one).replace("\x1b", "ESC") for one in SEQUENCES.findall(got))
