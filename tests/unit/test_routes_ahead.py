"""Routes that are built ahead of their rows: the selection of tables, and the use of the routes."""

import struct
from collections.abc import Sequence
from typing import Any, cast

import pytest

from bwtui.blocking import StopRequested
from bwtui.errors import ConnectionFailed
from bwtui.pgoutput.decoder import decode
from bwtui.pgoutput.frames import PAYLOAD_OFFSET
from bwtui.pgoutput.messages import Relation
from bwtui.relay.routes.route import SessionRoutes, TableRoute
from bwtui.relay.rows.batch_bisector import RestartFromConfirmed


def framed(payload: bytes) -> bytes:
    """Return an XLogData frame."""
    return b"w" + bytes(PAYLOAD_OFFSET - 1) + payload


def announced(oid: int, name: str, *columns: str) -> bytes:
    """Return the frame of a RELATION with the key ``id``."""
    head = struct.pack(">I", oid) + b"public\0" + name.encode() + b"\0d"
    described = [
        bytes([column == "id"]) + column.encode() + b"\0" + struct.pack(">Ii", 23, -1)
        for column in ("id", *columns)
    ]
    return framed(b"R" + head + struct.pack(">H", len(described)) + b"".join(described))


def inserted(oid: int) -> bytes:
    """Return the beginning of an INSERT, up to its table."""
    return framed(b"I" + struct.pack(">I", oid) + b"N")


def relation(frame: bytes) -> Relation:
    """Return the relation that a frame announces."""
    found = decode(frame[PAYLOAD_OFFSET:])
    assert isinstance(found, Relation)
    return found


class Built:
    """Routes over future frames; records which are built together, and which are begun."""

    def __init__(self, *ahead: bytes) -> None:
        self.together: list[list[str]] = []
        self.begun: list[str] = []
        self.raises: Exception | None = None
        self.routes = SessionRoutes(self._build, lambda route: False, self._begin, lambda: ahead)

    def take(self, frame: bytes) -> Relation:
        """Announce a relation, and return the one whose route its first row gets."""
        self.routes.announce(relation(frame), frame[PAYLOAD_OFFSET:])
        route = self.routes[relation(frame).oid]
        assert route is not None
        return route.relation

    def _build(self, relations: Sequence[Relation]) -> list[TableRoute | None]:
        self.together.append([one.name for one in relations])
        if self.raises is not None:
            raise self.raises
        return [TableRoute(one, one.name, ("id",), cast(Any, _Counters), None, None) for one in relations]

    def _begin(self, route: TableRoute | None) -> None:
        assert route is not None
        self.begun.append(route.relation.name)


class _Counters:
    key_schema_id = value_schema_id = 1


def test_tables_that_are_announced_and_have_rows_are_built_together() -> None:
    second, third, leaf = announced(2, "b"), announced(3, "c"), announced(4, "leaf")
    built = Built(inserted(1), second, inserted(2), leaf, third, inserted(3), framed(b"C"), b"k" + bytes(17))
    for frame in (announced(1, "a"), second, third):
        assert built.take(frame) == relation(frame)
    assert built.together == [["a", "b", "c"]]
    # Each route is begun in its turn, because rows of the former table definition must be recorded first.
    assert built.begun == ["a", "b", "c"]


def test_another_form_of_the_table_is_built_when_it_comes() -> None:
    first, second = announced(2, "b"), announced(2, "b", "added")
    built = Built(first, inserted(2), second, inserted(2))
    built.take(announced(1, "a"))
    assert built.take(first) == relation(first)
    assert built.take(second) == relation(second)
    assert built.together == [["a", "b"], ["b"]]


def test_a_form_that_was_never_used_is_not_taken_for_another() -> None:
    built = Built(announced(2, "b"), inserted(2))
    built.take(announced(1, "a"))
    altered = announced(2, "b", "added")
    assert built.take(altered) == relation(altered)


@pytest.mark.parametrize("again", [announced(1, "b"), announced(3, "a"), announced(3, "b")])
def test_of_each_table_and_name_only_the_first_is_built_ahead(again: bytes) -> None:
    """Schemas of one subject are registered in the order of the stream."""
    built = Built(announced(2, "b"), inserted(2), again, inserted(relation(again).oid))
    built.take(announced(1, "a"))
    assert built.together == [["a", "b"]]


@pytest.mark.parametrize(
    "error", [StopRequested(), cast(Exception, RestartFromConfirmed.__new__(RestartFromConfirmed))]
)
def test_nothing_is_left_of_routes_that_were_given_up(error: Exception) -> None:
    second = announced(2, "b")
    built = Built(second, inserted(2))
    built.raises = error
    with pytest.raises(type(error)):
        built.take(announced(1, "a"))
    assert dict(built.routes) == {}
    built.raises = None
    built.take(announced(1, "a"))
    built.take(second)
    assert built.together == [["a", "b"]] * 2
    assert built.begun == ["a", "b"]


def test_a_row_of_a_relation_that_was_not_announced_needs_a_new_session() -> None:
    """PostgreSQL 14 sent one after publish_via_partition_root was altered; the relay ended with KeyError."""
    with pytest.raises(ConnectionFailed, match="a row of relation 7, which it did not announce"):
        Built().routes[7]
