"""Settings of Kafka and a slot that can't be used are refused for the right reason."""

import pytest

from bwtui.cli.options import librdkafka
from bwtui.errors import RefusedError, UsageError
from bwtui.settings import Pairs, RelaySettings
from bwtui.source import preflight
from bwtui.source.connection import Connection
from bwtui.source.slot import SlotState

OAUTH: Pairs = (("security.protocol", "SASL_SSL"), ("sasl.mechanism", "OAUTHBEARER"))


@pytest.mark.parametrize("key", ["partitions", "num.partitions", "replication-factor", "cleanup.policy"])
@pytest.mark.parametrize("in_topic", [True, False])
def test_a_setting_of_the_topic_is_no_property_of_a_producer(in_topic: bool, key: str) -> None:
    pairs: Pairs = ((key, "3"),)
    settings = RelaySettings(topic_config=pairs) if in_topic else RelaySettings(kafka_config=pairs)
    with pytest.raises(UsageError, match=f"{key} is a topic setting") as refused:
        librdkafka.check(settings)
    assert "kafka-topics.sh --create --partitions N" in refused.value.hint


def test_a_physical_slot_is_named_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    slot = SlotState("shop", None, None, False, None, "reserved", None, 0, 0, 0, False)
    monkeypatch.setattr(preflight, "slot_state", lambda *_: slot)
    checks = preflight.server_checks(Connection.__new__(Connection), RelaySettings(slot="shop"))
    (check,) = (one for one in checks if one.name == "slot")
    with pytest.raises(RefusedError, match="slot shop is a physical replication slot") as refused:
        check.run()
    assert "plugin" not in refused.value.message


def test_oauthbearer_without_a_source_of_tokens() -> None:
    with pytest.raises(UsageError, match="needs a source for its token") as refused:
        librdkafka.check(RelaySettings(kafka_config=OAUTH))
    assert "sasl.oauthbearer.token.endpoint.url" in refused.value.hint


@pytest.mark.parametrize(
    "more",
    [
        (("sasl.oauthbearer.method", "oidc"),),
        (("enable.sasl.oauthbearer.unsecure.jwt", "true"),),
        (("security.protocol", "plaintext"),),
        (("sasl.mechanism", "PLAIN"),),
    ],
)
def test_oauthbearer_that_has_one_or_is_not_used(more: Pairs) -> None:
    librdkafka.check(RelaySettings(kafka_config=(*OAUTH, *more)))
