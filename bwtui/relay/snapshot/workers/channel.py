"""Send objects over a socket between two processes of one relay: pickled, each preceded by its length."""

import pickle
import socket
import struct
from typing import Any

_LENGTH = struct.Struct("<Q")
_READ_BYTES = 1 << 18


def _framed(message: Any) -> bytes:
    data = pickle.dumps(message, protocol=5)
    return _LENGTH.pack(len(data)) + data


class BlockingChannel:
    """A worker's end, whose calls block until a message is sent or has arrived."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._reader = connection.makefile("rb")

    def send(self, message: Any) -> None:
        """Send a message. Raises OSError if the other end is gone."""
        self._connection.sendall(_framed(message))

    def receive(self) -> Any:
        """Return the next message. Raises EOFError if no more will arrive."""
        (length,) = _LENGTH.unpack(self._exactly(_LENGTH.size))
        return pickle.loads(self._exactly(length))

    def _exactly(self, count: int) -> bytes:
        data = self._reader.read(count)
        if len(data) < count:
            raise EOFError
        return data


class NonBlockingChannel:
    """The engine's end, which never blocks: a worker may stand still in the middle of a message."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._connection = connection
        self._in = bytearray()
        self._out = bytearray()
        #: True if nothing more will arrive.
        self.is_over = False

    def fileno(self) -> int:
        """Return the descriptor, for a selector."""
        return self._connection.fileno()

    def messages(self) -> list[Any]:
        """Return the messages that have arrived."""
        while not self.is_over:
            try:
                data = self._connection.recv(_READ_BYTES)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            self._in += data
            self.is_over = not data
        messages_read = []
        begin = 0
        while len(self._in) - begin >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._in, begin)
            end = begin + _LENGTH.size + length
            if len(self._in) < end:
                break
            messages_read.append(pickle.loads(bytes(self._in[begin + _LENGTH.size : end])))
            begin = end
        del self._in[:begin]
        return messages_read

    def send(self, message: Any) -> None:
        """Send a message, now or with a later `flush`."""
        self._out += _framed(message)
        self.flush()

    def flush(self) -> None:
        """Send what could not be sent before."""
        while self._out and not self.is_over:
            try:
                del self._out[: self._connection.send(self._out)]
            except BlockingIOError:
                return
            except OSError:
                self.is_over = True

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
