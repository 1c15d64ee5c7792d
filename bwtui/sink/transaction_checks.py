"""The checks of the brokers for --exactly-once by doctor; they create and change nothing.

They don't check that the relay's user may write under its transactional.id: the only way would be to begin a
transaction, which fences any relay that has one open. The relay reports it when it starts.
"""

from collections.abc import Sequence

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import ConfigResource, ResourceType

from bwtui.errors import ConnectionFailed, ServiceRefused
from bwtui.kafka.client import new_client, unreachable
from bwtui.kafka.commands import LoggedAdmin
from bwtui.kafka.config import client_config
from bwtui.settings import RelaySettings
from bwtui.sink.destination import Precondition
from bwtui.sink.kafka import preconditions as of_kafka
from bwtui.sink.position_topic import positions_topic

_WAIT_SECONDS = 10.0
_LONGEST, _MIN_ISR, _REPLICAS = (
    "transaction.max.timeout.ms",
    "transaction.state.log.min.isr",
    "transaction.state.log.replication.factor",
)


def preconditions(settings: RelaySettings) -> Sequence[Precondition]:
    """Return the checks that Kafka and the schema registry respond, and that transactions work."""

    def transactions() -> str:
        limits, brokers = _broker_limits(settings)
        timeout = int(dict(settings.kafka_config).get("transaction.timeout.ms", 0)) or None
        return judged(settings, limits, brokers, timeout)

    return (*of_kafka(settings), ("Kafka transactions", transactions))


def judged(settings: RelaySettings, limits: dict[str, int], brokers: int, timeout: int | None) -> str:
    """Return the result in a few words. Raises ServiceRefused if transactions are not possible.

    ``timeout`` is the given transaction.timeout.ms (milliseconds). Settings that the brokers do not show are
    missing from ``limits``.
    """
    longest = limits.get(_LONGEST)
    if longest is not None and timeout is not None and timeout > longest:
        raise ServiceRefused(
            f"transaction.timeout.ms is {timeout}, but the brokers allow at most {longest}",
            f"set -C transaction.timeout.ms={longest} or less, or raise {_LONGEST} on the brokers",
        )
    if brokers < limits.get(_MIN_ISR, 0):
        raise ServiceRefused(
            f"transactions need {limits[_MIN_ISR]} in-sync replicas ({_MIN_ISR}); brokers up: {brokers}",
            f"start more brokers, or lower {_MIN_ISR} on the brokers",
        )
    notes = [f"position in topic {positions_topic(settings)}"]
    if longest is not None:
        notes.append(f"a snapshot may take {min(longest, timeout or longest) // 1_000} s")
    if brokers > 1 and limits.get(_REPLICAS, brokers) == 1:
        notes.append(f"{_REPLICAS} is 1: the relay waits while that one broker is down")
    return ", ".join(notes)


def _broker_limits(settings: RelaySettings) -> tuple[dict[str, int], int]:
    """Return the settings of one broker, and how many brokers are up. Raises ConnectionFailed."""
    admin = new_client(LoggedAdmin, client_config(settings))
    try:
        nodes = admin.describe_cluster(request_timeout=_WAIT_SECONDS).result().nodes
        resource = ConfigResource(ResourceType.BROKER, str(nodes[0].id))
        (future,) = admin.describe_configs([resource], request_timeout=_WAIT_SECONDS).values()
        entries = future.result()
    except KafkaException as error:
        reason = error.args[0]
        if reason.code() != KafkaError.CLUSTER_AUTHORIZATION_FAILED:
            raise unreachable(settings.broker, reason) from error
        raise ConnectionFailed(
            f"the brokers' settings can't be read: {reason.str()}",
            "grant the relay's user the right (ACL) DescribeConfigs on the cluster, or check them manually",
        ) from error
    values = {name: entries[name].value for name in (_LONGEST, _MIN_ISR, _REPLICAS) if name in entries}
    return {name: int(value) for name, value in values.items() if value is not None}, len(nodes)
