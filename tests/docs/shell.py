"""A shell that runs the commands of a page, line by line, in a separate folder."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType

from tests.docs.pages import ROOT
from tests.waiting import eventually

_PSQL = f"""#!{sys.executable}
# psql comes with PostgreSQL, and nothing else needs it: where it is missing, this runs what pages give it.
import sys
import psycopg2
args = [arg for arg in sys.argv[1:] if arg != "-q"]
statements = args[args.index("-c") + 1] if "-c" in args else sys.stdin.read()
connection = psycopg2.connect(args[0])
connection.autocommit = True
for statement in statements.split(";\\n"):
    if statement.strip():
        connection.cursor().execute(statement)
"""


class Shell:
    """One bash from the first line of a page to its last; a context manager."""

    def __init__(self, folder: Path, variables: dict[str, str]) -> None:
        self.home = folder / "home"
        self._folder = folder
        programs = folder / "bin"
        for one in (self.home, programs):
            one.mkdir()
        if shutil.which("psql") is None:
            (programs / "psql").write_text(_PSQL)
            (programs / "psql").chmod(0o755)
        ours = {k: v for k, v in os.environ.items() if not k.startswith(("BWTUI_", "PG", "XDG_", "COV"))}
        path = f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        self.environment = ours | {"HOME": str(self.home), "PATH": path, "PYTHONPATH": str(ROOT)} | variables
        self._bash = subprocess.Popen(
            ["bash", "--norc"],
            stdin=subprocess.PIPE,
            cwd=self.home,
            env=self.environment,
            text=True,
            start_new_session=True,
        )

    def __enter__(self) -> "Shell":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._bash.stdin is not None
        self._bash.stdin.close()
        try:
            self._bash.wait(60)
        except subprocess.TimeoutExpired:
            # Left by a command of a test that has failed.
            os.killpg(self._bash.pid, signal.SIGKILL)
            self._bash.wait()

    def run(self, command: str, seconds: float = 600) -> tuple[int, str]:
        """Run a command, and return its exit code and its output on both streams."""
        out, code = self._folder / "out", self._folder / "code"
        code.unlink(missing_ok=True)
        # The output goes to a file, so that a relay in the background does not hold a pipe. $? is kept for
        # the next.
        given = f"{{ {command}\n}} >{out} 2>&1 </dev/null; ended=$?\n"
        given += f"echo $ended >{code}.new; mv {code}.new {code}; (exit $ended)\n"
        assert self._bash.stdin is not None
        self._bash.stdin.write(given)
        self._bash.stdin.flush()
        eventually(f"{command} ends; it said {out}", code.exists, seconds)
        return int(code.read_text()), out.read_text().replace(str(self.home), "~")
