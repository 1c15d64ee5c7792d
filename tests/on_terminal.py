"""Run a command in a terminal of its own, and collect all output of the terminal."""

import fcntl
import os
import pty
import re
import signal
import subprocess
import sys
import termios
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.waiting import eventually

_MODE = re.compile(rb"\x1b\[\?(\d+)([hl])")
_SIZE = b"\x28\x00\x78\x00\x00\x00\x00\x00"
#: The command first makes the terminal its controlling one.
_OWN = "import os, sys; os.login_tty(0); os.execv(sys.argv[1], sys.argv[1:])"
#: A terminal's initial modes: the cursor is visible, and lines wrap.
_FRESH = {25, 7}


class OnTerminal:
    """A running command; a context manager."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], folder: Path) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, _SIZE)
        self._slave: int = slave
        self._before: list[Any] = termios.tcgetattr(slave)
        self._said = bytearray()
        self.process = subprocess.Popen(
            [sys.executable, "-SEc", _OWN, *command],
            env={**environment, "TERM": environment.get("TERM", "xterm-256color")},
            cwd=folder,
            stdin=slave,
            stdout=slave,
            stderr=slave,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> "OnTerminal":
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.close()

    @property
    def said(self) -> bytes:
        """All output of the terminal so far."""
        return bytes(self._said)

    def type(self, keys: str) -> None:
        """Press keys."""
        os.write(self._master, keys.encode())

    def wait_for_screens(self) -> None:
        """Wait until the screens are open and have set all their modes."""
        up = b"\x1b[?2004h"
        eventually("the screens are up", lambda: up in self._said or self.process.poll() is not None)
        assert up in self._said, self.said

    def ended(self, number: signal.Signals | None = None) -> int:
        """Send a signal, and return the exit code after reading all output."""
        if number is not None:
            self.process.send_signal(number)
        code = self.process.wait(60)
        # Our own open descriptor would keep the terminal alive.
        self._let_go()
        self._reader.join(10)
        return code

    def is_as_it_was(self) -> bool:
        """Return whether every mode of the terminal is what it was before the command."""
        modes = {int(mode): switch == b"h" for mode, switch in _MODE.findall(self.said)}
        kept = self.said.count(b"\x1b[>") == 0 or self.said.rindex(b"\x1b[<u") > self.said.rindex(b"\x1b[>")
        return kept and all(on == (mode in _FRESH) for mode, on in modes.items()) and self._attributes()

    def close(self) -> None:
        """Close the terminal, as closing its window does."""
        self._let_go()
        if self._master >= 0:
            os.close(self._master)
            self._master = -1

    def _attributes(self) -> bool:
        return self._after == self._before

    def _let_go(self) -> None:
        if self._slave >= 0:
            self._after: list[Any] = termios.tcgetattr(self._slave)
            os.close(self._slave)
            self._slave = -1

    def _read(self) -> None:
        with suppress(OSError):
            while some := os.read(self._master, 1 << 16):
                self._said += some
