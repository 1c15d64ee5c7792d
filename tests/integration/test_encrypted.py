"""Relay, recording, audit, replay and doctor with TLS and passwords."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from bwtui.sandbox.sandbox import ServiceAddresses
from tests.attempts import Attempts
from tests.database import session
from tests.integration.test_verify_database import relaying, verify
from tests.raw_topic import raw_topics
from tests.second_postgres import SecondPostgres
from tests.secure_services import PASSWORD, USER, Authority, secure_kafka, secure_registry
from tests.waiting import eventually

pytestmark = pytest.mark.services

_TABLE = """
create table orders (id int primary key, note text);
insert into orders select i, 'note ' || i from generate_series(1, 500) i
"""


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def kafka(authority: Authority) -> Iterator[dict[str, str]]:
    """Client settings that the secure broker accepts."""
    with secure_kafka(authority) as client:
        yield client


@pytest.fixture(scope="module")
def dsn(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A PostgreSQL that rejects connections without TLS."""
    rules = tmp_path_factory.mktemp("rules") / "pg_hba.conf"
    rules.write_text("hostssl all all all trust\nhostssl replication all all trust\n")
    server = SecondPostgres()
    server.start(
        wal_level="logical",
        hba_file=server.given(rules),
        ssl="on",
        ssl_key_file=server.given(authority.key_file),
        ssl_cert_file=server.given(authority.certificate_file),
    )
    yield f"{server.dsn}?sslmode=verify-full&sslrootcert={authority.file}"
    server.remove()


@pytest.fixture
def attempts(
    authority: Authority, kafka: dict[str, str], dsn: str, services: ServiceAddresses, tmp_path: Path
) -> Iterator[Attempts]:
    """Runs that find passwords and certificates in bwtui.toml, as a user's do."""
    with secure_registry(authority, services.schema_registry) as registry:
        shut = ServiceAddresses(dsn, kafka["bootstrap.servers"], registry)
        write_settings(tmp_path, kafka, authority)
        yield Attempts(shut, tmp_path)


def write_settings(
    folder: Path, kafka: dict[str, str], authority: Authority, *, registry: dict[str, str] | None = None
) -> None:
    """Write the credentials; ``registry`` replaces some of the registry's settings."""
    known = {"ssl.ca.location": str(authority.file), "basic.auth.user.info": f"{USER}:{PASSWORD}"}
    tables = {
        "kafka": {key: value for key, value in kafka.items() if key != "bootstrap.servers"},
        "registry": known | (registry or {}),
    }
    lines = []
    for name, pairs in tables.items():
        lines += [f"[{name}]", *(f"{json.dumps(key)} = {json.dumps(value)}" for key, value in pairs.items())]
    (folder / "bwtui.toml").write_text("\n".join(lines) + "\n")
    (folder / "bwtui.toml").chmod(0o600)


@pytest.mark.usefixtures("shared_spark")
def test_from_the_slot_to_the_audit(attempts: Attempts, dsn: str, tmp_path: Path) -> None:
    folder = tmp_path / "recorded"
    ends = ["-b", attempts.services.broker, "-r", attempts.services.schema_registry]
    with session(dsn) as opened:
        opened.run(_TABLE)
        doctor = attempts.command("doctor", "-d", dsn, *ends)
        assert doctor.code == 0, doctor.stdout
        attempts.succeed(dsn, "--headers", "--record", str(folder))
        opened.run("update orders set note = 'new' where id <= 50")
    attempts.succeed(dsn, "--headers", "--record", str(folder))
    told = attempts.command_here("verify", str(folder), *ends, "--json")
    assert (told.code, told.stderr) == (0, "")
    assert json.loads(told.stdout)["actual"] == 550
    replayed = attempts.command_here("replay", str(folder), *ends, "--topic-prefix", "again", "--yes")
    assert replayed.code == 0, replayed.stderr
    with session(dsn) as opened, relaying(attempts, dsn, opened, "--headers"):
        compared, report = verify(attempts, dsn)
    assert (compared.code, report["verdict"]) == (0, "clean"), compared.stderr
    for path in (one for place in (folder, attempts.state) for one in place.rglob("*") if one.is_file()):
        assert PASSWORD.encode() not in path.read_bytes(), path


WRONG = {
    "a wrong password": ("sasl.password", "a wrong one", "Kafka rejects the client: .*Authentication failed"),
    "no TLS": ("security.protocol", "SASL_PLAINTEXT", "Kafka at .* closes every connection"),
    "a strange certificate": (
        "ssl.ca.location",
        "stranger",
        "Kafka rejects the client: .*certificate verify",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_kafka_does_not_let_us_in(
    attempts: Attempts, dsn: str, kafka: dict[str, str], authority: Authority, tmp_path: Path, what: str
) -> None:
    key, value, expected = WRONG[what]
    if value == "stranger":
        value = str(Authority(tmp_path).file)
    write_settings(tmp_path, kafka | {key: value}, authority)
    error, hint = attempts.fail(dsn, 4)
    assert re.match(expected, error)
    assert "in -C" in hint
    assert PASSWORD not in error and value not in error


def test_the_registry_does_not_let_us_in(
    attempts: Attempts, dsn: str, kafka: dict[str, str], authority: Authority, tmp_path: Path
) -> None:
    write_settings(tmp_path, kafka, authority, registry={"basic.auth.user.info": f"{USER}:wrong"})
    error, _ = attempts.fail(dsn, 4)
    assert "schema registry" in error and "Unauthorized" in error
    write_settings(tmp_path, kafka, authority, registry={"ssl.ca.location": str(Authority(tmp_path).file)})
    error, _ = attempts.fail(dsn, 4)
    assert "schema registry" in error and "certificate verify failed" in error


@contextmanager
def denied(kafka: dict[str, str], topic: str, operation: AclOperation) -> Iterator[None]:
    """Revoke a right of the relay's user for a while."""
    admin = AdminClient({**kafka})
    name = (ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, f"User:{USER}", "*")
    allowed = AclBinding(*name, AclOperation.ALL, AclPermissionType.ALLOW)
    rule = (*name, operation, AclPermissionType.DENY)
    for change in admin.create_acls([allowed, AclBinding(*rule)]).values():
        change.result(30)
    try:
        yield
    finally:
        for found in admin.delete_acls([AclBindingFilter(*rule)]).values():
            found.result(30)


def test_a_right_that_is_missing_is_no_rows_fault(
    attempts: Attempts, dsn: str, kafka: dict[str, str]
) -> None:
    topic = f"{attempts.name}.guarded"
    with session(dsn) as opened:
        opened.run("create table guarded (id int primary key)")
        attempts.succeed(dsn, "--table", "guarded")
        with denied(kafka, topic, AclOperation.WRITE):
            opened.run("insert into guarded select generate_series(1, 50)")
            error, hint = attempts.fail(dsn, 4, "--table", "guarded", "-e", "log")
            assert (
                f"Kafka rejects every message for topic {topic}: " in error
                and "authorization failed" in error
            )
            assert "ACL" in hint
            assert not list(attempts.state.rglob("dead-letters.jsonl"))
        counted = attempts.succeed(dsn, "--table", "guarded", "-e", "log")
        assert counted.status["tables"]["public.guarded"]["inserts"] == 50
        # Other tests count the rows of the whole database.
        opened.run("drop table guarded")


def _take_rows(attempts: Attempts, kafka: dict[str, str], topic: str, keys: set[int]) -> None:
    """Write tombstones after the newest rows of some keys, as another producer would."""
    own = {name.replace(".", "_"): value for name, value in kafka.items()}
    messages = raw_topics(attempts.services, [topic], **own)[topic]
    producer = Producer({**kafka, "partitioner": "murmur2_random"})
    for key, _ in messages:
        if key is not None and json.loads(key)["id"] in keys:
            producer.produce(topic, None, key)
    assert producer.flush(30) == 0


_ASKED = """
create table guarded (id int primary key); insert into guarded select generate_series(1, 60000);
create table open (id int primary key)
"""


@pytest.mark.long
def test_a_right_that_goes_while_rows_are_sent_again(
    attempts: Attempts, dsn: str, kafka: dict[str, str]
) -> None:
    """A rejected snapshot and a rejected repair.

    Each reports it, the stream continues, and nothing is lost.
    """
    topic, relay = f"{attempts.name}.guarded", ("--relay", attempts.name)
    shut = f"Kafka rejects every message for topic {topic}: "
    with session(dsn) as opened:
        opened.run(_ASKED)
        with relaying(attempts, dsn, opened, "-f", "json", "--table", "guarded|open"):
            asked = json.loads(attempts.command("snapshot", "guarded", *relay, "--no-wait", "--json").stdout)[
                "id"
            ]
            assert attempts.command("snapshot", "--pause", asked, *relay).code == 0
            _take_rows(attempts, kafka, topic, {1, 2, 3})
            with denied(kafka, topic, AclOperation.WRITE):
                attempts.command("snapshot", "--resume", asked, *relay)
                told = eventually("the request fails", lambda: _over(attempts, asked))
                assert told["state"] == "failed"
                assert shut in told["error"] and "ACL" in told["hint"]
                ended = attempts.command("repair", *relay, "--yes")
                assert ended.code == 1, ended.stderr
                assert f"note: public.guarded: {shut}" in ended.stdout
                opened.run("insert into open select generate_series(1, 50)")
                eventually("the stream goes on", lambda: _sent(attempts)["public.open"]["inserts"] == 50)
            with denied(kafka, topic, AclOperation.READ):
                ended = attempts.command("repair", *relay, "--yes")
                assert ended.code == 4, ended.stdout
                assert ended.stderr.count("bwtui: error: ") == 1 and topic in ended.stderr
                assert "Traceback" not in ended.stderr and "ACL" in ended.stderr
            ended = attempts.command("repair", *relay, "--yes", "--json")
            assert ended.code == 0, ended.stderr
            done = json.loads(ended.stdout)
            assert (done["verdict"], done["rows"], done["tombstones"]) == ("clean", 3, 0)
            assert not list(attempts.state.rglob("dead-letters.jsonl"))
        opened.run("drop table guarded, open")


def _over(attempts: Attempts, id: str) -> dict[str, Any] | None:
    listed = attempts.command("snapshot", "--status", "--json", "--relay", attempts.name).stdout
    [told] = [one for one in map(json.loads, listed.splitlines()) if one["id"] == id]
    return told if told["ended"] else None


def _sent(attempts: Attempts) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(attempts.command("status", attempts.name, "--json").stdout)["tables"]
    return found


@pytest.mark.long
def test_a_right_that_goes_while_a_slot_is_healed(
    attempts: Attempts, dsn: str, kafka: dict[str, str]
) -> None:
    """The heal stays pending, gives the reason, and is done once the right is granted again."""
    topic = f"{attempts.name}.guarded"
    options = ("-f", "json", "--table", "guarded", "--heal")
    with session(dsn) as opened:
        opened.run(
            "create table guarded (id int primary key); insert into guarded select generate_series(1, 50)"
        )
        attempts.succeed(dsn, *options)
        opened.run("insert into guarded select generate_series(51, 60)")
        opened.run(f"select pg_drop_replication_slot('{attempts.name}')")
        with denied(kafka, topic, AclOperation.WRITE), relaying(attempts, dsn, opened, *options):
            heal = eventually(
                "a reason", lambda: _heal(attempts, f"rejects every message for topic {topic}"), 120
            )
            assert heal["lsn"]
        with relaying(attempts, dsn, opened, *options):
            eventually("it is healed", lambda: not _heal(attempts), 120)
            ended = attempts.command("verify", "--database", "--relay", attempts.name)
            assert ended.code == 0, ended.stdout
        opened.run("drop table guarded")


def _heal(attempts: Attempts, says: str = "") -> dict[str, Any] | None:
    told = json.loads(attempts.command("status", attempts.name, "--json").stdout)
    heal: dict[str, Any] | None = told["heal"]
    return heal if says in json.dumps([heal, told["errors"], told.get("backfills")]) else None


@pytest.mark.parametrize("table", ["kafka", "registry"])
def test_a_file_that_is_not_there(
    attempts: Attempts, dsn: str, kafka: dict[str, str], authority: Authority, tmp_path: Path, table: str
) -> None:
    missing = {"ssl.ca.location": str(tmp_path / "nowhere.pem")}
    if table == "kafka":
        write_settings(tmp_path, kafka | missing, authority)
    else:
        write_settings(tmp_path, kafka, authority, registry=missing)
    error, _ = attempts.fail(dsn, 2)
    assert "ssl.ca.location" in error and error.endswith("nowhere.pem: No such file or directory")
    validated = attempts.command("config", "validate")
    assert validated.code == 2 and "nowhere.pem" in validated.stderr
