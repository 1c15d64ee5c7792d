"""Sessions in addition to the stream connect to the stream's own server, in a real PostgreSQL."""

import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
from psycopg2.extensions import make_dsn, parse_dsn

from bwtui.errors import ConnectionFailed
from bwtui.source.connection import query
from bwtui.source.present_rows import QueryPool
from bwtui.source.raw_session import connect_raw
from bwtui.source.raw_stream import ReachedServer, StreamServer, reached_server

pytestmark = pytest.mark.services


@pytest.fixture
def reached(database: str) -> ReachedServer:
    """Return the server that a stream has reached."""
    return _reached(database)


def _reached(dsn: str) -> ReachedServer:
    connection = connect_raw(dsn)
    try:
        return reached_server(connection, dsn)
    finally:
        connection.finish()


def test_the_host_that_the_stream_has_reached_is_asked_alone(database: str) -> None:
    """Only one of several hosts, by the address that its name had at that time."""
    given = parse_dsn(database)
    several = make_dsn(database, host="127.0.0.1,localhost", port=f"1,{given['port']}")
    own = parse_dsn(_reached(several).dsn)
    assert (own["host"], own["port"], own["target_session_attrs"]) == ("localhost", given["port"], "any")
    assert own["hostaddr"] in ("127.0.0.1", "::1")
    server = StreamServer(several)
    server.follow(_reached(several))
    with closing(server.connect()) as connection:
        assert connection.info.host == "localhost"


def _is_another(reached: ReachedServer) -> ReachedServer:
    return replace(reached, system_identifier="1")


def _was_restarted(reached: ReachedServer) -> ReachedServer:
    return replace(reached, started="2000-01-01 00:00:00+00")


def test_a_comparison_counts_only_with_the_streams_own_server(database: str, reached: ReachedServer) -> None:
    """A standby that was promoted meanwhile lacked rows when it was read."""
    server = StreamServer(database)
    own = list(reached.identity)
    assert not server.is_all([own])
    server.follow(reached)
    assert server.is_all([own])
    for others in ([], [[*own[:2], None]], [own, ["1", *own[1:]]], [own[:2]]):
        assert not server.is_all(others)
    server.leave()
    assert not server.is_all([own])


@pytest.mark.parametrize("differs", [_is_another, _was_restarted])
def test_while_it_streams_no_other_server_is_asked(
    database: str, reached: ReachedServer, differs: Callable[[ReachedServer], ReachedServer]
) -> None:
    server = StreamServer(database)
    server.follow(differs(reached))
    with pytest.raises(ConnectionFailed, match="is not the server of the stream"):
        server.connect()


def test_between_two_streams_a_former_primary_is_refused(database: str, reached: ReachedServer) -> None:
    """The next server may be a different one, of the same timeline or of a later one."""
    server = StreamServer(database)
    assert reached.timeline == 1
    for accepted in (_was_restarted(reached), replace(reached, timeline=0)):
        server.follow(accepted)
        server.leave()
        server.connect().close()
    for refused in (_is_another(reached), replace(reached, timeline=2)):
        server.follow(refused)
        server.leave()
        with pytest.raises(ConnectionFailed, match="is not the server of the stream"):
            server.connect()


def test_a_question_under_way_keeps_no_session_for_the_next_stream(
    database: str, reached: ReachedServer
) -> None:
    """Its session may be with the former server."""
    server = StreamServer(database)
    questions = QueryPool(server)
    asked, goes_on = threading.Event(), threading.Event()

    def hold(connection: Any) -> Any:
        asked.set()
        goes_on.wait(10)
        return connection

    held: list[Any] = []
    thread = threading.Thread(target=lambda: held.append(questions.run(hold)))
    thread.start()
    asked.wait(10)
    server.follow(reached)
    questions.renew()
    goes_on.set()
    thread.join()
    assert held[0].closed
    assert questions.run(lambda connection: query(connection, "select 1")) == [(1,)]
    questions.close()
