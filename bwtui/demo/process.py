"""The workload as a separate process: started, watched and stopped by the demo."""

import contextlib
import json
import subprocess
import sys
import threading
from typing import Any

from bwtui.demo.logs import log_hint
from bwtui.errors import BwtuiError

_STOP_TIMEOUT = 15.0


class WorkloadProcess:
    """A running workload; `latest` is its newest report."""

    def __init__(self, dsn: str, rate: float, seed: int, relay: str) -> None:
        self.latest: dict[str, Any] = {"done": False, "committed": 0, "rolled_back": 0, "rows": 0}
        # Its own session excludes it from the terminal's Ctrl-C: the demo stops its processes in order.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "bwtui.demo.workload"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._errors: list[str] = []
        self._threads = [
            threading.Thread(target=target, daemon=True) for target in (self._read, self._listen)
        ]
        for thread in self._threads:
            thread.start()
        assert self._process.stdin is not None
        # The connection string may contain a password, so it is sent through the pipe instead of an argument.
        with contextlib.suppress(BrokenPipeError):
            settings = {"dsn": dsn, "rate": rate, "seed": seed, "relay": relay}
            self._process.stdin.write(json.dumps(settings) + "\n")
            self._process.stdin.flush()

    def check(self) -> None:
        """Raise BwtuiError if the workload has ended on its own."""
        code = self._process.poll()
        if code is not None and not self.latest["done"]:
            self._join()
            raise BwtuiError(
                f"the workload ended unexpectedly with exit code {code}: {self._last_words()}",
                log_hint("postgres"),
            )

    def stop(self) -> dict[str, Any]:
        """Let the current transaction finish, and return the last report.

        Raises BwtuiError when the workload did not end cleanly, because its counts may then be wrong.
        """
        self._end()
        if not self.latest["done"]:
            raise BwtuiError(
                f"the workload did not end cleanly: {self._last_words()}", "run the demo again with --json"
            )
        return {key: value for key, value in self.latest.items() if key != "done"}

    def kill(self) -> None:
        """End the process unconditionally; does nothing if it has ended."""
        self._end()

    def _end(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(_STOP_TIMEOUT)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._join()

    def _join(self) -> None:
        for thread in self._threads:
            thread.join(5)
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.latest = json.loads(line)

    def _listen(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._errors = [*self._errors[-20:], line.strip()]

    def _last_words(self) -> str:
        return self._errors[-1] if self._errors else "it printed nothing"
