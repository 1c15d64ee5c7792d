"""The journey of a key with real services: the engine's notes on sampled changes, and Kafka's records."""

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from bwtui.kafka.key_reader import KeyReader
from bwtui.model.status import ChangeSample, SchemaEntry
from bwtui.recording.explain import RowKey
from bwtui.relay.process import control, launch
from bwtui.sandbox.sandbox import ServiceAddresses
from bwtui.settings import RelaySettings
from bwtui.tui.audit.records import RecordDecoder, same_bytes, same_text
from bwtui.tui.sources.journey import compare_with_sample, key_of_sample, merged, sampled, sampled_path
from tests.database import Session
from tests.waiting import eventually

#: An unusual column name, and a hostile key value.
NAME, KEY = "odd name", "it's \x1b[31m \u202e 'x' or 1=1 --\n"


@pytest.fixture(params=["recorded", "alone", "headers"])
def relay(
    request: pytest.FixtureRequest,
    database: str,
    services: ServiceAddresses,
    source: Session,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[str]:
    """A relay that records, one that does not, and one that sends headers."""
    monkeypatch.setenv("BWTUI_STATE_HOME", str(tmp_path))
    source.run(f'create table t ("{NAME}" text, line int, body text, primary key ("{NAME}", line))')
    name = f"journey_{time.monotonic_ns():x}"
    settings = RelaySettings(
        postgres=database,
        slot=name,
        topic_prefix=name,
        broker=services.broker,
        schema_registry=services.schema_registry,
        record=str(tmp_path / "recording") if request.param == "recorded" else "",
        headers=request.param == "headers",
    )
    engine = launch.start(settings)
    try:
        engine.wait_ready()
        yield name
    finally:
        engine.stop()
        source.wait_released(name)


def samples(relay: str) -> list[ChangeSample]:
    """Return the engine's samples."""
    return [ChangeSample.from_json(one) for one in control.request(relay, {"request": "changes", "after": 0})]


def test_a_change_is_followed_from_its_commit_into_kafka(
    relay: str, services: ServiceAddresses, source: Session, request: pytest.FixtureRequest
) -> None:
    eventually("it streams", lambda: source.reader(relay))
    source.run("insert into t values (%s, 7, 'one')", KEY)
    # The relay takes one sample in 20 milliseconds, so a change waits until the one before is done.
    eventually("the first was acknowledged", lambda: _done(samples(relay), 1))
    source.run(f'select pg_sleep(0.05); update t set body = %s where "{NAME}" = %s', "two", KEY)
    eventually("two were acknowledged", lambda: _done(samples(relay), 2))
    source.run(f'select pg_sleep(0.05); update t set body = %s where "{NAME}" = %s', "three", KEY)
    found = eventually("all were acknowledged", lambda: _done(samples(relay), 3))
    key = key_of_sample(found[0], (NAME, "line"))
    assert key == RowKey("public.t", (NAME, "line"), (KEY.encode(), b"7"))
    for one in found:
        way = sampled_path(one)
        assert [leg.name for leg in way.legs] == ["received", "encoded", "produced", "acknowledged"]
        assert way.total is not None
        assert way.total < 30
        assert all(leg.seconds is not None and leg.seconds > -1 for leg in way.legs)
        assert one.ordinal == 1
    schemas = [SchemaEntry(**one) for one in control.request(relay, {"request": "schemas"})]
    reader = RecordDecoder("avro", {one.id: one.schema for one in schemas}, lambda number: None)
    with closing(KeyReader({"bootstrap.servers": services.broker})) as keys:
        by_bytes = keys.of_key(f"{relay}.t", same_bytes(bytes.fromhex(found[0].message_key)))
        by_text = keys.of_key(f"{relay}.t", same_text(key, reader))
    assert by_bytes.records == by_text.records
    moments = merged(sampled(samples(relay), key), tuple(by_bytes.records))
    assert len(moments) == 3
    how = request.node.callspec.params["relay"]
    for moment in moments:
        assert moment.sample is not None
        assert moment.stored is not None
        assert moment.is_sure == (how != "alone")
        if how == "recorded":
            assert (moment.sample.partition, moment.sample.offset) == moment.place
        assert compare_with_sample(moment.sample.fields, moment.stored, reader)[0].tone == "good"


def _done(found: list[ChangeSample], number: int) -> list[ChangeSample] | None:
    return found if len(found) == number and all(one.passed and one.passed[-1] for one in found) else None
