"""A refusal told apart from an outage, where a service's answer is an odd one."""

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError

from bwtui.encode.registry import SchemaRegistry
from bwtui.errors import ConnectionFailed, RefusedError
from bwtui.relay.ack import Span
from bwtui.relay.copying import Copying
from bwtui.relay.parts import Parts
from bwtui.relay.policy import RowPolicy
from bwtui.relay.report import Report
from bwtui.settings import RelaySettings
from bwtui.sink.base import DeliveryFailure, Message
from bwtui.sink.dead_letter import DeadLetters
from bwtui.sink.topics import TopicAdmin
from tests.faults.doubles import RefuseTogether, Reject

LETTERS = "letters"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, RefusedError),
        (KafkaError.TOPIC_EXCEPTION, RefusedError),
        (KafkaError.POLICY_VIOLATION, RefusedError),
        (KafkaError.INVALID_CONFIG, RefusedError),
        (KafkaError._TRANSPORT, ConnectionFailed),
        (KafkaError._AUTHENTICATION, ConnectionFailed),
        (KafkaError.KAFKA_STORAGE_ERROR, ConnectionFailed),
        (KafkaError.THROTTLING_QUOTA_EXCEEDED, ConnectionFailed),
        (KafkaError.UNKNOWN, ConnectionFailed),
        (32_000, ConnectionFailed),
    ],
)
def test_a_broker_that_fails_in_an_unknown_way_is_waited_for(code: int, expected: type[Exception]) -> None:
    admin = TopicAdmin({"bootstrap.servers": "127.0.0.1:1"}, 1_000_000)
    assert isinstance(admin._failed(KafkaError(code), "orders"), expected)


def test_a_schema_without_an_id_is_no_schema() -> None:
    registry = SchemaRegistry("http://127.0.0.1:1")
    answer = SimpleNamespace(schema_id=None, version=1)
    cast(Any, registry)._client = SimpleNamespace(register_schema_full_response=lambda *_: answer)
    with pytest.raises(ConnectionFailed, match="no id"):
        registry.register("orders-value", '"string"')


def copying_to(sink: Reject, settings: RelaySettings, folder: Path) -> Copying:
    """A snapshot that sends to a double."""
    report = Report()
    policy = RowPolicy(settings, report, DeadLetters(folder), sink)
    parts = SimpleNamespace(
        sink=sink, policy=policy, report=report, stop_requested=lambda: False, session=b"", recorder=None
    )
    return Copying(cast(Parts, parts), 0)


def test_a_row_of_a_snapshot_that_failed_with_another_is_sent_all_alone(tmp_path: Path) -> None:
    """What else is still under way may be refused, and would take it along again."""
    good, bad = Message(b"1", b"good", 0), Message(b"2", b"bad", 0)
    sink = RefuseTogether(lambda message: message.value == b"bad")
    copying = copying_to(sink, RelaySettings(on_error="log"), tmp_path)
    span = Span()
    span.pending = span.failed = 1
    sink.send("items", [bad], Span())
    copying._try_again(DeliveryFailure("items", "refused", False, None, good, span))
    assert (span.pending, span.failed) == (0, 0)
    assert sink.delivered == [("items", good)]
    assert [failure.message for failure in copying._failures] == [bad]


def test_a_dead_letter_of_a_snapshot_that_its_topic_refuses_is_shortened(tmp_path: Path) -> None:
    """After an outage it is sent again by itself, and only then refused for what it is."""
    settings = dataclasses.replace(
        RelaySettings(postgres="", broker="", schema_registry=""), on_error="log", dead_letter_topic=LETTERS
    )
    letter = json.dumps({"table": "public.t", "before": None, "after": {"id": "1"}})
    sink = Reject(lambda message: b"after" in (message.value or b"") and b'"1"' in (message.value or b""))
    copying = copying_to(sink, settings, tmp_path)
    span = Span()
    span.pending = span.failed = 1
    message = Message(b"public.t", letter.encode(), 0)
    copying._try_again(DeliveryFailure(LETTERS, "no broker", False, None, message, span))
    assert (span.pending, span.failed) == (0, 0)
    assert [json.loads(sent.value or b"") for _, sent in sink.delivered] == [
        {"table": "public.t", "before": None, "after": None, "cut": True}
    ]
