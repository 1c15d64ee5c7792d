"""Make blocking calls in helper threads, so that the relay's main thread can keep the stream alive.

While a service does not answer, the server must still get status updates (``wal_sender_timeout``), deliveries
must be processed, and a stop request must be noticed. So the main thread pulses until the calls are done. A
call only sends a request and returns its result: the main thread, which alone owns producer, stream and slot
checkpoint, puts the result in its place. So a call that is abandoned, because the pulse raised, changes
nothing when it ends later.
"""

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from queue import SimpleQueue
from typing import Any, NoReturn, TypeVar

#: Interval between two pulses; it does not delay shorter calls.
_PULSE_SECONDS = 0.05
_THREADS = 8

T = TypeVar("T")
_Task = tuple[Future[Any], Callable[[], Any]]
#: The calls of all instances that are being made.
_under_way: set[Future[Any]] = set()


class StopRequested(Exception):
    """The relay was asked to stop; raised wherever it waits."""


def check_stop(requested: Callable[[], bool]) -> None:
    """Raise StopRequested if a stop was ``requested``."""
    if requested():
        raise StopRequested


class BlockingCalls:
    """Makes calls in parallel, in threads that never delay the end of the process."""

    #: A class attribute, so that an instance whose constructor was interrupted has it too.
    _threads = 0

    def __init__(self, pulse: Callable[[float], None]) -> None:
        """Take ``pulse(seconds)``, which keeps the stream alive, and raises to abandon the calls."""
        self._pulse = pulse
        self._pulse_at = 0.0
        self._tasks: SimpleQueue[_Task | None] = SimpleQueue()

    def make(self, call: Callable[[], T]) -> T:
        """Make one call and return its result, or raise its error, or whatever the pulse raises."""
        return self.make_all([call])[0].result()

    def begin(self, call: Callable[[], T]) -> Future[T]:
        """Begin a call and return at once; other calls can be made meanwhile."""
        future: Future[T] = Future()
        self._tasks.put((future, call))
        self._have_threads(3)
        return future

    def _have_threads(self, count: int) -> None:
        for _ in range(self._threads, min(count, _THREADS)):
            self._threads += 1
            threading.Thread(target=_work, args=[self._tasks], name="blocking call", daemon=True).start()

    def make_all(self, calls: Sequence[Callable[[], T]]) -> list[Future[T]]:
        """Make ``calls`` in parallel and return their futures, all done. Raises whatever the pulse raises."""
        futures: list[Future[T]] = [Future() for _ in calls]
        for task in zip(futures, calls, strict=True):
            self._tasks.put(task)
        self._have_threads(len(calls))
        try:
            while wait(futures, max(0.0, self._pulse_at - time.monotonic())).not_done:
                self.pulse_when_due()
            self.pulse_when_due()
        except BaseException:
            for future in futures:
                future.cancel()
            self.close()
            raise
        return futures

    def pulse_when_due(self) -> None:
        """Pulse, unless that was done just now. Raises whatever the pulse raises.

        For many short steps, which add up.
        """
        if time.monotonic() >= self._pulse_at:
            self._pulse(0)
            self._pulse_at = time.monotonic() + _PULSE_SECONDS

    def close(self) -> None:
        """Let the threads end, each after its current call; new calls get new threads."""
        self._end_threads()
        self._tasks = SimpleQueue()
        self._threads = 0

    def _end_threads(self) -> None:
        for _ in range(self._threads):
            self._tasks.put(None)

    #: In case `close` was never called: otherwise the threads would wait for the next call as long as the
    #: process runs. When the process ends, the names of this module are already gone.
    __del__ = _end_threads


def interruptible(call: Callable[[], T]) -> T:
    """Make a call of a library that ignores Ctrl-C; the main thread raises KeyboardInterrupt at once.

    Whatever the call opens meanwhile is closed when the process ends.
    """
    if threading.current_thread() is not threading.main_thread():
        return call()
    calls = BlockingCalls(lambda _: None)
    result = calls.make(call)
    calls.close()
    return result


def within(seconds: float, call: Callable[[], T]) -> T:
    """Make a call of a library without timeouts. Raises TimeoutError after ``seconds``.

    The call then continues in its thread, and its result is discarded.
    """
    future: Future[T] = Future()
    tasks: SimpleQueue[_Task | None] = SimpleQueue()
    tasks.put((future, call))
    tasks.put(None)
    threading.Thread(target=_work, args=[tasks], name="bounded call", daemon=True).start()
    if wait([future], seconds).not_done:
        raise TimeoutError(f"the response was incomplete after {seconds:g} s")
    return future.result()


def leave(code: int) -> NoReturn:
    """End the process; if an abandoned call is still being made, without the exit handlers of libraries.

    OpenSSL's handler frees what a client of Kafka still uses in threads of its own: while it tried TLS again
    and again, one of four processes ended with SIGSEGV instead of ``code``.
    """
    if not _under_way:
        sys.exit(code)
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        # The reason why a program's output can't be written was told before.
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)


def _work(tasks: "SimpleQueue[_Task | None]") -> None:
    while (task := tasks.get()) is not None:
        future, call = task
        if future.set_running_or_notify_cancel():
            _under_way.add(future)
            try:
                result = call()
            except BaseException as error:
                _under_way.discard(future)
                future.set_exception(error)
            else:
                _under_way.discard(future)
                future.set_result(result)
        # Release the objects of a call while the thread waits for the next one.
        del task, future, call
