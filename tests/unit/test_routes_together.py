"""Routes that are built together: one request for their topics, and schemas registered in parallel."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from bwtui.encode.registry import RegisteredSchema, SchemaRefused, SchemaRegistry
from bwtui.errors import ConnectionFailed, RefusedError
from bwtui.pgoutput.messages import Column, Relation
from bwtui.relay.routes.routing import Router
from bwtui.relay.state.run_state import RunState
from bwtui.relay.state.service_retry import ServiceRetry
from bwtui.settings import RelaySettings
from bwtui.sink.destination import Limits, TopicLimits
from bwtui.source.raw_stream import StreamServer
from tests.faults.doubles import MemorySink
from tests.scripted_relay import Catalog

_PATIENCE = 60.0


class CountingSink(MemorySink):
    """Records the requested topics of each request; the first ``away`` requests fail."""

    def __init__(self, away: int = 0) -> None:
        super().__init__()
        self.asked: list[list[str]] = []
        self._away = away

    def ensure_topics(self, wanted: Mapping[str, bool]) -> Limits:
        """Record the request, and reject topics named "refused"."""
        self.asked.append(list(wanted))
        if len(self.asked) <= self._away:
            raise ConnectionFailed("no broker", "start it")
        refused = RefusedError("no such right", "grant it")
        return {name: refused if name == "refused" else TopicLimits(1 << 20, True) for name in wanted}


class MeetingRegistry:
    """Answers only once ``subjects`` registrations wait at the same time."""

    def __init__(self, subjects: int) -> None:
        self._meeting = threading.Barrier(subjects)

    def register(self, subject: str, schema: str) -> RegisteredSchema:
        """Return a unique id."""
        number = self._meeting.wait(_PATIENCE)
        if subject.startswith("odd"):
            raise SchemaRefused("incompatible", "undo it", status=409)
        return RegisteredSchema(subject, 100 + number, 1, schema)


def relations(*names: str) -> Sequence[Relation]:
    """Return tables with the key ``id``; ``unkeyed`` has none."""
    return [
        Relation(number, "public", name, "d", (Column("id", 23, -1, name != "unkeyed"),))
        for number, name in enumerate(names, 1)
    ]


@contextmanager
def router(sink: Any, registry: Any, report: RunState, **given: Any) -> Iterator[Router]:
    """Return a router that does not query PostgreSQL."""
    patience = ServiceRetry(StreamServer(""), report, lambda seconds: None)
    patience.query = lambda query: query(Catalog())  # type: ignore[arg-type, method-assign]
    made = Router(
        RelaySettings(allow_unkeyed=True, exclude_tables=("filtered",), **given),
        sink,
        registry,
        report,
        patience,
    )
    yield made
    patience.close()


def test_topics_in_one_request_and_schemas_side_by_side() -> None:
    sink, report = CountingSink(), RunState()
    with router(sink, MeetingRegistry(6), report) as made:
        found = made.routes(relations("a", "filtered", "b", "c"))
    assert sink.asked == [["a", "b", "c"]]
    assert [route and route.topic for route in found] == ["a", None, "b", "c"]
    ids = {number for r in found if r is not None for number in (r.key_schema_id, r.value_schema_id)}
    assert ids == set(range(100, 106))
    assert {entry.table for entry in report.schemas.values()} == {"public.a", "public.b", "public.c"}


def test_many_new_subjects_take_one_request_each() -> None:
    """A start with 400 tables made four requests for each of 800 subjects."""
    asked: list[str] = []

    class Client:
        def get_subjects(self) -> list[str]:
            asked.append("subjects")
            return ["t1-value"]

        def lookup_schema(self, subject: str, schema: object) -> Any:
            asked.append(f"look up {subject}")
            return SimpleNamespace(schema_id=1, version=1)

        def register_schema_full_response(self, subject: str, schema: object) -> Any:
            asked.append("register")
            return SimpleNamespace(schema_id=2, version=1)

    registry: Any = SchemaRegistry("http://127.0.0.1:1")
    registry._client = Client()
    with router(CountingSink(), registry, RunState()) as made:
        found = made.routes(relations(*(f"t{number}" for number in range(20))))
    assert sorted(asked) == ["look up t1-value"] + ["register"] * 39 + ["subjects"]
    assert [route.value_schema_id for route in found if route is not None] == [2, 1] + [2] * 18


def test_what_is_wrong_with_one_table_is_not_the_others_fault() -> None:
    sink, report = CountingSink(), RunState()
    # The last two have two subjects each; the rejected ones get no further than their topic.
    with router(sink, MeetingRegistry(4), report) as made:
        found = made.routes(relations("refused", "unkeyed", "odd", "good"))
    refusals = [str(one.refusal) if one.refusal else None for one in found if one is not None]
    assert refusals[0] == "no such right"
    assert refusals[1] is not None
    assert "compacted" in refusals[1]
    assert refusals[2:] == ["incompatible", None]


def test_a_broker_that_is_away_is_waited_for() -> None:
    sink, report = CountingSink(away=1), RunState()
    with router(sink, MeetingRegistry(4), report) as made:
        found = made.routes(relations("a", "b"))
    assert sink.asked == [["a", "b"]] * 2
    assert all(route is not None and route.refusal is None for route in found)
    assert [error.message for error in report.errors()] == ["no broker"]
    assert report.detail == ""
