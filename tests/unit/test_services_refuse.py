"""Distinguish a refusal from an outage when a service's answer is unusual."""

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import psycopg2
import pytest
from confluent_kafka import KafkaError

from bwtui.encode.registry import LocalRegistry, SchemaRegistry
from bwtui.errors import AuthenticationFailed, ConnectionFailed, RefusedError, ServiceRefused
from bwtui.model.delivery import DeliverySpan
from bwtui.pgoutput.messages import UNCHANGED, Column, Relation
from bwtui.relay.routes.route import TableRoute
from bwtui.relay.routes.routing import Router
from bwtui.relay.rows import toast as toast_values
from bwtui.relay.rows.policy import RowPolicy
from bwtui.relay.rows.recorder import NullRecorder
from bwtui.relay.rows.toast import ToastFiller, ToastUpdate
from bwtui.relay.snapshot.snapshot_copier import SnapshotCopier
from bwtui.relay.state.run_state import RunState, TableCounters
from bwtui.relay.state.service_retry import ServiceRetry
from bwtui.settings import RelaySettings
from bwtui.sink.dead_letters import DeadLetterWriter
from bwtui.sink.destination import DeliveryFailure, Limits, Message, TopicLimits
from bwtui.sink.kafka import KafkaSink
from bwtui.sink.topics import TopicAdmin
from bwtui.source.raw_stream import StreamServer
from tests.faults.doubles import RefuseTogether, Reject
from tests.relay_context import relay_context
from tests.scripted_relay import Catalog

LETTERS = "letters"
T = TypeVar("T")


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, ServiceRefused),
        (KafkaError.CLUSTER_AUTHORIZATION_FAILED, ServiceRefused),
        (KafkaError.TOPIC_EXCEPTION, RefusedError),
        (KafkaError.POLICY_VIOLATION, ServiceRefused),
        (KafkaError.INVALID_CONFIG, ServiceRefused),
        (KafkaError._TRANSPORT, ConnectionFailed),
        (KafkaError._AUTHENTICATION, AuthenticationFailed),
        (KafkaError.KAFKA_STORAGE_ERROR, ConnectionFailed),
        (KafkaError.THROTTLING_QUOTA_EXCEEDED, ConnectionFailed),
        (KafkaError.UNKNOWN, ConnectionFailed),
        (32_000, ConnectionFailed),
    ],
)
def test_a_broker_that_fails_in_an_unknown_way_is_waited_for(code: int, expected: type[Exception]) -> None:
    admin = TopicAdmin({"bootstrap.servers": "127.0.0.1:1"}, 1_000_000)
    assert type(admin._failed(KafkaError(code), "orders")) is expected


@pytest.mark.parametrize(
    ("code", "whose"),
    [
        (KafkaError.MSG_SIZE_TOO_LARGE, "the row's"),
        (KafkaError.RECORD_LIST_TOO_LARGE, "the row's"),
        (KafkaError.INVALID_RECORD, "the row's"),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, "the set-up's"),
        (KafkaError.CLUSTER_AUTHORIZATION_FAILED, "the set-up's"),
        (KafkaError.TOPIC_EXCEPTION, "the set-up's"),
        (KafkaError.POLICY_VIOLATION, "the set-up's"),
        (KafkaError.INVALID_TIMESTAMP, "the set-up's"),
        (KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT, "the set-up's"),
        (KafkaError.INVALID_MSG, "nobody's"),
        (KafkaError._INVALID_DIFFERENT_RECORD, "nobody's"),
        (KafkaError._PURGE_QUEUE, "nobody's"),
        (KafkaError.KAFKA_STORAGE_ERROR, "nobody's"),
        (KafkaError.UNKNOWN, "nobody's"),
    ],
)
def test_whose_fault_a_failed_delivery_is(code: int, whose: str, tmp_path: Path) -> None:
    settings = RelaySettings(broker="127.0.0.1:1", on_error="log")
    sink, span = KafkaSink(settings), DeliverySpan()
    span.pending = 1
    sink._failed("orders", KafkaError(code), Message(b"1", b"x", 0), span)
    (failure,) = sink.take_failures()
    policy = RowPolicy(settings, RunState(), DeadLetterWriter(tmp_path), sink)
    if whose == "the set-up's":
        with pytest.raises(ServiceRefused, match="Kafka rejects every message for topic orders") as refused:
            policy.undelivered([failure])
        assert refused.value.hint and "{" not in refused.value.hint
    else:
        assert policy.undelivered([failure]) == [failure]
        assert failure.is_outage == (whose == "nobody's")
    sink.close()


def test_a_table_is_not_left_out_for_a_right_that_is_missing() -> None:
    """All of its rows would become dead letters."""

    class Forbidden(Reject):
        def ensure_topics(self, wanted: Mapping[str, bool]) -> Limits:
            refused = "not authorized", "grant the right"
            return {topic: ServiceRefused(*refused) for topic in wanted}

    settings = RelaySettings(on_error="log", output_format="json")
    report = RunState()
    patience = ServiceRetry(StreamServer(""), report, lambda seconds: None)
    router = Router(settings, Forbidden(bool), LocalRegistry(), report, patience)
    patience.query = lambda query: query(Catalog())  # type: ignore[arg-type, method-assign]
    with pytest.raises(ServiceRefused, match="not authorized"):
        router.route(Relation(1, "public", "items", "d", (Column("id", 20, -1, True),)))


def test_a_right_to_read_that_is_missing_drops_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unchanged TOAST value takes a query per row, but the missing permission is not the row's fault."""

    def forbidden(query: Callable[[Any], T]) -> T:
        class Session:
            info = SimpleNamespace(user="relay")

            def cursor(self) -> Any:
                raise psycopg2.errors.InsufficientPrivilege

        return query(Session())

    settings = RelaySettings(toast="fetch")
    asking: Any = SimpleNamespace(query=forbidden)
    toast = ToastFiller(settings, asking, lambda seconds: None)
    monkeypatch.setattr(toast_values, "_locked", lambda session, xids: set())
    columns = (Column("id", 20, -1, True), Column("body", 25, -1, False))
    limits = TopicLimits(1 << 20, compacted=True)
    route = TableRoute(Relation(1, "public", "t", "d", columns), "t", ("id",), TableCounters(), None, limits)
    with pytest.raises(ServiceRefused, match="can't be fetched"):
        toast.fill(route, ToastUpdate(b"", [b"1", UNCHANGED], None, False, 7))


def test_a_schema_without_an_id_is_no_schema() -> None:
    registry = SchemaRegistry("http://127.0.0.1:1")
    answer = SimpleNamespace(schema_id=None, version=1)
    cast(Any, registry)._client = SimpleNamespace(
        lookup_schema=lambda *_: answer,
        get_latest_version=lambda _: SimpleNamespace(schema=SimpleNamespace(schema_str='"string"')),
        register_schema_full_response=lambda *_: answer,
    )
    with pytest.raises(ConnectionFailed, match="no id"):
        registry.register("orders-value", '"string"')


def copying_to(sink: Reject, settings: RelaySettings, folder: Path) -> SnapshotCopier:
    """Return a snapshot's copier that sends to a double."""
    report = RunState()
    policy = RowPolicy(settings, report, DeadLetterWriter(folder), sink)
    context = relay_context(
        service=sink.destination.service,
        sink=sink,
        policy=policy,
        report=report,
        stop_requested=lambda: False,
        session=b"",
        recorder=NullRecorder(),
    )
    return SnapshotCopier(context.run, context.output, 0, 0, lambda: None)


def test_a_row_of_a_snapshot_that_failed_with_another_is_sent_all_alone(tmp_path: Path) -> None:
    """Other pending messages may be rejected, and would make this one fail again."""
    good, bad = Message(b"1", b"good", 0), Message(b"2", b"bad", 0)
    sink = RefuseTogether(lambda message: message.value == b"bad")
    copying = copying_to(sink, RelaySettings(on_error="log"), tmp_path)
    span = DeliverySpan()
    span.pending = span.failed = 1
    sink.send("items", [bad], DeliverySpan())
    copying._try_again(DeliveryFailure("items", "refused", False, "raise it", good, span))
    assert (span.pending, span.failed) == (0, 0)
    assert sink.delivered == [("items", good)]
    assert [failure.message for failure in copying._failures] == [bad]


def test_the_end_of_a_transaction_that_its_topic_refuses_is_no_row_to_drop(tmp_path: Path) -> None:
    settings = dataclasses.replace(
        RelaySettings(postgres="", broker="", schema_registry=""), on_error="log", transaction_topic="tx"
    )
    policy = RowPolicy(settings, RunState(), DeadLetterWriter(tmp_path), Reject(lambda message: False))
    failure = DeliveryFailure("tx", "Kafka rejects a message of 9 bytes", False, "raise it")
    with pytest.raises(ServiceRefused, match="rejects a message"):
        policy.undelivered([failure])


def test_a_dead_letter_of_a_snapshot_that_its_topic_refuses_is_shortened(tmp_path: Path) -> None:
    """After an outage it is sent again alone, and only then rejected for its size."""
    settings = dataclasses.replace(
        RelaySettings(postgres="", broker="", schema_registry=""), on_error="log", dead_letter_topic=LETTERS
    )
    letter = json.dumps({"table": "public.t", "before": None, "after": {"id": "1"}})
    sink = Reject(lambda message: b"after" in (message.value or b"") and b'"1"' in (message.value or b""))
    copying = copying_to(sink, settings, tmp_path)
    span = DeliverySpan()
    span.pending = span.failed = 1
    message = Message(b"public.t", letter.encode(), 0)
    copying._try_again(DeliveryFailure(LETTERS, "no broker", False, "start it", message, span))
    assert (span.pending, span.failed) == (0, 0)
    assert [json.loads(sent.value or b"") for _, sent in sink.delivered] == [
        {"table": "public.t", "before": None, "after": None, "cut": True}
    ]
