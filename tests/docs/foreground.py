"""Runs a command that continues until SIGTERM, and sends SIGTERM once its output contains a text.

``python -m tests.docs.foreground TEXT COMMAND…`` ends with the command's code.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.waiting import eventually

_SECONDS = 600


def run(text: str, command: list[str]) -> int:
    """Return the exit code of ``command``."""
    with tempfile.NamedTemporaryFile() as file:
        with subprocess.Popen(command, stdout=file, stderr=file) as process:
            try:
                eventually(
                    f"{text} is said",
                    lambda: text in Path(file.name).read_text() or process.poll() is not None,
                    _SECONDS,
                )
                process.terminate()
                code = process.wait(_SECONDS)
            finally:
                process.kill()
        print(Path(file.name).read_text())
        return code


if __name__ == "__main__":
    sys.exit(run(sys.argv[1], sys.argv[2:]))
