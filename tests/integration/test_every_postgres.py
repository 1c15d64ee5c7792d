"""A few tables through a whole relay on every supported PostgreSQL, not only the default one.

The versions differ in their catalog, and in what pgoutput omits. With BWTUI_TEST_POSTGRES=15, `make test`
runs everything on one version.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from bwtui.errors import RefusedError
from bwtui.packages.lockfile import MAJORS, postgres_group
from bwtui.sandbox.sandbox import ServiceAddresses
from tests.attempts import Attempts
from tests.database import session
from tests.decoded_topic import decoded_avro, latest, of_key
from tests.fix_sandbox import MAJOR
from tests.second_postgres import SecondPostgres

pytestmark = pytest.mark.services

_TABLES = """
create type mood as enum ('sad', 'happy');
create table kinds (id int generated always as identity primary key,
    half int generated always as (n / 2) stored, n int, price numeric(10,2),
    feeling mood, words text[], at timestamptz, document jsonb);
create table large (id int primary key, body text, n int);
create table parts (id int, day date, primary key (id, day)) partition by range (day);
create table parts_old partition of parts for values from ('2000-01-01') to ('2020-01-01');
create table parts_new partition of parts for values from ('2020-01-01') to ('2040-01-01');
alter table large alter body set storage external;
"""
_ROWS = """
insert into kinds (n, price, feeling, words, at, document)
values (4, 1.50, 'sad', '{a,NULL}', '2020-01-01 00:00:00+00', '{"a": 1}');
insert into large values (1, repeat('x', 100000), 1);
insert into parts values (1, '2010-01-01'), (2, '2030-01-01')
"""
_CHANGES = """
insert into kinds (n, price, feeling, words, at, document)
values (6, -0.01, 'happy', '{}', 'infinity', 'null');
update kinds set n = 8 where n = 4;
begin; update large set n = 2; prepare transaction 'kept';
begin; insert into parts values (3, '2010-01-01'); prepare transaction 'dropped';
update parts set day = '2025-01-01' where id = 1;
rollback prepared 'dropped';
commit prepared 'kept';
alter table kinds add column later text default 'now';
insert into kinds (n) values (10);
delete from kinds where n = 6
"""


def _others() -> Iterator[int]:
    for major in MAJORS:
        if major != MAJOR:
            # Not every machine has every version.
            with suppress(RefusedError):
                postgres_group(major)
                yield major


@pytest.mark.parametrize(
    "major",
    [pytest.param(each, marks=pytest.mark.long if at else ()) for at, each in enumerate(sorted(_others()))],
)
def test_a_relay(major: int, services: ServiceAddresses, tmp_path: Path) -> None:
    server = SecondPostgres(major)
    try:
        server.start(wal_level="logical", max_prepared_transactions="2")
        attempts = Attempts(replace(services, postgres=server.dsn), tmp_path)
        with session(server.dsn) as opened:
            assert opened.connection.server_version // 10_000 == major
            opened.run(_TABLES)
            opened.run(_ROWS)
            attempts.succeed(server.dsn)
            for statement in _CHANGES.split(";"):
                opened.run(statement)
        attempts.succeed(server.dsn)
    finally:
        server.remove()
    kinds = decoded_avro(services, f"{attempts.name}.kinds")
    first = {"id": 1, "n": 4, "price": "1.50", "feeling": "sad", "words": ["a", None], "document": '{"a": 1}'}
    assert [shown(row) for row in of_key(kinds, 1)] == [first, first | {"n": 8}]
    assert [row is None for row in of_key(kinds, 2)] == [False, True]
    assert latest(kinds)[3,]["later"] == "now"
    assert "half" not in latest(kinds)[3,]
    large = of_key(decoded_avro(services, f"{attempts.name}.large"), 1)
    assert [(len(row["body"]), row["n"]) for row in large if row] == [(100_000, 1), (100_000, 2)]
    parts = latest(decoded_avro(services, f"{attempts.name}.parts"))
    assert sorted((row["id"], row["day"].isoformat()) for row in parts.values()) == [
        (1, "2025-01-01"),
        (2, "2030-01-01"),
    ]


def shown(row: dict[str, object] | None) -> dict[str, object]:
    """Return a row in the form that is compared."""
    assert row is not None
    return {
        name: str(value) if name == "price" else value
        for name, value in row.items()
        if name not in ("at", "later", "__escaped")
    }
