"""pg_recvlogical, where it is installed: what PostgreSQL alone can send, to a reader that discards."""

import re
import shutil
import subprocess
import time


def program() -> str | None:
    """Return where it is, or None."""
    return shutil.which("pg_recvlogical")


def version(path: str) -> str:
    """Return its version, such as ``18.1``."""
    said = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
    number = re.search(r"\d+[.\d]*", said)
    return number[0] if number else ""


def seconds(path: str, dsn: str, slot: str, publication: str, end: str) -> float:
    """Return how long it takes from a slot's place to ``end``, an LSN, with its start."""
    options = ["-o", "proto_version=1", "-o", f"publication_names={publication}"]
    command = [path, "-d", dsn, "-S", slot, "--start", "--no-loop", "-f", "/dev/null", "-E", end, *options]
    start = time.monotonic()
    subprocess.run(command, check=True)
    return time.monotonic() - start
