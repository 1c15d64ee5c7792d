"""The proxy of the fault tests works; otherwise those tests would prove nothing."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.proxy import Speech, Way, way_to, ways_to
from tests.waiting import eventually


class Echo:
    """A service that echoes and records its input."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self.got = b""
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        """Stop accepting connections."""
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(client,), daemon=True).start()

    def _answer(self, client: socket.socket) -> None:
        try:
            with client:
                while piece := client.recv(4096):
                    self.got += piece
                    client.sendall(piece)
        except OSError:
            return


@pytest.fixture
def echo() -> Iterator[Echo]:
    with closing(Echo()) as made:
        yield made


def connected(way: Way) -> socket.socket:
    host, port = way.address.split(":")
    client = socket.create_connection((host, int(port)))
    client.settimeout(5)
    return client


def ask(client: socket.socket, data: bytes) -> bytes:
    client.sendall(data)
    answer = b""
    while len(answer) < len(data):
        if not (piece := client.recv(4096)):
            break
        answer += piece
    return answer


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4) + body


@pytest.mark.parametrize(
    ("speech", "data"), [("http", b"plain"), ("kafka", framed(b"x" * 300)), ("postgres", b"D\0\0\0\x06ab")]
)
def test_it_carries(echo: Echo, speech: Speech, data: bytes) -> None:
    with way_to(echo.address, speech) as way, closing(connected(way)) as client:
        assert ask(client, data) == ask(client, data) == data


def test_a_broker_is_named_by_its_way(echo: Echo) -> None:
    with ways_to(f"{echo.address},127.0.0.1:9") as ways, closing(connected(ways[0])) as client:
        named = [host.encode() + int(port).to_bytes(4) for host, port in (("127.0.0.1", echo.address[10:]),)]
        other = b"127.0.0.1" + (9).to_bytes(4)
        answer = ask(client, framed(b"__" + named[0] + b"_" + other))
        expected = [b"127.0.0.1" + int(way.address[10:]).to_bytes(4) for way in ways]
        assert answer == framed(b"__" + expected[0] + b"_" + expected[1])


@pytest.mark.parametrize("how", ["cut", "reset"])
def test_a_connection_ends(echo: Echo, how: str) -> None:
    with way_to(echo.address, "http") as way, closing(connected(way)) as client:
        assert ask(client, b"first") == b"first"
        getattr(way, how)()
        if how == "cut":
            assert client.recv(10) == b""
        else:
            with pytest.raises(ConnectionResetError):
                client.recv(10)
        with closing(connected(way)) as another:
            assert ask(another, b"again") == b"again"


def test_a_half_open_connection_carries_nothing_and_goes_on(echo: Echo) -> None:
    with way_to(echo.address, "http") as way, closing(connected(way)) as client:
        way.is_half_open = True
        client.sendall(b"later")
        client.settimeout(0.05)
        with pytest.raises(TimeoutError):
            client.recv(10)
        assert not echo.got
        way.calm()
        client.settimeout(5)
        assert client.recv(10) == b"later"


def test_a_way_that_is_shut_lets_nobody_in(echo: Echo) -> None:
    with way_to(echo.address, "http") as way:
        way.is_shut = True
        with closing(connected(way)) as client:
            assert client.recv(10) == b""


def test_it_is_slow(echo: Echo) -> None:
    with way_to(echo.address, "http") as way, closing(connected(way)) as client:
        way.delay, way.rate = 0.02, 100_000
        begun = time.monotonic()
        ask(client, b"x" * 10_000)
        assert time.monotonic() - begun > 0.2


def test_what_is_held_comes_late(echo: Echo) -> None:
    with way_to(echo.address, "http") as way, closing(connected(way)) as client:
        assert ask(client, b"before") == b"before"
        way.hold()
        client.sendall(b"late")
        eventually("it is held", lambda: way.held)
        way.drop()
        assert client.recv(10) == b""
        assert echo.got == b"before"
        way.release()
        eventually("it came", lambda: echo.got == b"beforelate")
        (held,) = way._holding
    assert (held.client.fileno(), held._service.fileno()) == (-1, -1)


def test_neither_side_of_what_is_held_learns_that_the_other_is_gone(echo: Echo) -> None:
    with way_to(echo.address, "http") as way, closing(connected(way)) as client:
        assert ask(client, b"before") == b"before"
        way.hold()
        (held,) = way._holding
        held._service.shutdown(socket.SHUT_RDWR)
        client.settimeout(0.05)
        with pytest.raises(TimeoutError):
            client.recv(10)
        way.drop()
        eventually("both ends are over", lambda: not held.is_open)
    assert (held.client.fileno(), held._service.fileno()) == (-1, -1)


def test_what_is_spoiled_is_no_frame(echo: Echo) -> None:
    with way_to(echo.address, "postgres") as way, closing(connected(way)) as client:
        first, second = b"D\0\0\0\x08abcd", b"D\0\0\0\x06xy"
        # The first piece ends in the middle of a frame.
        assert ask(client, first + second[:3]) == first + second[:3]
        way.spoil_answer = True
        assert ask(client, second[3:] + first) == second[3:] + b"\xff" * 5 + first[5:]
        assert way.spoiled == 1
        assert ask(client, first) == first


def test_records_are_spoiled_where_their_checksum_is(echo: Echo) -> None:
    request = framed(b"\0\0" + bytes(range(200)) + b"records" * 20)
    with way_to(echo.address) as way, closing(connected(way)) as client:
        way.spoil_request = True
        answer = ask(client, request)
        assert [at for at, (one, other) in enumerate(zip(answer, request, strict=True)) if one != other] == [
            len(request) - 20
        ]
        assert ask(client, request) == request


def test_a_way_is_shut_until_it_is_opened(echo: Echo) -> None:
    with way_to(echo.address, "http", is_open=False) as way:
        with pytest.raises(ConnectionRefusedError):
            connected(way)
        way.open()
        with closing(connected(way)) as client:
            client.sendall(b"hello")
            assert client.recv(5) == b"hello"


def test_a_way_leads_elsewhere(echo: Echo) -> None:
    with closing(Echo()) as other, way_to(echo.address, "http") as way, closing(connected(way)) as client:
        client.sendall(b"before")
        assert client.recv(6) == b"before"
        way.lead_to(other.address)
        assert client.recv(1) == b""
        with closing(connected(way)) as again:
            again.sendall(b"after")
            assert again.recv(5) == b"after"
        assert (echo.got, other.got) == (b"before", b"after")
