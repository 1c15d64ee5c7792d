"""``bwtui doctor``: tables that can't use their topics, and the last line."""

from types import SimpleNamespace

import pytest

from bwtui.cli import doctor
from bwtui.cli.doctor import PrerequisiteResult
from bwtui.errors import RefusedError
from bwtui.relay.routes import table_checks
from bwtui.settings import RelaySettings
from bwtui.sink import kafka
from bwtui.sink.destination import Limits, TopicLimits
from bwtui.source import connection, preflight
from bwtui.source.catalog import Attribute, TableInfo
from tests.unit.test_cli_main import invoke

REFUSED = RefusedError("topic other: not allowed", "create the topic manually")
OK = [PrerequisiteResult("PostgreSQL", "cdc at db:5432/shop"), PrerequisiteResult("Kafka", "1 broker")]


def table(name: str, *, has_key: bool = True, namespace: str = "public") -> TableInfo:
    return TableInfo(7 if name == "root" else 8, namespace, name, "d", has_key, True, False, None)


def results(monkeypatch: pytest.MonkeyPatch, tables: list[TableInfo], limits: Limits) -> list[str]:
    """Return the results of the topics check; only table "root" has a replica identity."""
    settings = RelaySettings(allow_unkeyed=True)
    monkeypatch.setattr(connection, "connect", lambda _: SimpleNamespace(close=lambda: None))
    monkeypatch.setattr(preflight, "selected_tables", lambda *_: tables)
    identity = [Attribute("id", 23, in_identity=True)]
    monkeypatch.setattr(table_checks, "attributes", lambda _, oid: identity if oid == 7 else [])
    monkeypatch.setattr(
        kafka,
        "present_limits",
        lambda _, topics: {topic: limits[topic] for topic in topics if topic in limits},
    )
    assert {one.name for one in doctor._topics(settings)} == {"topics suit the tables"}
    return [
        f"FAIL {one.error.message}; {one.error.hint}" if one.error else f"ok {one.message}"
        for one in doctor._topics(settings)
    ]


def test_a_compacted_topic_of_a_table_without_a_key_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    compacted = TopicLimits(1, compacted=True)
    limits: Limits = {"logs": compacted, "root": compacted, "keyed": compacted, "other": REFUSED}
    tables = [table("logs", has_key=False), table("root", has_key=False), table("keyed"), table("other")]
    assert results(monkeypatch, tables, limits) == [
        "FAIL topic logs is compacted, but public.logs has no key; "
        "set cleanup.policy=delete on topic logs, or give the table a primary key",
        "FAIL topic other: not allowed; create the topic manually",
    ]


def test_missing_topics_are_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: Limits = {"logs": TopicLimits(1, compacted=False)}
    tables = [table("logs", has_key=False), table("new", has_key=False)]
    assert results(monkeypatch, tables, limits) == ["ok no conflict in 2 topics"]
    assert results(monkeypatch, tables[:1], {}) == ["ok no conflict in 1 topic"]


def test_topics_that_kafka_can_not_distinguish_are_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    (failed,) = results(monkeypatch, [table("a_b"), table("b", namespace="a")], {})
    assert failed.startswith("FAIL Kafka does not allow topics ")


@pytest.mark.parametrize("failed", ["PostgreSQL", "tables are keyed", "Kafka"])
def test_topics_are_not_checked_after_an_earlier_failure(
    failed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_postgres", lambda *_: [PrerequisiteResult(failed, error=REFUSED)])
    monkeypatch.setattr(kafka, "preconditions", lambda _: ())
    checked = {one.name: one for one in doctor._results(RelaySettings())}
    assert checked["topics suit the tables"].skipped
    assert not checked[failed].skipped


def test_the_last_line_repeats_that_options_were_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_results", lambda *_: OK)
    monkeypatch.setattr(doctor, "_advice", lambda *_: [])
    monkeypatch.setattr(doctor, "_extension_advice", list)
    met = "all prerequisites are met; start with 'bwtui connect'"
    assert invoke("doctor")[1].splitlines()[-1] == met
    assert invoke("doctor", "-u")[1].splitlines()[-1] == f"{met} and the same options"
