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
from tests.faults.doubles import Reject

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


def test_a_dead_letter_of_a_snapshot_that_its_topic_refuses_is_shortened(tmp_path: Path) -> None:
    """After an outage it is sent again by itself, and only then refused for what it is."""
    settings = dataclasses.replace(
        RelaySettings(postgres="", broker="", schema_registry=""), on_error="log", dead_letter_topic=LETTERS
    )
    letter = json.dumps({"table": "public.t", "before": None, "after": {"id": "1"}})
    sink = Reject(lambda message: b"after" in (message.value or b"") and b'"1"' in (message.value or b""))
    report = Report()
    policy = RowPolicy(settings, report, DeadLetters(tmp_path), sink)
    parts = SimpleNamespace(
        sink=sink, policy=policy, report=report, stop_requested=lambda: False, session=b""
    )
    copying = Copying(cast(Parts, parts), 0)
    span = Span()
    span.pending = span.failed = 1
    message = Message(b"public.t", letter.encode(), 0)
    copying._try_again(DeliveryFailure(LETTERS, "no broker", False, None, message, span))
    assert (span.pending, span.failed) == (0, 0)
    assert [json.loads(sent.value or b"") for _, sent in sink.delivered] == [
        {"table": "public.t", "before": None, "after": None, "cut": True}
    ]
