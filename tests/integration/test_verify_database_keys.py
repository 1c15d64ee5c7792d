"""``bwtui verify --database`` of equal keys in different encodings: to brokers they are different keys."""

import io
import json
from contextlib import closing

import fastavro
from confluent_kafka import Producer
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

from tests.attempts import Attempts
from tests.database import Session
from tests.integration.test_verify_database import relaying, verify
from tests.raw_topic import raw_records
from tests.waiting import eventually

_SPELLED = (
    "its key is encoded differently from the topic's other keys, so later changes of the row do not "
    "replace it"
)
_ALONE = "the topic has the row only under this differently encoded key"
#: The old schema of a date, from before keys were texts, byte by byte.
_OLD = {
    "type": "record", "name": "old",
    "fields": [{"name": "day", "type": ["null", {"type": "int", "logicalType": "date"}]}],
}  # fmt: skip


def test_keys_in_other_bytes(attempts: Attempts, source: Session, database: str) -> None:
    """In the order of the days: the relay's current encoding and the old one; only the old one.

    Then: only a longer varint; deleted, but still there in the old encoding; untouched.
    """
    source.run("create table days (day date primary key, v text)")
    source.run("insert into days select date '2024-01-01' + i, 'v' from generate_series(0, 9) i")
    topic, broker = f"{attempts.name}.days", {"bootstrap.servers": attempts.services.broker}
    with relaying(attempts, database, source):
        source.run("delete from days where day = '2024-01-04'")
        eventually("it is deleted", lambda: None in _records(attempts, topic).values())
        found = _records(attempts, topic)
        keys = sorted(found, key=lambda place: place[1])
        with closing(SchemaRegistryClient({"url": attempts.services.schema_registry})) as registry:
            number = registry.register_schema(f"{topic}-old", Schema(json.dumps(_OLD), "AVRO"))
        longer = keys[2][1][:5] + b"\x82\x00" + keys[2][1][6:]
        sent = [
            (keys[0][0], _old(number, 19723), found[keys[0]]),
            (keys[1][0], _old(number, 19724), found[keys[1]]),
            (keys[1][0], keys[1][1], None),
            (keys[2][0], longer, found[keys[2]]),
            (keys[2][0], keys[2][1], None),
            (keys[3][0], _old(number, 19726), found[keys[4]]),
        ]
        with closing(Producer({**broker})) as producer:
            for partition, key, value in sent:
                producer.produce(topic, value, key, partition)
            assert not producer.flush(30)
        ended, report = verify(attempts, database, "--show-values")
        told = sorted((one["key"]["day"], one["class"], one["note"]) for one in report["findings"])
        assert (ended.code, told) == (
            1,
            [
                ("2024-01-01", "extra_key", _SPELLED),
                ("2024-01-02", "extra_key", _SPELLED),
                ("2024-01-02", "missing_key", _ALONE),
                ("2024-01-03", "extra_key", _SPELLED),
                ("2024-01-03", "missing_key", _ALONE),
                ("2024-01-04", "extra_key", _SPELLED),
            ],
        ), ended.stderr


def _records(attempts: Attempts, topic: str) -> dict[tuple[int, bytes], bytes | None]:
    return {
        (partition, record.key() or b""): record.value()
        for (_, partition), records in raw_records(attempts.services, [topic]).items()
        for record in records
    }


def _old(number: int, day: int) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(_OLD), {"day": day})
    return b"\0" + number.to_bytes(4, "big") + stream.getvalue()


def test_an_apostrophe_in_a_name(attempts: Attempts, source: Session, database: str) -> None:
    source.run("""
        create schema "it's"; create table "it's"."o'b" ("i'd" text primary key, "v'" text);
        insert into "it's"."o'b" values ('a''b', 'c''d');
        create table "it's"."un'keyed" ("v'" text); alter table "it's"."un'keyed" replica identity full;
        insert into "it's"."un'keyed" values ('c''d')""")
    with relaying(attempts, database, source):
        ended, report = verify(attempts, database)
        assert (ended.code, report.get("findings"), ended.stderr) == (0, [], "")
        assert report["expected"] == report["actual"] == 2
