"""What Kafka clients share: their configuration, and what their errors mean.

A configuration is a plain mapping of librdkafka properties with bootstrap.servers in it, as
`bwtui.kafka.config.client_config` makes it of -b and -C.
"""

import logging
import re
import socket
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from confluent_kafka import KafkaError, KafkaException, Message

from bwtui.blocking import BlockingCalls
from bwtui.errors import BwtuiError, ConnectionFailed, NotLetIn, RefusedError, UsageError

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient, ClusterMetadata

Config = Mapping[str, Any]
C = TypeVar("C")

#: Names and values of a record's headers.
RecordHeaders = list[tuple[str, bytes | None]]
#: Stands for the headers of a record of which one has a name that is no UTF-8: the client gives none of them.
UNREADABLE: RecordHeaders = [("(a name that is no UTF-8)", None)]

#: Of a consumer that reads between offsets: it is in no group, and makes no topic by asking for it.
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
#: A broker that is down, or is no broker, is told of after so long: the first of several addresses, or of a
#: name's, may be the one that is.
QUICK_SECONDS = 1.0
#: After so long without a word it is asked whether it is a web server.
_SILENT_SECONDS = 1.5
_PROBE_SECONDS = 0.5
#: What librdkafka says of an answer that is none of Kafka's, with its first four bytes as a number.
_NO_ANSWER = re.compile(r"Invalid response size (-?\d+)")
_HTTP = int.from_bytes(b"HTTP", "big")

log = logging.getLogger("bwtui.kafka")
# What librdkafka says ten times a second of a broker that is away is told once, as an error. Without any
# handler Python would write it on stderr.
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
#: Errors that another try does not mend.
NOT_LET_IN = frozenset(
    {
        KafkaError._AUTHENTICATION,
        KafkaError._SSL,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    }
)
TOPIC_GONE = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC})
#: Errors of a partition that has no leader for a moment, as its topic was just made or its broker has just
#: gone: client and broker may then know different epochs of it, too. Kafka's own clients ask again.
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
    """Return a record's headers, or UNREADABLE. To be called once for a record.

    At a name that is no UTF-8 the client notes an error, and returns a list in which the name is missing: to
    touch it would end the process. Python may notice the error only where it next looks for one.
    """
    try:
        # The stubs allow what a producer is given, too.
        found: Any = message.headers()
        # It looks for an error since -1 may stand for one.
        "".ljust(-1)
    except (UnicodeDecodeError, SystemError):
        return UNREADABLE
    return found or []


def plain_kafka_error(error: KafkaError, config: Config, topic: str | None = None) -> BwtuiError:
    """Return what to tell of ``error``."""
    broker = config.get("bootstrap.servers", "")
    code, reason = error.code(), error.str()
    if code in NOT_LET_IN:
        return not_let_in(f"topic {topic}" if topic else f"Kafka at {broker}", error)
    if code == KafkaError._UNKNOWN_PARTITION and topic:
        hint = "the topic was made again with fewer: name the cluster that was written to, or a fresh topic"
        return RefusedError(f"topic {topic} lacks a partition that it should have", hint)
    if code in TOPIC_GONE and topic:
        return topic_gone(topic)
    if code in _UNREACHABLE:
        return unreachable(broker, error)
    message = f"topic {topic}: {reason}" if topic else f"Kafka at {broker}: {reason}"
    return BwtuiError(message, "the broker's log says more; run it again once that is mended")


def not_let_in(place: str, error: KafkaError) -> NotLetIn:
    """Return what to tell when Kafka refuses certificate, user, password or rights."""
    hint = "check the security settings in -C"
    if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        hint = "grant the user that -C names the rights (ACLs) Read and Describe on the topic"
    return NotLetIn(f"{place} does not let us in: {error.str()}", hint)


def unreachable(broker: str, error: KafkaError) -> ConnectionFailed:
    """Return what to tell when no answer comes.

    Of a broker that hangs up librdkafka tells no more than that all are down; of one that can't be reached
    it also tells why. A listener with TLS or SASL hangs up on who begins without.
    """
    if error.code() == KafkaError._ALL_BROKERS_DOWN:
        return ConnectionFailed(
            f"Kafka at {broker} closes every connection",
            "check security.protocol in -C: that listener may want TLS or SASL, or neither",
        )
    return ConnectionFailed(
        f"can't reach Kafka at {broker}: {error.str()}",
        "check that the broker runs there, and -b/--broker or BWTUI_BROKER",
    )


def topic_gone(topic: str) -> RefusedError:
    """Return the error for a topic that is not there."""
    return RefusedError(f"topic {topic} does not exist", "check its name and --topic-prefix")


class Heard:
    """The error that a client itself told of: a request that times out does not say why."""

    def __init__(self, *, has_answered: bool = False) -> None:
        """``has_answered``: another client of these settings has reached the cluster, maybe a while ago."""
        #: Whether the cluster ever answered: one that hangs up since then wants no other protocol.
        self.has_answered = has_answered
        self._error: KafkaError | None = None
        #: Brokers that could not be reached, or are none, by the name that librdkafka gives them.
        self.failed: set[str] = set()
        #: Whether that was said of all of them together.
        self.all_failed = False

    @property
    def error(self) -> KafkaError | None:
        """What was told of, if anything."""
        if self.has_answered and self.is_summary:
            return KafkaError(KafkaError._TRANSPORT, "it does not answer any more")
        return self._error

    @property
    def is_summary(self) -> bool:
        """Whether librdkafka has no more to tell than that all brokers are down."""
        return self._error is not None and self._error.code() == KafkaError._ALL_BROKERS_DOWN

    def __call__(self, error: KafkaError) -> None:
        """Take librdkafka's word; a refusal is not forgotten for an outage, nor a reason for its summary."""
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            self.all_failed = True
        else:
            self.failed.add(error.str().partition(": ")[0])
            error = _plain(error)
        has_reason = self._error is not None and not self.is_summary
        if not has_reason or error.code() in NOT_LET_IN:
            self._error = error

    def forget(self) -> None:
        """Forget what was told of earlier connections."""
        self._error, self.all_failed = None, False
        self.failed.clear()

    def instead_of(self, error: KafkaError) -> KafkaError:
        """Return what was heard, if anything, and ``error`` is only that no answer came."""
        return self.error if self.error is not None and error.code() in _UNREACHABLE else error

    @property
    def is_refusal(self) -> bool:
        """Say whether another try is in vain."""
        return self.error is not None and (self.error.code() in NOT_LET_IN or bool(self.error.fatal()))


def cluster_metadata(
    admin: "AdminClient", heard: Heard, broker: str, patience: float = QUICK_SECONDS
) -> "ClusterMetadata":
    """Return what the cluster of ``broker`` knows of itself. ``heard`` is the client's ``error_cb``.

    Brokers that are all down are given ``patience`` seconds to come back; one that is silent, since it may be
    far away, `REQUEST_SECONDS`. Raises KafkaException with what was heard, since a login that is
    refused shows itself as a timeout only. Ctrl-C is obeyed meanwhile.
    """
    brokers, begin, has_probed = broker.split(","), time.monotonic(), False

    def look(_: float) -> None:
        """Raise KafkaException when no answer will come."""
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
        # All topics are asked for: asking for one by name could make it.
        answer = calls.make(lambda: admin.list_topics(timeout=REQUEST_SECONDS))
        heard.has_answered = True
        return answer
    except KafkaException as error:
        admin.poll(0)
        raise KafkaException(heard.instead_of(error.args[0])) from error
    finally:
        calls.close()


def _plain(error: KafkaError) -> KafkaError:
    """Return what to tell of ``error``: librdkafka takes what is no broker for one that answers too much."""
    match = _NO_ANSWER.search(error.str())
    if match is None:
        return error
    return _no_broker("an HTTP server" if int(match[1]) == _HTTP else "something else")


def _no_broker(what: str) -> KafkaError:
    return KafkaError(KafkaError._TRANSPORT, f"no broker, but {what} answers there")


def _speaks_http(broker: str) -> bool:
    """Return whether a web server listens there; one that waits for a line says nothing to a Kafka client."""
    host, _, port = broker.strip().rpartition("://")[2].rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), _PROBE_SECONDS) as connection:
            connection.settimeout(_PROBE_SECONDS)
            connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
            return connection.recv(5) == b"HTTP/"
    except (OSError, ValueError):
        return False


def new_client(kind: Callable[..., C], settings: Config) -> C:
    """Return a client of a kind. Raises UsageError for a property that librdkafka refuses."""
    try:
        return kind({**settings}, logger=log)
    except (KafkaException, ValueError, TypeError) as error:
        reason = error.args[0].str() if isinstance(error, KafkaException) else str(error)
        raise UsageError(
            f"librdkafka refuses a setting: {reason}", "see 'bwtui connect --config-help'"
        ) from error


def may_be_hung_up(max_message_bytes: int) -> str:
    """Return what is to be said of an outage where messages may be larger than brokers read by default.

    A broker hangs up on a request above its socket.request.max.bytes, and says why in its own log alone.
    """
    if max_message_bytes <= _REQUEST_BYTES:
        return ""
    return (
        ", or brokers hang up on a message that is larger than their socket.request.max.bytes "
        "(100 MiB, unless it was raised), as message.max.bytes lets one be"
    )
