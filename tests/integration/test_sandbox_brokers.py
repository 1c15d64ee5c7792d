"""A sandbox with three brokers: any one of them may be lost."""

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer, TopicCollection
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from bwtui.errors import RefusedError
from bwtui.sandbox.runner import ServiceState
from bwtui.sandbox.sandbox import Sandbox
from tests.fix_sandbox import MAJOR
from tests.waiting import eventually

pytestmark = pytest.mark.services


@pytest.fixture
def restored(three_brokers: Sandbox) -> Iterator[Sandbox]:
    """The sandbox with three brokers, for tests that end some of them."""
    yield three_brokers
    three_brokers.up()


def in_sync(admin: AdminClient, topic: str) -> list[set[int]]:
    """Return the in-sync brokers of each partition."""
    described = admin.describe_topics(TopicCollection([topic]))[topic].result(30)
    return [{node.id for node in one.isr} for one in described.partitions]


def settings_of(admin: AdminClient, topic: str) -> dict[str, Any] | None:
    """Return them; None while the queried broker does not have the topic yet."""
    wanted = ConfigResource(ResourceType.TOPIC, topic)
    try:
        found: dict[str, Any] = admin.describe_configs([wanted])[wanted].result(30)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise
        return None
    return found


def test_one_of_three_brokers_may_be_lost(restored: Sandbox) -> None:
    brokers = restored.services().broker
    assert len(brokers.split(",")) == 3
    admin = AdminClient({"bootstrap.servers": brokers})
    # As the relay requests it: partitions and replicas are the cluster's defaults.
    admin.create_topics([NewTopic("kept", -1, -1)])["kept"].result(30)
    settings = eventually("every broker knows of the topic", lambda: settings_of(admin, "kept"))
    assert settings["min.insync.replicas"].value == "2"
    assert in_sync(admin, "kept") == [{1, 2, 3}] * 3
    delivered: list[object] = []
    producer = Producer({"bootstrap.servers": brokers, "acks": "all", "enable.idempotence": True})
    # The first is usually the controller.
    restored.kill_service("kafka-1")
    for number in range(9):
        producer.produce("kept", str(number), on_delivery=lambda error, _: delivered.append(error))
    assert producer.flush(60) == 0
    restored.start_service("kafka-1")
    assert delivered == [None] * 9
    eventually("it has caught up", lambda: in_sync(admin, "kept") == [{1, 2, 3}] * 3)


@pytest.mark.long
def test_all_three_come_back_at_once(restored: Sandbox) -> None:
    """One broker of three alone is never ready."""
    for name in ("kafka-2", "kafka-3"):
        restored.kill_service(name)
    assert (status := restored.status()) is not None
    assert [status.services[f"kafka-{n}"].state for n in (2, 3)] == [ServiceState.STOPPED] * 2
    restored.up()
    assert (status := restored.status()) is not None and status.ready


def test_the_command_line_names_each_broker(three_brokers: Sandbox) -> None:
    environment = {**os.environ, "BWTUI_SANDBOX_HOME": str(three_brokers.folder)}
    command = [sys.executable, "-m", "bwtui", "sandbox", "status"]
    shown = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True, timeout=60
    ).stdout
    for number, address in enumerate(three_brokers.services().broker.split(","), 1):
        assert shown.splitlines()[number].split()[:4] == ["Kafka", str(number), "ready", address], shown


def test_another_number_of_brokers_beside_the_running_ones_is_refused(three_brokers: Sandbox) -> None:
    with pytest.raises(RefusedError, match=r"is running with --brokers 3, not 1"):
        Sandbox(three_brokers.folder, MAJOR).up()
