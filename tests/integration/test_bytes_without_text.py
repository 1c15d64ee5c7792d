"""Bytes that are not text: undefined characters of the database's encoding, and invalid UTF-8.

PostgreSQL accepts them (``chr(129)`` in WIN1252), or has them from before its encoding was changed.
"""

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import psycopg2
import pytest
from confluent_kafka import Producer

from bwtui.encode.names import ESCAPED_FIELD
from bwtui.sandbox.sandbox import ServiceAddresses
from tests.attempts import Attempts
from tests.database import Session, session
from tests.decoded_topic import decoded_avro, decoded_json, latest
from tests.fix_sandbox import drop_database
from tests.integration.test_verify_database import relaying, verify
from tests.raw_topic import raw_messages

pytestmark = pytest.mark.services


class Case(NamedTuple):
    """A database, a text in it, and invalid bytes: as SQL and as raw bytes."""

    dsn: str
    good: str
    bad: str
    raw: bytes


#: The name of the encoding → the fields of `Case` after the database.
_CASES = {
    "WIN1252": ("größe", "chr(194) || chr(129)", b"\xc2\x81"),
    "EUC_JP": ("日本", r"convert_from('\x61a9a1', 'EUC_JP')", b"a\xa9\xa1"),
    # The database was in SQL_ASCII when the bytes were written.
    "UTF8": ("日本", r"E'a\xff'", b"a\xff"),
}
_TABLES = """
create table t (id int primary key, v text, a text[], big text);
alter table t alter big set storage external;
create table k (k text primary key, n int, big text);
alter table k alter big set storage external;
insert into t values (1, '{good}', '{{{good}}}', '{good}'), (2, {bad}, array['x', {bad}], null),
                     (3, '\\x' || '{hex}', null, repeat({bad}, 3000));
insert into k values ('{good}', 1, repeat('x', 3000)), ({bad}, 2, repeat('x', 3000)),
                     ('\\x' || '{hex}', 3, repeat('x', 3000));
"""


@pytest.fixture(
    params=[pytest.param(name, marks=() if name == "UTF8" else pytest.mark.long) for name in _CASES]
)
def case(database: str, request: pytest.FixtureRequest) -> Iterator[Case]:
    """A database in that encoding, with such bytes in it, in addition to the test's own."""
    good, bad, raw = _CASES[request.param]
    name = urlsplit(database).path.strip("/")[-50:] + "_bytes"
    dsn = urlsplit(database)._replace(path=f"/{name}").geturl()
    made = "SQL_ASCII" if request.param == "UTF8" else request.param
    with closing(psycopg2.connect(database)) as owner, owner.cursor() as cursor:
        owner.autocommit = True
        cursor.execute(f"create database {name} template template0 encoding '{made}' locale 'C'")
        with session(dsn) as source:
            source.connection.set_client_encoding("UTF8")
            source.run(_TABLES.format(good=good, bad=bad, hex=raw.hex()))
        became = "update pg_database set encoding = pg_char_to_encoding(%s) where datname = %s"
        cursor.execute(became, [request.param, name])
        yield Case(dsn, good, bad, raw)
        drop_database(owner, name)


@pytest.fixture
def source(case: Case) -> Iterator[Session]:
    """A session on that database."""
    with session(case.dsn) as opened:
        opened.connection.set_client_encoding("UTF8")
        yield opened


def go_on(source: Session) -> None:
    """Write rows with such bytes, in statements without them."""
    source.run("insert into t select id + 10, v, a, big from t")
    # The large values are not sent but fetched, also for keys that are not text.
    source.run("update t set a = null where id = 13")
    source.run("update k set n = n + 10")
    source.run("insert into k select k || k, n + 10, big from k")
    source.run("delete from k where n = 12")


def rows_of(case: Case) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Return the rows of ``t`` after `go_on`, as an Avro consumer reads them."""
    bad, array = "\\x" + case.raw.hex(), "\\x" + (b"{x," + case.raw + b"}").hex()
    big = "\\x" + (case.raw * 3_000).hex()
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for base in (0, 10):
        columns = (
            (case.good, [case.good], case.good, None),
            (None, None, None, {"v": bad, "a": array}),
            (bad, None, None, {"big": big}),
        )
        for number, values in enumerate(columns, 1 + base):
            names = ("v", "a", "big", ESCAPED_FIELD)
            found[number,] = {"id": number, **dict(zip(names, values, strict=True))}
    return found


def keys_of(case: Case, no_text: str) -> dict[tuple[Any, ...], int]:
    """Return the keys of ``k`` after `go_on`; ``no_text`` is the text for the doubled bytes."""
    literal = "\\x" + case.raw.hex()
    return {(case.good,): 11, (literal,): 13, (case.good * 2,): 21, (no_text,): 22, (literal * 2,): 23}


def test_in_avro(case: Case, source: Session, services: ServiceAddresses, tmp_path: Path) -> None:
    """In the snapshot, in the stream and fetched; in topics, in the recording, and for the audit."""
    attempts, folder = Attempts(services, tmp_path), str(tmp_path / "recording")
    attempts.succeed(case.dsn, "--record", folder)
    with relaying(attempts, case.dsn, source, "--record", folder):
        go_on(source)
        ended, report = verify(attempts, case.dsn)
        assert (ended.code, report["verdict"]) == (0, "clean"), ended.stdout + ended.stderr
        assert report["expected"] == report["actual"] == 11
        check_a_difference(attempts, case, source)
    assert latest(decoded_avro(services, f"{attempts.name}.t")) == rows_of(case)
    keys = decoded_avro(services, f"{attempts.name}.k")
    marked = f"\\x{(case.raw * 2).hex()}\0"
    assert {key: row["n"] for key, row in latest(keys).items()} == keys_of(case, marked)
    assert {len(row["big"]) for _, row in keys if row} == {3_000}
    exported = attempts.command_here("recording", "export", folder, "--format", "jsonl")
    assert exported.code == 0, exported.stderr
    changes = [json.loads(line) for line in exported.stdout.splitlines()]
    rows = {change["after"]["id"]: change["after"] for change in changes if "v" in (change["after"] or {})}
    assert [rows[key]["v"] for key in ("1", "2", "12")] == [case.good, *[{"hex": case.raw.hex()}] * 2]
    assert rows["13"]["big"] == {"hex": (case.raw * 3_000).hex()}


def check_a_difference(attempts: Attempts, case: Case, source: Session) -> None:
    """Check how the audit shows a key that is not text, whose row differs in the topic."""
    topic, literal = f"{attempts.name}.k", (case.raw * 2).hex()
    found = {key: value for key, value in raw_messages(attempts.services, topic) if key}
    (marked,) = [key for key in found if key.endswith(literal.encode() + b"\0")]
    other = next(value for key, value in found.items() if key != marked and value)
    settings = {"bootstrap.servers": attempts.services.broker, "partitioner": "murmur2_random"}
    with closing(Producer(settings)) as producer:
        producer.produce(topic, other, marked)
        assert producer.flush(30) == 0
    _, report = verify(attempts, case.dsn, "--show-values")
    (finding,) = report["findings"]
    assert (finding["class"], finding["key"]) == ("different_row", {"k": f"\\x{literal}"})
    ended = attempts.command("repair", "--relay", attempts.name, "--dry-run")
    assert "1 rows are missing in the topic or differ" in ended.stdout
    source.run("update k set n = n where n = 22")
    assert verify(attempts, case.dsn)[0].code == 0


@pytest.mark.parametrize("case", ["WIN1252"], indirect=True)
def test_in_json(case: Case, source: Session, services: ServiceAddresses, tmp_path: Path) -> None:
    """Each invalid byte is sent as a lone surrogate."""
    attempts = Attempts(services, tmp_path)
    attempts.succeed(case.dsn, "-f", "json")
    with relaying(attempts, case.dsn, source, "-f", "json"):
        go_on(source)
        ended, report = verify(attempts, case.dsn)
        assert (ended.code, report["verdict"]) == (0, "clean"), ended.stdout + ended.stderr
    text = case.raw.decode("ascii", "surrogateescape")
    found = latest(decoded_json(services, f"{attempts.name}.t"))
    assert [found[number,]["v"] for number in (1, 2, 3, 11, 12)] == [
        case.good, text, "\\x" + case.raw.hex(), case.good, text,
    ]  # fmt: skip
    assert found[13,]["big"] == text * 3_000
    keys = latest(decoded_json(services, f"{attempts.name}.k"))
    assert {key: row["n"] for key, row in keys.items()} == keys_of(case, text * 2)


@pytest.mark.parametrize("case", ["WIN1252"], indirect=True)
def test_after_a_snapshot_that_could_not_end(
    case: Case, source: Session, services: ServiceAddresses, tmp_path: Path
) -> None:
    """A table whose schema changed during the snapshot is cleaned up, though more tables follow."""
    attempts = Attempts(services, tmp_path)
    source.run("create table z (id int primary key, note text); insert into z values (1, repeat('x', 9000))")
    attempts.fail(case.dsn, 2, "-C", "message.max.bytes=8000")
    source.run("delete from z; delete from t where id = 3")
    attempts.succeed(case.dsn, "-C", "message.max.bytes=8000")
    found = latest(decoded_avro(services, f"{attempts.name}.t"))
    assert sorted(found) == [(1,), (2,)]
