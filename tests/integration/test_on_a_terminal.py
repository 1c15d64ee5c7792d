"""Real commands on a terminal over a database with hostile names and values: its output, byte by byte."""

import itertools
import json
import os
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import quote, urlsplit

import psycopg2
import pytest
from confluent_kafka import Producer
from psycopg2 import sql

from bwtui.sandbox.sandbox import ServiceAddresses
from tests.attempts import Attempts
from tests.database import session
from tests.fix_sandbox import drop_database
from tests.hostile import STORABLE, harm
from tests.integration.test_verify_database import relaying
from tests.raw_topic import raw_records
from tests.terminal import SEQUENCES, Terminal, parts, program, sequences

pytestmark = pytest.mark.services

#: Names have at most 63 bytes.
NAMES = {n: text.encode()[:40].decode("utf-8", "ignore") for n, text in enumerate(STORABLE.values())}
#: Sequences that no terminal may receive: the beginnings of harmful ones.
RAW = ("\x1b[2J", "\x1b]52", "\x1b]0", "\x9b", "\u202e", "\u200b", "\x7f", "\x07")


@pytest.fixture
def hostile(services: ServiceAddresses) -> Iterator[str]:
    """A database with such a name, such tables, columns and rows; one row is large."""
    name = f"{NAMES[0]}{os.getpid()}"
    with closing(psycopg2.connect(services.postgres)) as connection:
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
        dsn = urlsplit(services.postgres)._replace(path=f"/{quote(name, safe='')}").geturl()
        try:
            _fill(dsn)
            yield dsn
        finally:
            drop_database(connection, name)


def _fill(dsn: str) -> None:
    with closing(psycopg2.connect(dsn)) as connection, connection, connection.cursor() as cursor:
        for number in (0, 6, 11):
            table, key, value = (sql.Identifier(NAMES[(number + n) % len(NAMES)]) for n in range(3))
            cursor.execute(
                sql.SQL("create table {} ({} text primary key, {} text)").format(table, key, value)
            )
            for text in STORABLE.values():
                cursor.execute(sql.SQL("insert into {} values (%s, %s)").format(table), (text, text))
        cursor.execute("create table large (id int primary key, value text)")
        cursor.execute("insert into large values (1, repeat(E'\\x1b[2J', 2500000))")


def _tamper(attempts: Attempts) -> None:
    """Write records into the topics, so that an audit finds rows that differ and rows that are missing."""
    with closing(Producer({"bootstrap.servers": attempts.services.broker})) as producer:
        topics = [
            topic for topic in producer.list_topics(timeout=30).topics if topic.startswith(attempts.name)
        ]
        assert len(topics) == 3
        for (topic, partition), records in raw_records(attempts.services, topics).items():
            for one, other in itertools.pairwise(records):
                producer.produce(topic, other.value(), one.key(), partition)
            for gone in records[-1:]:
                producer.produce(topic, None, gone.key(), partition)
        assert not producer.flush(30)


def check(got: str, what: str) -> None:
    """Check that the output has only text, line breaks and allowed sequences."""
    rest = SEQUENCES.sub("", got)
    for raw in RAW:
        at = rest.find(raw)
        assert at < 0, (what, rest[max(at - 60, 0) : at + 20])
    assert harm(rest, "\r\n") == [], what


def test_commands(hostile: str, attempts: Attempts, tmp_path: Path) -> None:
    recording, given = tmp_path / "recording", ["-s", attempts.name, "-d", hostile]
    kafka = ["-b", attempts.services.broker, "-r", attempts.services.schema_registry]
    bad = STORABLE["clears the screen"]
    recorded = ["-d", hostile, "-s", f"{attempts.name}_r"]
    export = ["recording", "export", str(recording), "--format"]
    topics = ["-p", attempts.name, "--exclude-table", "public.large"]
    (tmp_path / "bad.sql").write_text(f'alter table "{bad}" {bad}')
    (tmp_path / "bad.toml").write_text(f"topic-prefix = {json.dumps(bad)}\n")
    commands = {
        "connect": ["connect", "--headless", "--until-caught-up", *given, *kafka, *topics],
        "record": ["record", "-o", str(recording), "--until-caught-up", *recorded],
        "doctor": ["doctor", *given, *kafka, *topics],
        "slots list": ["slots", "list", "-d", hostile],
        "schema check": ["schema", "check", *given, "-r", kafka[3], *topics],
        "schema check --ddl": ["schema", "check", *given, "-r", kafka[3], *topics, "--ddl", "bad.sql"],
        "recording info": ["recording", "info", str(recording)],
        "recording info --json": ["recording", "info", str(recording), "--json"],
        "recording check": ["recording", "check", str(recording)],
        "export jsonl": [*export, "jsonl", "--table", "public.[^l].*"],
        "a query": [*export, "jsonl", "--where", f"after.{bad} = ["],
        "config validate": ["config", "validate", "bad.toml"],
        "no such database": ["doctor", "-d", hostile + "x", *kafka],
        "no such recording": ["recording", "info", f"{tmp_path}/{bad}"],
        "no such relay": ["status", bad],
        "no such option": ["status", f"--{bad}"],
        "slots list --json": ["slots", "list", "-d", hostile, "--json"],
    }  # fmt: skip
    found = run(attempts, tmp_path, list(commands.values()))
    audit = ["verify", "--database", *given, *kafka, *topics, "--show-values"]
    commands |= {"verify": audit, "verify --json": [*audit, "--json"]}
    with session(hostile) as source, relaying(attempts, hostile, source, *topics[2:]):
        _tamper(attempts)
        found += run(attempts, tmp_path, [audit, [*audit, "--json", "--html", "page.html"]])
    print(f"\n{'command':24} {'exit':>4} {'bytes':>9} {'escapes shown':>13} {'raw':>3}  sequences")
    for (name, _), (got, code) in zip(commands.items(), found, strict=True):
        told = " ".join(f"{kind}×{count}" for kind, count in sequences(got).items())
        shown, raw = len(re.findall(r"\\(x|u|U)[0-9a-f]{2}", got)), len(harm(SEQUENCES.sub("", got), "\r\n"))
        print(f"{name:24} {code:>4} {len(got.encode()):>9,} {shown:>13,} {raw:>3}  {told}")
    codes = dict(zip(commands, (code for _, code in found), strict=True))
    assert {name: code for name, code in codes.items() if code} == {
        "schema check --ddl": 2, "a query": 2, "config validate": 2, "no such database": 4,
        "no such recording": 2, "no such relay": 2, "no such option": 2, "verify": 1, "verify --json": 1,
    }  # fmt: skip
    for (name, _), (got, _code) in zip(commands.items(), found, strict=True):
        check(got, name)
    printed = dict(zip(commands, (got for got, _ in found), strict=True))
    assert r"\x1b[2J\x1b[H\x1b[32mclean: 7 messages" in printed["verify"]
    assert json.loads(printed["verify --json"].splitlines()[-1])["verdict"] == "anomalies"
    exact = [json.loads(line) for line in printed["export jsonl"].splitlines() if line.startswith("{")]
    assert {text for one in exact for text in (one["after"] or {}).values()} >= set(STORABLE.values())
    assert harm((tmp_path / "page.html").read_text()) == []
    check_screens(attempts, recording, tmp_path)


def run(attempts: Attempts, folder: Path, commands: list[list[str]]) -> list[tuple[str, int]]:
    """Run commands on a terminal."""
    terminal = Terminal()
    process = terminal.start(program(json.dumps(commands)), attempts.environment, folder)
    terminal.read_to_the_end(process)
    return list(parts(terminal.text))


def check_screens(attempts: Attempts, recording: Path, folder: Path) -> None:
    """Go through a recording's screens."""
    terminal = Terminal()
    process = terminal.start(["-m", "bwtui", "open", str(recording)], attempts.environment, folder)
    for keys, seen in (
        ("", "RECORDING"),
        ("2", "Op"),
        ("T", "xid"),
        ("\x1b", ""),
        ("x", ""),
        ("1", ""),
        ("y", ""),
    ):
        terminal.type(keys)
        terminal.read_until(lambda text, seen=seen: seen in text)  # type: ignore[misc]
    terminal.type("q")
    assert terminal.read_to_the_end(process) == 0
    sent = re.sub(r"\x1b\]52;c;[A-Za-z0-9+/=]*\x07", "", terminal.text, count=1)
    told = " ".join(f"{kind}×{count}" for kind, count in sequences(sent).items())
    print(f"{'open':24} {0:>4} {len(sent.encode()):>9,}  {told}")
    assert len(sent) < len(terminal.text), "what was copied"
    check(sent, "open")
