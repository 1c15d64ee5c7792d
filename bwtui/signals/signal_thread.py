"""Handle signals at once, whatever the main thread is doing."""

import contextlib
import signal
import socket
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def handled_in_thread(on_signal: Callable[[int], object]) -> Iterator[None]:
    """Call ``on_signal`` with the number of each signal that Python handles, in a thread of its own.

    Python runs its handlers only in the main thread, which may be inside a long call of libpq, librdkafka or
    DuckDB. The thread reads the wakeup descriptor, to which the C handler writes at once. Must be entered in
    the main thread. The handlers themselves run as usual, once the main thread has returned from its call.
    """
    reader, writer = socket.socketpair()
    writer.setblocking(False)

    def watch() -> None:
        while number := reader.recv(1):
            on_signal(number[0])

    thread = threading.Thread(target=watch, name="signals", daemon=True)
    before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        writer.close()
        thread.join()
        reader.close()
