"""Unusable Kafka settings and slots are rejected for the right reason."""

import pytest

from bwtui.cli.inputs import librdkafka
from bwtui.errors import RefusedError, UsageError
from bwtui.settings import Pairs, RelaySettings
from bwtui.source import preflight
from bwtui.source.catalog import TableInfo
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


def test_a_slot_in_use_is_reported_before_its_publication(monkeypatch: pytest.MonkeyPatch) -> None:
    """The relay that uses it may have a different publication: do not drop or heal it."""
    slot = SlotState("shop", "pgoutput", "shop", True, 3810, "reserved", None, 0, 0, 0, False)
    monkeypatch.setattr(preflight, "_RELEASE_SECONDS", -1.0)
    monkeypatch.setattr(preflight, "slot_state", lambda *_: slot)

    def lacks() -> str:
        raise RefusedError("slot shop exists, but its publication nopub does not", "drop it")

    checks = (preflight.Check("slot", lambda: "will be resumed"), preflight.Check("publications", lacks))
    monkeypatch.setattr(preflight, "server_checks", lambda *_: checks)
    with pytest.raises(RefusedError) as refused:
        preflight.inspect(Connection.__new__(Connection), RelaySettings(slot="shop"), lambda _: None)
    assert refused.value.message == "slot shop is in use by server process 3810"
    assert "-s/--slot" in refused.value.hint


def test_a_selection_without_a_table_says_what_a_pattern_matches(monkeypatch: pytest.MonkeyPatch) -> None:
    table = TableInfo(1, "public", "items", "d", True, True, False, None)
    monkeypatch.setattr(preflight, "list_tables", lambda *_, **__: [table])
    with pytest.raises(RefusedError) as refused:
        preflight.chosen_tables(Connection.__new__(Connection), RelaySettings(tables=("items:",)), None)
    assert refused.value.hint.endswith("schema.table, or the name of a table in schema public, as a whole")


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
