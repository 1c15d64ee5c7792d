"""Shared code of all Kafka clients: their creation, and the translation of their errors.

A configuration is a plain mapping of librdkafka properties including bootstrap.servers, as
`bwtui.kafka.client.client_config` builds it from -b and -C.
"""

import logging
import re
import socket
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from confluent_kafka import KafkaError, KafkaException, Message

from bwtui.blocking import BlockingCalls
from bwtui.errors import AuthenticationFailed, BwtuiError, ConnectionFailed, RefusedError, UsageError
from bwtui.options import OfProperty, usual_place
from bwtui.settings import RelaySettings

# librdkafka's settings: defaults, the user's, and those that bwtui's guarantees depend on.

#: Messages larger than Kafka's default of 1 MiB are ordinary in change data capture.
DEFAULT_MAX_MESSAGE_BYTES = 67_108_864

#: Defaults that -C and -T may override.
DEFAULTS: Mapping[str, Any] = {
    "client.id": "bwtui",
    # The relay batches rows itself.
    "linger.ms": 0,
    # Otherwise it would follow linger.ms=0, and rows without a key would scatter over partitions.
    "sticky.partitioning.linger.ms": 10,
    "batch.num.messages": 10_000,
    "compression.type": "lz4",
    "partitioner": "murmur2_random",
    "message.max.bytes": DEFAULT_MAX_MESSAGE_BYTES,
    "socket.keepalive.enable": True,
    "reconnect.backoff.ms": 100,
    "reconnect.backoff.max.ms": 2_000,
    "topic.metadata.refresh.fast.interval.ms": 100,
}

#: Defaults for bulk transfers, where throughput matters more than latency: a snapshot, a replay.
IN_BULK: Mapping[str, Any] = {**DEFAULTS, "linger.ms": 5}

#: Prevents that later rows overtake one that Kafka has rejected. By default librdkafka continues after a
#: rejected request with a new epoch, so that a key's later row is written before its earlier one, which is
#: then retried. With this setting the producer ends instead. See also `bwtui.sink.kafka`.
IN_ORDER: Mapping[str, Any] = {"enable.gapless.guarantee": True}

#: Settings that the user can't change, each with the harmless values and the reason.
FIXED: Mapping[str, tuple[tuple[str, ...], str]] = {
    "enable.idempotence": (("true", "1"), "without it, a retry can duplicate or reorder rows"),
    "acks": (("all", "-1"), "a row is durable only when every in-sync replica has it"),
    "request.required.acks": (("all", "-1"), "a row is durable only when every in-sync replica has it"),
    "message.timeout.ms": (("0",), "bwtui waits for the end of an outage and never drops rows"),
    "delivery.timeout.ms": (("0",), "bwtui waits for the end of an outage and never drops rows"),
    "queue.buffering.max.messages": ((), "bwtui itself limits the messages in flight"),
    "queue.buffering.max.kbytes": ((), "bwtui itself limits the messages in flight"),
    "delivery.report.only.error": (("false", "0"), "bwtui counts every acknowledgement"),
    "produce.offset.report": (("true", "1"), "bwtui counts every acknowledgement"),
    "queuing.strategy": (("fifo",), "rows of one key must stay in commit order"),
    "partitioner": (
        ("murmur2_random", "murmur2", "consistent", "consistent_random", "fnv1a", "fnv1a_random"),
        "rows of one key must stay in one partition",
    ),
    "enable.gapless.guarantee": ((), "bwtui enables it while streaming, and disables it in a snapshot"),
    "allow.auto.create.topics": (("false", "0"), "bwtui creates its topics itself, with their settings"),
    "transactional.id": ((), "--exactly-once sets it"),
    "bootstrap.servers": ((), "-b/--broker sets it"),
    "metadata.broker.list": ((), "-b/--broker sets it"),
}


def client_config(settings: RelaySettings) -> dict[str, Any]:
    """Return the settings of every Kafka client of the relay: brokers and the user's security settings."""
    security = ("security.", "sasl.", "ssl.", "enable.ssl.", "socket.", "client.", "broker.", "debug")
    config: dict[str, Any] = {"bootstrap.servers": settings.broker}
    config |= {key: value for key, value in settings.kafka_config if key.startswith(security)}
    return config


def producer_config(
    settings: RelaySettings, place: OfProperty = usual_place, defaults: Mapping[str, Any] = DEFAULTS
) -> dict[str, Any]:
    """Return the producer's configuration.

    Raises UsageError for a setting that would break a guarantee; ``place`` says where it was set.
    """
    config: dict[str, Any] = dict(defaults)
    entries = [("kafka-config", *pair) for pair in settings.kafka_config]
    entries += [("topic-config", *pair) for pair in settings.topic_config]
    for option, key, value in entries:
        allowed, reason = FIXED.get(key, (None, ""))
        if allowed is not None and value.lower() not in allowed:
            raise UsageError(
                f"{place(option, key)}: {key}={value} is not allowed: {reason}", "omit this setting"
            )
        config[key] = value
    if config["client.id"] == "bwtui":
        config["client.id"] = f"bwtui-{settings.slot}"
    return config | {
        "bootstrap.servers": settings.broker,
        # A deleted topic must not be recreated unnoticed, with the broker's defaults.
        "allow.auto.create.topics": False,
        "enable.idempotence": True,
        "acks": "all",
        "message.timeout.ms": 0,
        "queue.buffering.max.messages": 10_000_000,
        "queue.buffering.max.kbytes": 2_097_151,
    }


if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient, ClusterMetadata

Config = Mapping[str, Any]
C = TypeVar("C")

#: Names and values of a record's headers.
RecordHeaders = list[tuple[str, bytes | None]]
#: The headers of a record if any of their names is not UTF-8: the client then returns none of them.
UNREADABLE: RecordHeaders = [("(a name that is not UTF-8)", None)]

#: Settings of a consumer that reads between offsets: it joins no group, and its requests create no topic.
READING: Config = {
    "group.id": "bwtui-unused",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "allow.auto.create.topics": False,
}

#: Kafka's default for socket.request.max.bytes.
_REQUEST_BYTES = 104_857_600
REQUEST_SECONDS = 10.0
#: Time after which unreachable or invalid brokers are reported: another one of several addresses may answer.
QUICK_SECONDS = 1.0
#: Time without any answer after which a probe checks for a web server.
_SILENT_SECONDS = 1.5
_PROBE_SECONDS = 0.5
#: librdkafka's error for an answer that is not Kafka's, with its first four bytes as a number.
_NO_ANSWER = re.compile(r"Invalid response size (-?\d+)")
_HTTP = int.from_bytes(b"HTTP", "big")

log = logging.getLogger("bwtui.kafka")
# librdkafka logs an unreachable broker ten times a second; bwtui reports it once, as an error. Without a
# handler Python would write these lines to stderr.
log.addHandler(logging.NullHandler())

_UNREACHABLE = frozenset(
    {
        KafkaError._TRANSPORT,
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._MSG_TIMED_OUT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RESOLVE,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.BROKER_NOT_AVAILABLE,
    }
)
#: Errors that a retry does not fix.
AUTHENTICATION_ERRORS = frozenset(
    {
        KafkaError._AUTHENTICATION,
        KafkaError._SSL,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    }
)
MISSING_TOPIC = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC})
#: Errors of a partition that briefly has no leader, because its topic was just created or its broker has just
#: left; client and broker may also have different leader epochs then. Kafka's own clients retry.
WITHOUT_LEADER = frozenset(
    {
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.LISTENER_NOT_FOUND,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.OFFSET_NOT_AVAILABLE,
    }
)


def headers_of(message: Message) -> RecordHeaders:
    """Return a record's headers, or UNREADABLE. Call this only once per record.

    If a name is not UTF-8, the client sets an error and returns a list in which that name is NULL: touching
    it would crash the process. Python may raise the error only at its next check for one.
    """
    try:
        # The type stubs also allow the types that a producer accepts.
        headers: Any = message.headers()
        # This call makes Python check for an error, because -1 is also the error value of its argument's
        # parser.
        "".ljust(-1)
    except (UnicodeDecodeError, SystemError):
        return UNREADABLE
    return headers or []


def plain_kafka_error(error: KafkaError, config: Config, topic: str | None = None) -> BwtuiError:
    """Return the bwtui error for a Kafka error."""
    broker = config.get("bootstrap.servers", "")
    code, reason = error.code(), error.str()
    if code in AUTHENTICATION_ERRORS:
        return authentication_failed(f"topic {topic}" if topic else f"Kafka at {broker}", error)
    if code == KafkaError._UNKNOWN_PARTITION and topic:
        hint = "the topic was recreated with fewer partitions: use the original cluster, or an empty topic"
        return RefusedError(f"topic {topic} lacks a partition that it had before", hint)
    if code in MISSING_TOPIC and topic:
        return missing_topic(topic)
    if code in _UNREACHABLE:
        return unreachable(broker, error)
    message = f"topic {topic}: {reason}" if topic else f"Kafka at {broker}: {reason}"
    return BwtuiError(message, "check the broker's log; fix the cause, then run the command again")


def authentication_failed(place: str, error: KafkaError) -> AuthenticationFailed:
    """Return the error for a rejected certificate, user or password, or missing rights."""
    hint = "check the security settings in -C"
    if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        hint = "grant the user in -C the rights (ACLs) Read and Describe on the topic"
    return AuthenticationFailed(f"{place} rejects the client: {error.str()}", hint)


def unreachable(broker: str, error: KafkaError) -> ConnectionFailed:
    """Return the error for a cluster that does not answer.

    If brokers close every connection, librdkafka reports only that all brokers are down; if they can't be
    reached, it also reports the reason. A listener with TLS or SASL closes connections from clients without.
    """
    if error.code() == KafkaError._ALL_BROKERS_DOWN:
        return ConnectionFailed(
            f"Kafka at {broker} closes every connection",
            "check security.protocol in -C: the listener may require TLS or SASL, or neither",
        )
    hint = "check that the broker runs there, and -b/--broker or BWTUI_BROKER"
    if "in state SSL_HANDSHAKE" in error.str():
        hint = "the broker may not use TLS on this port: check security.protocol in -C"
    return ConnectionFailed(f"can't reach Kafka at {broker}: {_without_address(error.str(), broker)}", hint)


def _without_address(reason: str, broker: str) -> str:
    """Return librdkafka's reason without an address that is ``broker``, and without the time to connect."""
    at = re.escape(broker.rpartition("://")[2])
    reason = re.sub(rf"^(?:\w+://)?{at}/(?:bootstrap|\d+): ", "", reason)
    reason = re.sub(rf"^Connect to ipv[46]#{at} failed: ", "", reason)
    return re.sub(r" \(after \d+ms in state CONNECT\b[^)]*(?:\(s\)[^)]*)?\)$", "", reason)


def missing_topic(topic: str) -> RefusedError:
    """Return the error for a missing topic."""
    return RefusedError(f"topic {topic} does not exist", "check its name and --topic-prefix")


class LastClientError:
    """The last error that a client reported in its callback: a request's timeout does not have the reason."""

    def __init__(self, *, has_answered: bool = False) -> None:
        """Set ``has_answered`` if another client with these settings has reached the cluster before."""
        #: True once the cluster has answered: if it closes connections later, the protocol is not the reason.
        self.has_answered = has_answered
        self._error: KafkaError | None = None
        #: Brokers that could not be reached or are not Kafka, by librdkafka's names for them.
        self.failed: set[str] = set()
        #: True after librdkafka's summary that all brokers are down.
        self.all_failed = False

    @property
    def error(self) -> KafkaError | None:
        """The reported error, if any."""
        if self.has_answered and self.is_summary:
            return KafkaError(KafkaError._TRANSPORT, "it no longer responds")
        return self._error

    @property
    def is_summary(self) -> bool:
        """Return whether the only error is librdkafka's summary that all brokers are down."""
        return self._error is not None and self._error.code() == KafkaError._ALL_BROKERS_DOWN

    def __call__(self, error: KafkaError) -> None:
        """Store an error; an outage does not replace a refusal, nor the summary a specific reason."""
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            self.all_failed = True
        else:
            self.failed.add(error.str().partition(": ")[0])
            error = _plain(error)
        has_reason = self._error is not None and not self.is_summary
        if not has_reason or error.code() in AUTHENTICATION_ERRORS:
            self._error = error

    def forget(self) -> None:
        """Forget the errors of earlier connections."""
        self._error, self.all_failed = None, False
        self.failed.clear()

    def instead_of(self, error: KafkaError) -> KafkaError:
        """Return the reported error instead of ``error`` if that is only a missing answer."""
        return self.error if self.error is not None and error.code() in _UNREACHABLE else error

    @property
    def is_refusal(self) -> bool:
        """Return whether a retry is useless."""
        return self.error is not None and (
            self.error.code() in AUTHENTICATION_ERRORS or bool(self.error.fatal())
        )


def cluster_metadata(
    admin: "AdminClient", heard: LastClientError, broker: str, patience: float = QUICK_SECONDS
) -> "ClusterMetadata":
    """Return the metadata of the cluster of ``broker``. ``heard`` is the client's ``error_cb``.

    If all brokers are down, they have ``patience`` seconds to return; a silent one, which may be far away,
    has `REQUEST_SECONDS`. Raises KafkaException with the reported error, because a rejected login otherwise
    appears only as a timeout. Ctrl-C interrupts the wait.
    """
    brokers, begin, has_probed = broker.split(","), time.monotonic(), False

    def look(_: float) -> None:
        """Raise KafkaException when no answer is to be expected."""
        nonlocal has_probed
        admin.poll(0)
        waited = time.monotonic() - begin
        is_down = heard.all_failed or len(heard.failed) >= len(brokers)
        if heard.error is not None and (heard.is_refusal or (is_down and waited >= patience)):
            raise KafkaException(heard.error)
        if heard.error is None and waited >= _SILENT_SECONDS and not has_probed:
            has_probed = True
            if any(map(_speaks_http, brokers)):
                raise KafkaException(_no_broker("an HTTP server"))

    calls = BlockingCalls(look)
    try:
        # Request all topics: requesting one by name could create it.
        answer = calls.make(lambda: admin.list_topics(timeout=REQUEST_SECONDS))
        heard.has_answered = True
        return answer
    except KafkaException as error:
        admin.poll(0)
        raise KafkaException(heard.instead_of(error.args[0])) from error
    finally:
        calls.close()


def _plain(error: KafkaError) -> KafkaError:
    """Return a readable error: librdkafka takes a server that is not Kafka for one with too large answers."""
    match = _NO_ANSWER.search(error.str())
    if match is None:
        return error
    return _no_broker("an HTTP server" if int(match[1]) == _HTTP else "a different service")


def _no_broker(service: str) -> KafkaError:
    return KafkaError(KafkaError._TRANSPORT, f"{service} answers there, not a Kafka broker")


def _speaks_http(broker: str) -> bool:
    """Return whether a web server listens there; some never answer a Kafka client."""
    host, _, port = broker.strip().rpartition("://")[2].rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), _PROBE_SECONDS) as connection:
            connection.settimeout(_PROBE_SECONDS)
            connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
            return connection.recv(5) == b"HTTP/"
    except (OSError, ValueError):
        return False


def new_client(kind: Callable[..., C], settings: Config) -> C:
    """Create a client. Raises UsageError for a property that librdkafka rejects."""
    try:
        return kind({**settings}, logger=log)
    except (KafkaException, ValueError, TypeError) as error:
        reason = error.args[0].str() if isinstance(error, KafkaException) else str(error)
        raise UsageError(
            f"librdkafka rejects a setting: {reason}", "see 'bwtui connect --config-help'"
        ) from error


def request_size_note(max_message_bytes: int) -> str:
    """Return an addition to an outage's message if messages may exceed the brokers' default request size.

    A broker closes the connection on a request above its socket.request.max.bytes, and logs the reason only
    itself.
    """
    if max_message_bytes <= _REQUEST_BYTES:
        return ""
    return (
        ", or brokers close the connection on a message above their socket.request.max.bytes "
        "(100 MiB by default), which message.max.bytes exceeds"
    )
