"""``bwtui doctor``: settings that are not wrong, but may cause trouble later."""

import json
from pathlib import Path
from typing import Any

import pytest

from bwtui.sandbox.sandbox import ServiceAddresses
from tests.attempts import Attempts
from tests.database import Session


@pytest.fixture
def attempts(services: ServiceAddresses, tmp_path: Path) -> Attempts:
    """Runs of bwtui, with a separate state folder."""
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
    source.run("create table whole (id int); alter table whole replica identity full")
    source.run("create table nothing (id int primary key)")
    source.run("alter table nothing replica identity nothing")
    source.run("create table large (id int primary key, body text)")
    source.run("alter table large alter body set storage external")
    source.run("insert into large values (1, repeat('x', 100000))")
    found = warnings(attempts, database, "-u")
    tables = {name for name in found if name.startswith("table ")}
    assert tables == {f"table public.{name}" for name in ("unkeyed", "whole", "nothing", "large")}
    messages = {name: found[name]["message"] for name in tables}
    assert messages["table public.unkeyed"].endswith("; updates and deletes are not captured")
    assert messages["table public.whole"].endswith("no defined order; deletes are not captured")
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
    # A setting of the role's sessions, which would also end the relay's sessions.
    quiet = f"{database}?options=-c%20wal_sender_timeout%3D0"
    assert "wal_sender_timeout" in warnings(attempts, quiet)


def test_without_colour_and_json(attempts: Attempts, database: str, source: Session) -> None:
    source.run("create table fine (id int primary key)")
    services = attempts.services
    ended = attempts.command("doctor", "-d", database, "-b", services.broker, "-r", services.schema_registry)
    assert ended.code == 0
    assert "  !   max_slot_wal_keep_size: " in ended.stdout
    assert "\x1b" not in ended.stdout


def test_a_running_relay_is_judged_with_its_own_settings(
    attempts: Attempts, database: str, source: Session
) -> None:
    """Its slot is in use, by itself; a different consumer of the slot would still be reported."""
    source.run("create table fine (id int primary key); create table gone (id int primary key)")
    with attempts.start(database) as relay:
        try:
            assert relay.stdout is not None
            for line in relay.stdout:
                if json.loads(line)["state"] == "streaming":
                    break
            ended = attempts.command("doctor", "--relay", attempts.name)
            assert ended.code == 0, ended.stdout
            assert f"ok  slot is free: relay {attempts.name} uses it" in ended.stdout
            assert ended.stdout.endswith(f"relay {attempts.name} meets all prerequisites\n")
            ended = attempts.command("doctor", "--relay", attempts.name, "-d", database)
            assert (ended.code, "can't be used with --relay" in ended.stderr) == (2, True)
            # The other commands name the relay that uses the slot.
            named = f"slot {attempts.name} is in use by relay {attempts.name} on this machine"
            free = failures(attempts, database)[0]["slot is free"]
            assert (free["message"], free["hint"]) == (named, f"run 'bwtui stop {attempts.name}' first")
            refused = attempts.command("slots", "drop", attempts.name, "-d", database, "--yes")
            assert (refused.code, named in refused.stderr) == (2, True)
            second = ("-s", attempts.name, "--name", f"{attempts.name}2", "-p", "second", "--headless")
            ends = ("-d", database, "-b", attempts.services.broker, "-r", attempts.services.schema_registry)
            refused = attempts.command("connect", *ends, *second)
            assert (refused.code, named in refused.stderr) == (2, True), refused.stderr
            source.run("drop table gone")
            for line in relay.stdout:
                if json.loads(line)["tables"]["public.gone"]["notes"]:
                    break
            assert "public.gone: it was dropped" in attempts.command("status", attempts.name).stdout
            source.run("alter publication " + f'"bwtui_{attempts.name}" drop table fine')
            ended = attempts.command("doctor", "--relay", attempts.name)
            assert "FAIL  table public.fine: is not in the publication" in ended.stdout
        finally:
            relay.terminate()
            relay.communicate(timeout=60)
    ended = attempts.command("doctor", "--relay", attempts.name)
    assert (ended.code, ended.stdout) == (4, "")


def failures(attempts: Attempts, database: str, *args: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the failed checks and the skipped ones, by name."""
    services = attempts.services
    ends = ["-d", database, "-b", services.broker, "-r", services.schema_registry, "-s", attempts.name]
    found = json.loads(attempts.command("doctor", *ends, "--json", *args).stdout)
    checks = {one["name"]: one for one in found["checks"]}
    warnings = {one["name"] for one in found["warnings"] if one["name"].startswith("table ")}
    assert not warnings, "what a check refuses is not relayed"
    return tuple(
        {name: one for name, one in checks.items() if one["result"] == result}
        for result in ("failed", "skipped")
    )  # type: ignore[return-value]


def test_one_cause_is_one_failure(attempts: Attempts, database: str, source: Session) -> None:
    source.run("create table log (msg text)")
    source.run("create table late (id int primary key deferrable)")
    failed, skipped = failures(attempts, database, "--table", "nosuch")
    assert failed.keys() == {"tables are keyed"}
    assert skipped["keys are published"]["message"] == "not checked, see tables are keyed"
    failed, _ = failures(attempts, database)
    assert failed.keys() == {"tables are keyed"}
    source.run("create table t1 (id int primary key); create table t2 (id int primary key)")
    source.run("create table t3 (id int primary key); create table log2 (msg text)")
    source.run(f'create publication "bwtui_{attempts.name}" for table t1')
    failed, _ = failures(attempts, database)
    assert failed.keys() == {
        "table public.late",
        "tables public.log, public.log2",
        "tables public.t2, public.t3",
    }
    keyless, keyed = failed["tables public.log, public.log2"], failed["tables public.t2, public.t3"]
    assert (keyed["message"], keyless["message"]) == ("are not in the publication",) * 2
    assert "leave them out with --exclude-table 'public.log|public.log2'" in keyless["hint"]
    source.run(keyed["hint"].removeprefix("run: "))
    failed, _ = failures(attempts, database, "--exclude-table", r"public\.log.*")
    assert failed.keys() == {"table public.late"}
