"""Blocking calls to a service, made one after the other in a thread that never delays the program's exit."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")
_Task = tuple["Future[Any]", Callable[[], Any]]


class CallThread:
    """Runs blocking calls in its own daemon thread, from the first call until `close`.

    Python waits for asyncio's own threads at exit: if a service hangs, the program would stay for many
    seconds after the user has left.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._tasks: SimpleQueue[_Task | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    async def make(self, call: Callable[[], T]) -> T:
        """Run a call after the earlier ones, and return its result, or raise its error.

        After `close`, raise CancelledError.
        """
        future: Future[T] = Future()
        if self._is_closed:
            future.cancel()
        self._tasks.put((future, call))
        if self._thread is None and not self._is_closed:
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()
        return await asyncio.wrap_future(future)

    def close(self, last: Callable[[], object] = lambda: None) -> None:
        """End the thread after its pending calls; it calls ``last`` before it ends."""
        self._is_closed = True
        if self._thread is not None:
            self._tasks.put((Future(), last))
            self._tasks.put(None)
            self._thread = None

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            future, call = task
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)
