"""Records that are far apart in a log are found by seeking, and none is missed."""

import random
import uuid

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from bwtui.kafka.scan import LEAP, SeekingScan
from bwtui.sandbox.sandbox import ServiceAddresses
from tests.fresh_topic import create_topic

pytestmark = pytest.mark.services
MESSAGES = 40_000


@pytest.fixture(scope="module")
def topic(services: ServiceAddresses) -> str:
    """Create a topic of one partition in which every fourth run of messages was aborted."""
    config = {"bootstrap.servers": services.broker}
    name = f"places-{uuid.uuid4().hex}"
    create_topic(AdminClient({**config}), NewTopic(name, 1, 1))
    producer = Producer({**config, "transactional.id": name, "linger.ms": 5, "compression.type": "lz4"})
    producer.init_transactions(30)
    for run in range(0, MESSAGES, 1_000):
        producer.begin_transaction()
        for number in range(run, run + 1_000):
            producer.produce(name, b"value", b"%d" % number, 0)
        assert producer.flush(30) == 0
        producer.abort_transaction(30) if run % 4_000 == 3_000 else producer.commit_transaction(30)
    return name


@pytest.mark.parametrize("number", [1, 2, 9, 60])
def test_every_one_is_read(services: ServiceAddresses, topic: str, number: int) -> None:
    end = MESSAGES + MESSAGES // 1_000
    whole = range(end)
    chance = random.Random(number)
    wanted = sorted({0, end - 1, *chance.sample(whole, number), *range(20_000, 20_000 + number)})
    config = {"bootstrap.servers": services.broker}
    read = set()
    for part in SeekingScan(config, (topic, 0), wanted, "read_committed", 5.0):
        read.update(part.offsets)
    # Each run is followed by the marker of its end.
    there = {at for at in wanted if at % 1_001 != 1_000 and at // 1_001 % 4 != 3}
    assert there <= read
    # Records between two of them are skipped, except for those close after the first.
    assert len(read) <= len(wanted) * LEAP
    if number < 9:
        assert len(read) < MESSAGES / 2
