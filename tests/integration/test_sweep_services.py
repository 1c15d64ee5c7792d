"""Bad input that only a service can detect: one plain line, a hint, the exit code, nothing left behind.

All rows share one database and one role; each must leave slots, publications, topics and files as they were.
"""

import secrets
import socket
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from confluent_kafka.admin import AdminClient
from psycopg2 import sql

from bwtui.sandbox.sandbox import ServiceAddresses
from tests.attempts import Attempts, left
from tests.database import session
from tests.fix_sandbox import _connect, drop_database

pytestmark = pytest.mark.services

PASSWORD = "topsecret-4711"

#: Scripts that can't be tried, or that PostgreSQL refuses, and what the error names.
SCRIPTS = (
    *(("alter tabel t add x int", "alter tabel t"), ("selec 1", "selec"), ("create )", "syntax error")),
    *(("alter table nothing add x int", '"nothing" does not exist'), ("drop table nothing", '"nothing"')),
    *(("alter table orders drop column nothing", '"nothing"'), ("alter table orders add id int", '"id"')),
    *(("alter table orders add x nosuchtype", '"nosuchtype"'), ("create table orders (i int)", '"orders"')),
    *(("create table t (i int, i int)", '"i"'), ("create table nowhere.t (i int)", '"nowhere"')),
    *(
        ("create table t (i int primary key primary key)", "primary key"),
        ("create table t (i int", "syntax error"),
    ),
    *(
        ("begin; alter table orders add x int; commit", "contains transaction control"),
        ("rollback", "rollback"),
    ),
    *(("savepoint a", "savepoint a"), ("prepare transaction 'x'", "prepare transaction"), ("abort", "abort")),
    *(
        ("copy orders from stdin", "copies rows"),
        ("\\d orders", "a psql command"),
        ("\\i x.sql", "a psql command"),
    ),
    *(
        ("create index concurrently i on orders (note)", "can't run in a trial"),
        ("vacuum orders", "vacuum orders"),
    ),
    *(("create database x", "create database x"), ("alter system set work_mem = '1MB'", "alter system set")),
    *(
        ("select 'unclosed", "is not closed"),
        ('select "unclosed', "is not closed"),
        ("select $a$ x", "is not closed"),
    ),
    *(
        ("/* unclosed", "is not closed"),
        ("select 1/0", "division by zero"),
        ("select nothing()", "nothing()"),
    ),
    *(("select 'x'::int", "select"), ("insert into orders values (1, 'a', 'b')", "duplicate key")),
    *(
        ("insert into orders values (null, 'a', 'b')", "null value"),
        ("set no.such to 1; select 1 from x", '"x"'),
    ),
    *(
        ("alter table orders add constraint c check (id > 5)", "check constraint"),
        ("call nothing()", "nothing()"),
    ),
    *(
        ("create type t as enum ('a', 'a')", "duplicate key"),
        ("reindex table concurrently orders", "reindex table"),
    ),
    *(("drop schema pg_catalog", "pg_catalog"), ("alter table pg_class add x int", "pg_class")),
    *(("do $$ begin raise 'no'; end $$", "no"), ("lock table nothing", '"nothing"'), ("grant x to y", '"y"')),
)

#: Connections that fail, with the expected error; ``{…}`` is filled in.
CONNECTIONS = (
    ("postgresql://nobody_here:x@{host}/{database}", 4, ""),
    ("postgresql://{role}:wrong@{host}/{database}", 4, "password authentication failed"),
    ("postgresql://{role}@{host}/{database}", 4, "no password supplied"),
    ("postgresql://{role}:" + PASSWORD + "@{host}/no_such_database", 4, "no_such_database"),
    ("postgresql://{role}:" + PASSWORD + "@127.0.0.1:{closed}/{database}", 4, "Connection refused"),
    ("postgresql://{role}:" + PASSWORD + "@no-such-host.invalid/{database}", 4, "no-such-host.invalid"),
    ("postgresql://{role}:" + PASSWORD + "@{host}/{database}?sslmode=require", 4, "SSL"),
    ("postgresql://{role}:" + PASSWORD + "@{host}/{database}?no_such=1", 2, "connection string"),
    ("host=127.0.0.1 port=many dbname={database}", 2, "port"),
    ("host=127.0.0.1 password=" + PASSWORD + " port", 2, "connection string"),
    ("service=no_such_service", 4, "no_such_service"),
)
ASKING = (
    ("slots", "list"),
    ("slots", "drop", "shop", "--yes"),
    ("schema", "check", "-r", "{registry}"),
    ("verify", "--database", "-b", "{broker}", "-r", "{registry}"),
    ("connect", "--headless", "--json", "-s", "{name}", "-b", "{broker}", "-r", "{registry}"),
)

#: Requests that the services refuse, although the client may connect.
ASKED = (
    (("slots", "drop", "{name}", "--yes"), 2, "does not exist"),
    (("slots", "drop", "{name}"), 2, "does not exist"),
    (("verify", "--database", "-s", "{name}", "-b", "{broker}", "-r", "{registry}"), 2, "publication"),
    (
        ("verify", "--database", "--publication", "x", "-b", "{broker}", "-r", "{registry}"),
        2,
        "publication x does not exist",
    ),
    (("schema", "check", "-r", "http://127.0.0.1:{closed}"), 4, "can't reach the schema registry"),
    (("schema", "check", "-r", "{registry}/nowhere"), 4, "registry"),
    (("schema", "check", "-r", "{registry}", "--table", "nothing"), 2, "no table matches"),
    (("schema", "check", "-r", "http://{host}"), 4, "registry"),
    (("connect", "--table", "nothing"), 2, "no table matches"),
    (("connect", "--exclude-table", ".*"), 2, "no table matches"),
    (("connect", "-u", "-r", "http://127.0.0.1:{closed}"), 4, "can't reach the schema registry"),
    (("connect", "-u", "-r", "{registry}/nowhere"), 4, "registry"),
    (("connect", "-C", "sasl.mechanism=PLAIN", "-C", "security.protocol=sasl_plaintext"), 2, ""),
    (("connect",), 2, "public.unkeyed"),
)


@dataclass(frozen=True)
class World:
    """The database of all rows, and the values for their placeholders."""

    dsn: str
    names: dict[str, str]
    attempts: Attempts
    folder: Path

    def filled(self, text: str) -> str:
        """Return ``text`` with the names of the services in it."""
        for name, value in self.names.items():
            text = text.replace(f"{{{name}}}", value)
        return text

    def state(self) -> tuple[object, ...]:
        """Return everything that a command could leave behind."""
        broker = AdminClient({"bootstrap.servers": self.names["broker"]})
        # A relay's folder keeps its lock, its log and its final status.
        kept = {"engine.lock", "engine.log", "outcome.json", "state", self.names["name"]}
        files = {path for path in self.folder.rglob("*") if path.name not in kept}
        return left(self.dsn), set(broker.list_topics(timeout=30).topics), files


@pytest.fixture(scope="module")
def world(services: ServiceAddresses, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A database with a table of one row, one without a key, and a role that may only log in."""
    name = f"sweep_{secrets.token_hex(5)}"
    role = f"role_{name}"
    folder = tmp_path_factory.mktemp("sweep")
    dsn = urlsplit(services.postgres)._replace(path=f"/{name}").geturl()
    with (
        closing(_connect(services.postgres)) as connection,
        connection.cursor() as cursor,
        socket.socket() as taken,
    ):
        cursor.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
        cursor.execute(f"create role {role} login replication password '{PASSWORD}'")
        with session(dsn) as opened:
            opened.run("create table orders (id int primary key, note text, secret text)")
            opened.run("insert into orders values (1, 'a', 'b')")
            opened.run("create table unkeyed (i int)")
        taken.bind(("127.0.0.1", 0))
        parts = urlsplit(dsn)
        names = {
            "host": f"{parts.hostname}:{parts.port}",
            "database": name,
            "role": role,
            "closed": str(taken.getsockname()[1]),
            "broker": services.broker,
            "registry": services.schema_registry,
            "name": name,
        }
        yield World(dsn, names, Attempts(services, folder), folder)
        drop_database(connection, name)
        cursor.execute(f"drop role {role}")


def refuse(world: World, code: int, says: str, *args: str) -> None:
    """Run a command, and check that it is refused as expected and leaves nothing."""
    before = world.state()
    ended = world.attempts.command_here(*args)
    assert ended.code == code, ended.stderr
    told = [line for line in ended.stderr.splitlines() if not line.startswith("bwtui: looking at")]
    assert [line.partition(": ")[0] for line in told] == ["bwtui", "hint"], ended.stderr
    assert told[0].startswith("bwtui: error: ")
    assert says in told[0]
    assert "unexpected" not in told[0]
    assert len(told[1]) > len("hint: ") + 5
    assert PASSWORD not in ended.stdout + ended.stderr
    assert world.state() == before


@pytest.mark.parametrize(("script", "says"), SCRIPTS, ids=lambda one: one[:40])
@pytest.mark.variants(15)
def test_scripts(script: str, says: str, world: World) -> None:
    file = world.folder / "script.sql"
    file.write_text(script)
    try:
        given = ("schema", "check", "-r", world.names["registry"], "-d", world.dsn, "--ddl", str(file))
        refuse(world, 2, says, *given, "--exclude-table", ".*unkeyed")
    finally:
        file.unlink()


@pytest.mark.parametrize(("dsn", "code", "says"), CONNECTIONS, ids=lambda one: str(one)[:60])
@pytest.mark.parametrize("asking", ASKING, ids=lambda one: one[0] + " " + one[1])
@pytest.mark.variants(20)
def test_connections(dsn: str, code: int, says: str, asking: tuple[str, ...], world: World) -> None:
    refuse(world, code, says, *map(world.filled, asking), "-d", world.filled(dsn))


@pytest.mark.parametrize(
    ("args", "code", "says"), ASKED, ids=lambda one: " ".join(one) if isinstance(one, tuple) else str(one)
)
def test_what_is_asked_for_in_vain(args: tuple[str, ...], code: int, says: str, world: World) -> None:
    given = list(map(world.filled, args))
    if given[0] == "connect":
        ends = [("-b", world.names["broker"]), ("-r", world.names["registry"]), ("-s", world.names["name"])]
        given += ["--headless", "--json", "--until-caught-up"]
        given += [part for option, value in ends if option not in given for part in (option, value)]
    refuse(world, code, says, *given, "-d", world.dsn)
