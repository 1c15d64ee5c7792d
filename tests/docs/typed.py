"""Runs a command on its own terminal, types keys when texts are shown, and ends with the command's code.

``python -m tests.docs.typed TEXT=KEYS… -- COMMAND…``: KEYS are typed once TEXT is shown; "Enter" is that key.
"""

import os
import re
import shutil
import sys
from functools import partial
from pathlib import Path

from tests.on_terminal import OnTerminal
from tests.waiting import eventually

_SECONDS = 600


def run(steps: list[str], command: list[str]) -> int:
    """Return the exit code of ``command``."""
    program = shutil.which(command[0])
    assert program is not None, command
    with OnTerminal([program, *command[1:]], os.environ, Path.cwd()) as terminal:
        for text, keys in (step.split("=") for step in steps):
            eventually(f"{text} is shown", partial(is_seen, terminal, text), _SECONDS)
            terminal.type(keys.replace("Enter", "\r"))
        eventually("the command ends", lambda: terminal.process.poll() is not None, _SECONDS)
        code = terminal.ended()
        print(shown(terminal)[-3000:])
        return code


def shown(terminal: OnTerminal) -> str:
    """Return all text shown so far, without colours and positions."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.said.decode("utf-8", "replace"))


def is_seen(terminal: OnTerminal, text: str) -> bool:
    """Return whether a text was shown, or never will be."""
    return text in shown(terminal) or terminal.process.poll() is not None


if __name__ == "__main__":
    end = sys.argv.index("--")
    sys.exit(run(sys.argv[1:end], sys.argv[end + 1 :]))
