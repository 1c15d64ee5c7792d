"""``bwtui doctor``: what is not wrong, but may hurt later."""

import json
from pathlib import Path
from typing import Any

import pytest

from bwtui.sandbox.sandbox import ServiceAddresses
from tests.attempts import Attempts
from tests.database import Session


@pytest.fixture
def attempts(services: ServiceAddresses, tmp_path: Path) -> Attempts:
    """Runs of bwtui, with a state folder of the test's own."""
    return Attempts(services, tmp_path)


def warnings(attempts: Attempts, database: str, *args: str) -> dict[str, Any]:
    """Return the warnings by name; they never change the exit code."""
    services = attempts.services
    ends = ["-d", database, "-b", services.broker, "-r", services.schema_registry]
    ended = attempts.command("doctor", *ends, "--json", *args)
    assert ended.code == 0, ended.stderr
    return {found["name"]: found for found in json.loads(ended.stdout)["warnings"]}


def test_tables(attempts: Attempts, database: str, source: Session) -> None:
    source.run("create table fine (id int primary key)")
    source.run("create table unkeyed (id int)")
    source.run("create table nothing (id int primary key)")
    source.run("alter table nothing replica identity nothing")
    source.run("create table large (id int primary key, body text)")
    source.run("alter table large alter body set storage external")
    source.run("insert into large values (1, repeat('x', 100000))")
    found = warnings(attempts, database, "-u")
    tables = {name for name in found if name.startswith("table ")}
    assert tables == {"table public.unkeyed", "table public.nothing", "table public.large"}
    hints = {name: found[name]["hint"] for name in tables}
    assert hints["table public.nothing"] == 'run: ALTER TABLE "public"."nothing" REPLICA IDENTITY DEFAULT;'
    assert hints["table public.large"] == 'run: ALTER TABLE "public"."large" REPLICA IDENTITY FULL;'
    source.run(hints["table public.large"].removeprefix("run: "))
    source.run(hints["table public.nothing"].removeprefix("run: "))
    assert "table public.large" not in warnings(attempts, database, "-u")


def test_partitioned_tables(attempts: Attempts, database: str, source: Session) -> None:
    def part(name: str, columns: str) -> None:
        source.run(f"create table {name} ({columns}) partition by list (id)")
        source.run(f"create table {name}_1 partition of {name} for values in (1)")
        source.run(f"create table {name}_2 partition of {name} for values in (2)")

    part("unkeyed", "id int")
    part("keyed", "id int primary key")
    part("bare", "id int primary key")
    source.run("alter table bare_2 replica identity nothing")
    found = {name: one for name, one in warnings(attempts, database, "-u").items() if "table " in name}
    assert {name: one["message"].split(":")[0] for name, one in found.items()} == {
        "table public.unkeyed": "no key",
        "table public.bare": "REPLICA IDENTITY NOTHING",
    }
    hint = found["table public.bare"]["hint"]
    assert hint == 'run: ALTER TABLE "public"."bare_2" REPLICA IDENTITY DEFAULT;'
    source.run(hint.removeprefix("run: "))
    assert "table public.bare" not in warnings(attempts, database, "-u")


def test_settings(attempts: Attempts, database: str, source: Session) -> None:
    source.run("create table fine (id int primary key)")
    found = warnings(attempts, database)
    assert "without a limit" in found["max_slot_wal_keep_size"]["message"]
    assert "wal_sender_timeout" not in found
    # A setting of the role's sessions, which is how the relay's own would be ended too.
    quiet = f"{database}?options=-c%20wal_sender_timeout%3D0"
    assert "wal_sender_timeout" in warnings(attempts, quiet)


def test_without_colour_and_json(attempts: Attempts, database: str, source: Session) -> None:
    source.run("create table fine (id int primary key)")
    services = attempts.services
    ended = attempts.command("doctor", "-d", database, "-b", services.broker, "-r", services.schema_registry)
    assert ended.code == 0
    assert "  !   max_slot_wal_keep_size: " in ended.stdout
    assert "\x1b" not in ended.stdout
