"""A pseudo-terminal that a program's screens run in, and a reader of what they draw there; Linux only."""

import codecs
import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from processes import cpu_of
from rich.cells import cell_len

#: What comes: a control sequence, a title or another string, any other escape, a control character, text.
_PART = re.compile(
    r"\x1b\[(?P<args>[0-9;:?<>=$]*)(?P<final>[@-~])"
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[PX^_].*?\x1b\\|\x1b[^\[\]PX^_]"
    r"|(?P<control>[\x00-\x1a\x1c-\x1f\x7f])|(?P<text>[^\x00-\x1f\x7f]+)",
    re.DOTALL,
)
#: Asked whether it draws a picture at once, a terminal of today says yes.
_ASKS, _YES = b"\x1b[?2026$p", b"\x1b[?2026;2$y"
#: A picture is whole when nothing more has come for so many seconds.
_SETTLED = 0.04


class Display:
    """The cells of a terminal, as far as screens that place all that they draw need them."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self._cells = [[" "] * width for _ in range(height)]
        self._x = self._y = 0
        self._left = ""

    def feed(self, text: str) -> None:
        """Draw what came; half a sequence waits for its other half."""
        text, at = self._left + text, 0
        while part := _PART.match(text, at):
            at = part.end()
            if part["text"]:
                self._write(part["text"])
            elif part["control"]:
                self._control(part["control"])
            elif part["final"]:
                self._sequence(part["args"], part["final"])
        self._left = text[at:]

    def lines(self) -> list[str]:
        """Return the lines as text, without blanks at their ends."""
        return ["".join(line).rstrip() for line in self._cells]

    def _write(self, text: str) -> None:
        for character in text:
            if self._x < self.width:
                self._cells[self._y][self._x] = character
            wide = cell_len(character) - 1
            for more in range(self._x + 1, min(self._x + 1 + wide, self.width)):
                self._cells[self._y][more] = ""
            self._x += 1 + wide

    def _control(self, control: str) -> None:
        if control == "\r":
            self._x = 0
        elif control == "\n":
            self._y = min(self._y + 1, self.height - 1)

    def _sequence(self, args: str, final: str) -> None:
        numbers = [int(n) if n.isdigit() else 0 for n in args.split(";")]
        if final in "Hf":
            row, column = [*numbers, 1][:2]
            self._y = min(max(row, 1), self.height) - 1
            self._x = max(column, 1) - 1
        elif final == "J":
            self._cells = [[" "] * self.width for _ in range(self.height)]
        elif final == "K":
            self._cells[self._y][self._x :] = [" "] * (self.width - self._x)
        elif final in "ABCD":
            step = numbers[0] or 1
            self._x += step * ((final == "C") - (final == "D"))
            self._y += step * ((final == "B") - (final == "A"))


class Screens:
    """A program with screens; what it draws is read at once, and looked at when somebody asks."""

    def __init__(
        self, command: Sequence[str], size: tuple[int, int], environment: Mapping[str, str], folder: Path
    ) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
        self.display = Display(*size)
        #: What came and was not looked at yet, how many pieces came at all, and when the last one did.
        self._waiting: deque[bytes] = deque()
        self._pieces, self._last = 0, 0.0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.started = time.monotonic()
        self.process = subprocess.Popen(
            command,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**environment, "TERM": "xterm-256color", "COLORTERM": "truecolor"},
            cwd=folder,
            start_new_session=True,
        )
        os.close(slave)
        threading.Thread(target=self._read, daemon=True).start()

    def cpu(self) -> float:
        """Return the CPU seconds that the program has used."""
        return cpu_of(self.process.pid)

    def resident(self) -> int:
        """Return the bytes of memory that it has now."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def text(self) -> str:
        """Return what is on the screen."""
        self._show()
        return "\n".join(self.display.lines())

    def wait_for(self, seen: Callable[[str], bool], seconds: float = 60.0) -> tuple[float, float]:
        """Wait for a picture; return the seconds since the start, and of CPU. Raises TimeoutError."""
        deadline = time.monotonic() + seconds
        while not (self._show() and seen(self.text())):
            if time.monotonic() > deadline or self.process.poll() is not None:
                raise TimeoutError(f"the screen shows:\n{self.text()}")
            time.sleep(0.002)
        return self._last - self.started, self.cpu()

    def press(self, key: str, seen: Callable[[str], bool] = bool, seconds: float = 10.0) -> float:
        """Press a key; return the seconds until the picture that was meant is whole. Raises TimeoutError."""
        self._show()
        at, begun = self._pieces, time.monotonic()
        os.write(self._master, key.encode())
        while True:
            time.sleep(0.002)
            now, last = time.monotonic(), self._last
            if self._pieces > at and now - last >= _SETTLED and seen(self.text()):
                return last - begun
            if now - begun > seconds:
                raise TimeoutError(f"{key!r} was pressed, and the screen shows:\n{self.text()}")

    def rest(self, seconds: float) -> None:
        """Let it run for so long."""
        time.sleep(seconds)
        self._show()

    def close(self) -> None:
        """End it, whatever it is doing."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        os.close(self._master)

    def _show(self) -> int:
        while self._waiting:
            self.display.feed(self._decoder.decode(self._waiting.popleft()))
        return self._pieces

    def _read(self) -> None:
        while True:
            try:
                piece = os.read(self._master, 1 << 16)
            except OSError:
                return
            if not piece:
                return
            self._last = time.monotonic()
            self._waiting.append(piece)
            self._pieces += 1
            if _ASKS in piece:
                os.write(self._master, _YES)
