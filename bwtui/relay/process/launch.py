"""Starts the engine as a separate process, which outlives the terminal that started it."""

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

#: Safe path (-P), so that a file in the current folder can't replace one of our modules.
ENGINE_COMMAND: tuple[str, ...] = (sys.executable, "-P", "-m", "bwtui.relay.main")
_POLL = 0.05
#: Maximum time to wait for the engine to leave the state "starting"; it continues without us.
_READY_SECONDS = 60.0


class EngineProcess:
    """An engine that this process started."""

    def __init__(self, name: str, process: subprocess.Popen[bytes]) -> None:
        self.name = name
        self.process = process

    def wait_ready(self) -> Status | None:
        """Wait until the engine has started or ended, and return its status.

        After a minute, return its last status, or None if it has reported none; it continues.
        Raises the engine's own error if it ended with one; returns its last status if it ended normally.
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
            # An engine in the state "failed" still has to write its error and return its exit code.
            if status is not None and status.state not in ("starting", "stopped", "failed"):
                return status
            time.sleep(_POLL)
        if status is not None and status.state == "failed":
            raise BwtuiError(
                f"the relay failed, but its process has not ended: {status.detail}",
                f"see {log_path(self.name)}",
            )
        return status

    def error(self) -> BwtuiError | None:
        """Return the error with which the engine ended; None while it runs, and if it ended normally."""
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
            code, f"the engine's process {how} without recording the reason", f"see {log_path(self.name)}"
        )

    def stop(self, timeout: float = 10.0) -> None:
        """Request a clean stop and wait for it; kill the engine after ``timeout`` seconds."""
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
    """Start an engine in its own process and session. Raises RefusedError if the name is taken."""
    name = settings.relay_name
    lock = RelayLock.acquire(name)
    try:
        outcome.clear(name)
        log = open_log(name)
        try:
            # A separate session: neither Ctrl-C nor the end of this terminal reaches the engine.
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
        # The engine ended immediately; `wait_ready` reports why.
        return
