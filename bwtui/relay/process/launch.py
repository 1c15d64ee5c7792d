"""Starts the engine as a process of its own, which outlives the terminal that started it."""

import json
import os
import subprocess
import sys
import time

from bwtui.errors import BwtuiError, ConnectionFailed
from bwtui.model.status import Status
from bwtui.relay.process import outcome
from bwtui.relay.process.control import request
from bwtui.relay.process.lock import RelayLock
from bwtui.relay.process.log import log_path, open_log
from bwtui.settings import RelaySettings

#: Safe path (-P), so that a file in the current folder can't stand in for one of our modules.
ENGINE_COMMAND: tuple[str, ...] = (sys.executable, "-P", "-m", "bwtui.relay.process.main")
_POLL = 0.05
#: How long the engine may stay in the state "starting" before we stop waiting for it; it goes on by itself.
_READY_SECONDS = 60.0


class EngineProcess:
    """An engine that this process started."""

    def __init__(self, name: str, process: subprocess.Popen[bytes]) -> None:
        self.name = name
        self.process = process

    def wait_ready(self) -> Status | None:
        """Wait until the engine has begun, or has ended, and return its status.

        Returns what it said last, or None if nothing, when a minute has passed; it goes on then.
        Raises the engine's own error when it ended on one; returns its last status when it ended well.
        """
        deadline = time.monotonic() + _READY_SECONDS
        status: Status | None = None
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                return self._ended()
            try:
                status = Status.from_json(request(self.name, {"request": "status"}))
            except ConnectionFailed:
                status = None
            # One that says that it failed still has its error to write, and its exit code to give.
            if status is not None and status.state not in ("starting", "stopped", "failed"):
                return status
            time.sleep(_POLL)
        if status is not None and status.state == "failed":
            raise BwtuiError(
                f"the relay failed, and its process does not end: {status.detail}",
                f"see {log_path(self.name)}",
            )
        return status

    def error(self) -> BwtuiError | None:
        """Return the error on which the engine ended; None while it runs and when it ended well."""
        code = self.process.poll()
        if code is None:
            return None
        ended = outcome.read(self.name)
        if ended is not None:
            return ended.error()
        if code == 0:
            return None
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return outcome.error_with_code(
            code, f"the engine's process {how} and could not leave its reason", f"see {log_path(self.name)}"
        )

    def stop(self, timeout: float = 10.0) -> None:
        """Ask the engine to stop cleanly and wait for it; kill it after ``timeout`` seconds."""
        if self.process.poll() is None:
            self.process.terminate()
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _ended(self) -> Status | None:
        error = self.error()
        if error is not None:
            raise error
        ended = outcome.read(self.name)
        return ended.status if ended else None


def start(settings: RelaySettings) -> EngineProcess:
    """Start an engine in a process and session of its own. Raises RefusedError when its name is taken."""
    name = settings.relay_name
    lock = RelayLock.acquire(name)
    try:
        outcome.clear(name)
        log = open_log(name)
        try:
            # A session of its own: neither Ctrl-C nor the end of this terminal reaches the engine.
            process = subprocess.Popen(
                ENGINE_COMMAND,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=(lock.descriptor,),
            )
        finally:
            os.close(log)
        _hand_down(process, settings, lock)
    finally:
        lock.release()
    return EngineProcess(name, process)


def _hand_down(process: subprocess.Popen[bytes], settings: RelaySettings, lock: RelayLock) -> None:
    assert process.stdin is not None
    handed = json.dumps({"settings": settings.to_json(), "lock": lock.descriptor})
    try:
        with process.stdin as stdin:
            stdin.write(handed.encode())
    except BrokenPipeError:
        # It died at once; wait_ready says why.
        return
