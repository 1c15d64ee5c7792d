"""Reasons in errors of libpq, librdkafka and the registry's client, as bwtui shows them."""

import pytest
from confluent_kafka import KafkaError
from confluent_kafka.schema_registry import SchemaRegistryError

from bwtui.encode.registry import plain_reason
from bwtui.kafka.client import unreachable
from bwtui.source.connection import connection_failed


def test_libpq_messages_about_two_hosts_stay_apart() -> None:
    message = "a failed: refused\n\tIs it running?\nb failed: FATAL:  no\nDETAIL:  why\n"
    assert connection_failed(message).message == (
        "can't connect to PostgreSQL: a failed: refused (Is it running?); b failed: FATAL: no; DETAIL: why"
    )


@pytest.mark.parametrize(
    ("broker", "reason", "shown"),
    [
        (
            "127.0.0.1:2",
            "127.0.0.1:2/bootstrap: Connect to ipv4#127.0.0.1:2 failed: Connection refused (after 0ms in "
            "state CONNECT)",
            "Connection refused",
        ),
        (
            "SSL://kafka:2",
            "ssl://kafka:2/bootstrap: Connect to ipv4#10.0.0.1:2 failed: Connection refused (after 0ms in "
            "state CONNECT, 1 identical error(s) suppressed)",
            "Connect to ipv4#10.0.0.1:2 failed: Connection refused",
        ),
        ("a:2,b:2", "b:2/bootstrap: Failed to resolve 'b:2'", "b:2/bootstrap: Failed to resolve 'b:2'"),
        # In this state, the broker may require TLS or a different SASL mechanism.
        (
            "a:2",
            "a:2/1: Disconnected (after 5ms in state APIVERSION_QUERY)",
            "Disconnected (after 5ms in state APIVERSION_QUERY)",
        ),
    ],
)
def test_an_unreachable_broker_is_named_once(broker: str, reason: str, shown: str) -> None:
    error = unreachable(broker, KafkaError(KafkaError._TRANSPORT, reason))
    assert error.message.endswith(f" Kafka at {broker}: {shown}")


def test_a_broker_that_closes_the_handshake_may_not_use_tls() -> None:
    reason = "ssl://a:2/bootstrap: SSL handshake failed: Disconnected (after 1ms in state SSL_HANDSHAKE)"
    hint = unreachable("a:2", KafkaError(KafkaError._TRANSPORT, reason)).hint
    assert hint == "the broker may not use TLS on this port: check security.protocol in -C"


def test_a_missing_service_is_no_unreachable_server() -> None:
    hint = connection_failed('definition of service "shop" not found').hint
    assert hint == "define [shop] in ~/.pg_service.conf, or set PGSERVICEFILE"


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (SchemaRegistryError(404, None, None), "HTTP 404"),  # type: ignore[arg-type]
        (SchemaRegistryError(404, -1, "Unknown Schema Registry Error: b''"), "HTTP 404"),
        (
            SchemaRegistryError(404, -1, "Unknown Schema Registry Error: b'no\\n\\xff'"),
            "no \ufffd (HTTP 404)",
        ),
        (SchemaRegistryError(403, None, "Forbidden"), "Forbidden (HTTP 403)"),  # type: ignore[arg-type]
        (SchemaRegistryError(500, 50001, "Backend\nfailed"), "Backend failed (HTTP 500, error code 50001)"),
        (ConnectionRefusedError(111, "Connection refused"), "Connection refused"),
        (TimeoutError(), "TimeoutError"),
    ],
)
def test_a_registrys_reason_is_one_line_without_empty_fields(error: Exception, shown: str) -> None:
    assert plain_reason(error) == shown
