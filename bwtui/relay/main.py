"""Runs one engine in this process: its control socket, signals, reports and outcome.

``connect --headless`` calls `run` in the foreground. relay/process/launch.py starts
``python -m bwtui.relay.main``, which reads its settings from stdin, since other users can read a
process's arguments.
"""

import contextlib
import dataclasses
import json
import logging
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from bwtui.blocking import leave
from bwtui.crash import crash, frames
from bwtui.cycles import collect_rarely
from bwtui.errors import BwtuiError, Interrupted
from bwtui.model.events import event
from bwtui.model.gaps import key_of
from bwtui.model.status import Status
from bwtui.relay import failpoints
from bwtui.relay.process import outcome
from bwtui.relay.process.last_status import LastStatus, at_the_end
from bwtui.relay.process.lock import RelayLock
from bwtui.relay.process.log import json_lines, log_to_stderr, trim
from bwtui.relay.process.outcome import RunOutcome
from bwtui.relay.serving.control_server import ControlServer, StatusSource
from bwtui.relay.serving.systemd_notifier import SystemdNotifier
from bwtui.settings import RelaySettings
from bwtui.signals.signal_thread import handled_in_thread

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: Maximum time that the reader of our output may take to read the last status.
_LAST_STATUS_SECONDS = 5.0
_log = logging.getLogger("bwtui.relay.main")


class RunnableEngine(StatusSource, Protocol):
    """The interface of the engine that its process needs."""

    def run(self) -> None:
        """Relay until stopped or caught up. Raises BwtuiError."""


EngineFactory = Callable[[RelaySettings], RunnableEngine]


@dataclasses.dataclass(frozen=True, slots=True)
class StatusListener:
    """Receives the engine's status every ``interval`` seconds."""

    emit: Callable[[Status], None]
    interval: float
    #: Called with the last status after the engine has ended.
    emit_last: Callable[[Status], None]


def real_engine(settings: RelaySettings) -> RunnableEngine:
    """Return the relay's engine; imported here, because it imports the clients for Kafka and PostgreSQL."""
    from bwtui.relay.engine import RelayEngine

    return RelayEngine(settings)


def run(
    settings: RelaySettings,
    lock: RelayLock,
    listener: StatusListener,
    factory: EngineFactory = real_engine,
    supervisor: SystemdNotifier | None = None,
) -> RunOutcome:
    """Run an engine to its end in this process's main thread, and return its outcome.

    The outcome is also stored in the relay's state folder, and reported to the ``supervisor``. The lock is
    released at the end.
    """
    name = settings.relay_name
    # A row creates objects that live until Kafka has acknowledged it, and no reference cycles.
    collect_rarely()
    # Files in the engine's folder are private.
    os.umask(0o077)
    outcome.clear(name)
    last_status = LastStatus(name)
    last_status.forget()
    engine: RunnableEngine | None = None
    reporter: _StatusReporter | None = None
    error: BaseException | None = None
    signals: list[int] = []
    try:
        failpoints.arm(os.environ.get(failpoints.VARIABLE))
        engine = factory(settings)
        reporter = _StatusReporter(engine, listener, last_status)
        with _stop_on_signal(engine, signals), ControlServer(name, engine), _listening(settings, engine):
            reporter.start()
            if supervisor is not None:
                supervisor.watch(engine)
            engine.run()
    except (Exception, KeyboardInterrupt) as raised:
        error = raised
    ended = _outcome(engine, error, signals)
    is_whole = False
    try:
        is_whole = outcome.write(name, ended)
    except OSError as failure:
        # A full disk must not hide how the engine ended.
        _log.error("can't write the outcome: %s", failure.strerror, extra=event("outcome_unwritten"))
    if reporter is not None and ended.status is not None:
        reporter.end(ended.status)
    if is_whole:
        # Only here does nothing write it any more.
        last_status.forget()
    if supervisor is not None:
        verdict = ended.status.verdict.sentence if ended.status is not None else ""
        supervisor.end(ended.exit_code, ended.message or verdict)
    lock.release()
    return ended


def _listening(settings: RelaySettings, engine: RunnableEngine) -> contextlib.AbstractContextManager[object]:
    """Return the server for metrics and probes, if it is configured."""
    if not settings.listen:
        return contextlib.nullcontext()
    # Imported only if needed, because it imports Prometheus's client.
    from bwtui.relay.serving.http_server import HttpServer

    return HttpServer(settings.listen, engine)


def _outcome(engine: RunnableEngine | None, error: BaseException | None, signals: list[int]) -> RunOutcome:
    reported = _reported(error, signals)
    code = reported.exit_code if reported else 0
    status = None
    if engine is not None:
        status = at_the_end(engine.status(), reported, code, time.time())
    return RunOutcome(
        code, time.time(), reported.message if reported else None, reported.hint if reported else None, status
    )


def _reported(error: BaseException | None, signals: list[int]) -> BwtuiError | None:
    if isinstance(error, BwtuiError):
        return error
    if isinstance(error, KeyboardInterrupt) or (error is None and signal.SIGINT in signals):
        return Interrupted()
    if error is None:
        return None
    _log.error("unexpected exception\n%s", frames(error), extra=event("crashed"))
    return crash(error)


@contextlib.contextmanager
def _stop_on_signal(engine: RunnableEngine, received: list[int]) -> Iterator[None]:
    """Turn SIGINT, SIGTERM and SIGHUP into a clean stop, and a second SIGINT into an immediate exit."""

    def on_signal(number: int) -> None:
        if number not in _SIGNALS:
            return
        if number == signal.SIGINT and signal.SIGINT in received:
            # Nothing is lost: unconfirmed changes are read again after the next start.
            os._exit(Interrupted.exit_code)
        received.append(number)
        engine.stop()

    before = {number: signal.signal(number, _ignore) for number in _SIGNALS}
    try:
        with handled_in_thread(on_signal):
            yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _ignore(number: int, frame: object) -> None:
    """Replace the default action; the thread of `handled_in_thread` handles the signal."""


class _StatusReporter:
    """Reports in a thread: a blocked listener delays neither the relay nor, for long, its end."""

    def __init__(self, engine: RunnableEngine, listener: StatusListener, last_status: LastStatus) -> None:
        self._engine = engine
        self._listener = listener
        self._last_status = last_status
        self._last: queue.SimpleQueue[Status] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="report", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def end(self, status: Status) -> None:
        """Report the last ``status``, and wait for that, but not forever: the output may have no reader."""
        if self._thread.ident is None:
            return
        self._last.put(status)
        self._thread.join(_LAST_STATUS_SECONDS)
        if self._thread.is_alive():
            _log.warning("the last status was not written: no process reads it", extra=event("reader_gone"))

    def _work(self) -> None:
        while True:
            status = self._engine.status()
            self._last_status.keep(status)
            self._listener.emit(status)
            try:
                last = self._last.get(timeout=self._listener.interval)
            except queue.Empty:
                continue
            self._listener.emit_last(last)
            return


def stalled_by(status: Status) -> str:
    """Return what identifies a stall, its cause and what it is blocked on; "" if there is none."""
    return f"{status.verdict.cause} {status.verdict.dependency}" if status.state == "stalled" else ""


def state_of(status: Status) -> dict[str, Any]:
    """Return the structured fields of a log line about a relay's state."""
    verdict = status.verdict
    return event("state", state=status.state, condition=verdict.condition, cause=verdict.cause or None)


def log_listener(name: str) -> StatusListener:
    """Return the listener of an engine whose stderr is its log: it writes a line when the state changes."""
    last: list[tuple[str, str]] = []

    def emit(status: Status) -> None:
        # The sentence of a stall contains its duration, which differs each time.
        gaps = key_of(status)
        now = (status.state, stalled_by(status) or gaps or status.detail)
        if [now] != last:
            last[:] = [now]
            text = status.verdict.sentence if status.state == "stalled" or gaps else status.detail
            _log.info("%s%s", status.state, f": {text}" if text else "", extra=state_of(status))
        trim(name, sys.stderr.fileno())

    return StatusListener(emit, 0.5, emit)


def main(factory: EngineFactory = real_engine) -> int:
    """Run the engine whose settings and lock the parent process passes on stdin; return the exit code."""
    handed = json.load(sys.stdin)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    settings = RelaySettings.from_json(handed["settings"])
    name = settings.relay_name
    log_to_stderr(name, settings.log_format)
    ended = run(settings, RelayLock.inherited(name, handed["lock"]), log_listener(name), factory)
    log_failure(ended)
    return ended.exit_code


def log_failure(ended: RunOutcome) -> None:
    """Log the error that ended a relay; for an interrupted one, the line about its state already says so."""
    if ended.is_failure:
        hint = f" (hint: {ended.hint})" if ended.hint and json_lines() is None else ""
        extra = event("failed", exit_code=ended.exit_code, hint=ended.hint)
        _log.error("%s%s", ended.message, hint, extra=extra)


if __name__ == "__main__":
    leave(main())
