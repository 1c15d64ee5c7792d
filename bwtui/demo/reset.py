"""Remove what an earlier demo left in Kafka, in the schema registry, and in the relay's state folder."""

import shutil
import time

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from confluent_kafka.schema_registry import SchemaRegistryClient, SchemaRegistryError

from bwtui.demo.logs import log_hint
from bwtui.errors import BwtuiError, ConnectionFailed, RefusedError
from bwtui.kafka.client import log
from bwtui.relay.process.control import request
from bwtui.relay.process.lock import is_held
from bwtui.state_folder import state_folder

_TIMEOUT = 30.0
_POLL = 0.05
_PASSING = frozenset({KafkaError.TOPIC_ALREADY_EXISTS, KafkaError.INVALID_REPLICATION_FACTOR})
#: More than one, so that a key in the wrong partition is noticed.
_PARTITIONS = 3


def reset_topics(broker: str, prefix: str, topics: list[str]) -> None:
    """Delete every topic that starts with ``prefix`` and a dot, and create ``topics``."""
    admin = AdminClient({"bootstrap.servers": broker}, logger=log)
    try:
        old = [name for name in admin.list_topics(timeout=_TIMEOUT).topics if name.startswith(f"{prefix}.")]
        for future in admin.delete_topics(old, operation_timeout=_TIMEOUT).values() if old else ():
            future.result()
        create_topics(admin, topics)
    except KafkaException as error:
        raise ConnectionFailed(
            f"the demo can't create its topics: {error.args[0].str()}", log_hint("kafka")
        ) from error


def create_topics(admin: AdminClient, topics: list[str]) -> None:
    """Create topics; wait for topics of the same name that are still being deleted.

    Also wait for a broker that got no CPU for some seconds: it accepts no topics until it has rejoined the
    controller.
    """
    deadline = time.monotonic() + _TIMEOUT
    missing = list(topics)
    while missing:
        # A client that knows no broker would wait for a controller without requesting one.
        while not admin.list_topics(timeout=_TIMEOUT).brokers and time.monotonic() < deadline:
            time.sleep(_POLL)
        futures = admin.create_topics([NewTopic(name, _PARTITIONS, 1) for name in missing])
        for name, future in futures.items():
            try:
                future.result()
                missing.remove(name)
            except KafkaException as error:
                if error.args[0].code() not in _PASSING or time.monotonic() > deadline:
                    raise
        if missing:
            time.sleep(_POLL)


def reset_subjects(registry: str, prefix: str) -> None:
    """Delete the subjects of the prefix's topics, because a table may have changed since the last demo.

    A registry that forbids deletion keeps them; the shop's schemas are then usually the same.
    """
    with SchemaRegistryClient({"url": registry}) as client:
        for subject in client.get_subjects():
            if subject.startswith(f"{prefix}."):
                try:
                    client.delete_subject(subject)
                    client.delete_subject(subject, permanent=True)
                except SchemaRegistryError as error:
                    if error.http_status_code not in (403, 404, 405):
                        raise


def reset_relay(name: str) -> None:
    """Stop a relay that a killed demo left behind, and remove its slot checkpoint.

    The demo drops that slot, and a relay refuses to start when its slot is missing.
    """
    deadline = time.monotonic() + _TIMEOUT
    is_stop_requested = False
    while is_held(name):
        if time.monotonic() > deadline:
            raise RefusedError(
                f"the relay {name} of an earlier demo does not stop", f"stop it with 'bwtui stop {name}'"
            )
        if not is_stop_requested:
            is_stop_requested = _ask_to_stop(name)
        time.sleep(_POLL)
    shutil.rmtree(state_folder(name), ignore_errors=True)


def _ask_to_stop(name: str) -> bool:
    try:
        request(name, {"request": "stop"})
    except BwtuiError:
        # It is not listening yet, or about to end.
        return False
    return True
