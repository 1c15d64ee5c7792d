"""``bwtui snapshot`` on a real relay: requests that are refused at once, and the effects of a kill."""

import json
from typing import Any

import pytest

from bwtui.errors import ConnectionFailed, RefusedError
from bwtui.model.backfill import BackfillRequest
from bwtui.relay.process.control import send_again
from bwtui.source.present_rows import check_condition
from tests.attempts import Attempts, Ended
from tests.database import Session, session
from tests.integration.test_verify_database import relaying
from tests.waiting import eventually

pytestmark = pytest.mark.services

CONDITIONS = (
    "id > 5",
    "(id > 5) or (note is null)",
    "id > 5 -- up to here",
    "id > 5 /* not all */",
    "note = $$;)$$ or note = E'\\')'",
    "id in (select id from public.orders where id < 3)",
    "case when id > 5 then true end",
    "null",
    "note ~ 'é'",
)
REFUSED = (
    ("", "is empty"),
    (" \n ", "is empty"),
    ("-- nothing", "syntax error"),
    ("id > 5\0", "is empty"),
    ("id > 5 or '" + "x" * 10_000 + "' = note", "longer than"),
    ("id", "must be type boolean"),
    ("id, id", "must be type boolean"),
    ("nothing > 5", 'column "nothing" does not exist'),
    ("nothing(id)", "function nothing.integer. does not exist"),
    ("id > 5; drop table orders", "syntax error"),
    ("id > 5); drop table orders; --", "syntax error"),
    ("id > 5) or (id < 3", "syntax error"),
    ("id > 5) union all select from (select 1", "syntax error"),
    ("id > 5) and exists (select from public.orders", "syntax error"),
    ("id > 5 then true when id < 3", "syntax error"),
    ("true then true end or case when true", "syntax error"),
    ("select true", "syntax error"),
    ("/* id > 5", "unterminated"),
    ("note = 'x", "unterminated"),
    ("id > $1", "parameter"),
    ("count(*) > 5", "aggregate"),
    ("id > 5 limit 1", "syntax error"),
    ("\ud800 = note", "is not valid UTF-8"),
)


@pytest.fixture
def orders(source: Session) -> Session:
    """A table with a key, and one without."""
    source.run("create table orders (id int primary key, note text); create table logs (line text)")
    source.run("insert into orders select i, 'é' || i from generate_series(1, 100) i")
    source.run("insert into logs values ('one'), ('two')")
    return source


def test_a_condition_is_one_expression(orders: Session, database: str) -> None:
    for where in CONDITIONS:
        check_condition(database, "public", "orders", where)
    for where, says in REFUSED:
        with pytest.raises(RefusedError, match=says) as refused:
            check_condition(database, "public", "orders", where)
        assert refused.value.hint
    with session(database) as holder:
        holder.run("begin; lock table orders in access exclusive mode")
        with pytest.raises(ConnectionFailed, match="lock timeout"):
            check_condition(database, "public", "orders", "id > 5")
    with pytest.raises(ConnectionFailed):
        check_condition("host=127.0.0.1 port=1", "public", "orders", "true")
    assert orders.value("select count(*) from orders") == 100


def again(attempts: Attempts, *args: str) -> Ended:
    """Run ``bwtui snapshot`` on the relay of ``attempts``."""
    return attempts.command("snapshot", *args, "--relay", attempts.name)


def statuses(attempts: Attempts) -> dict[str, dict[str, Any]]:
    """Return the current and earlier backfills, by id."""
    told = again(attempts, "--status", "--json").stdout.splitlines()
    return {one["id"]: one for one in map(json.loads, told)}


def test_what_can_not_be_sent_again_is_refused(orders: Session, database: str, attempts: Attempts) -> None:
    orders.run("create view recent as select * from orders")
    orders.run("create table days (id int primary key) partition by range (id)")
    orders.run("create table days_1 partition of days for values from (1) to (9)")
    orders.run(
        """create table "Odd ""T'x" (id int primary key); create table "Orders" (id int primary key)"""
    )
    orders.run("create unlogged table cache (id int primary key)")
    with relaying(attempts, database, orders):
        for args, says in (
            (("ordrs",), "did you mean orders?"),
            (("cache",), "table public.cache is unlogged: PostgreSQL streams none of its changes"),
            (("public.cache",), "run: ALTER TABLE public.cache SET LOGGED;"),
            (("public.ORDERS",), "did you mean public.Orders or public.orders?"),
            (("recent",), "public.recent is a view and has no rows of its own in the stream"),
            (("public.days_1",), f"is a partition; relay {attempts.name} captures its rows as public.days"),
            (('public."days_1"',), "give public.days, with --where to select rows"),
            (('"Odd ""T"',), "did you mean"),
            (("orders\udcff",), "table orders"),
            (("pg_class",), "table pg_class is not captured"),
            (("logs",), "has no key"),
            (("orders", "--where", "nothing"), 'column "nothing" does not exist'),
            (("--cancel", "7-orders"), "there is no request 7-orders"),
        ):
            ended = again(attempts, *args)
            assert (ended.code, ended.stdout) == (2, "")
            assert says in ended.stderr
        assert statuses(attempts) == {}
        done = again(attempts, "public.orders", "logs", "-u", "--json")
        assert done.code == 0, done.stderr
        assert [json.loads(line)["rows"] for line in done.stdout.splitlines()] == [100, 2]
        done = again(attempts, """public."Odd ""T'x\"""", 'PUBLIC."Orders"', "--json")
        assert done.code == 0, done.stderr
        told = [json.loads(line)["table"] for line in done.stdout.splitlines()]
        assert told == ["public.Odd \"T'x", "public.Orders"]
        part = json.loads(again(attempts, "orders", "--where", "id <= 7 -- few", "--json").stdout)
        assert (part["state"], part["rows"]) == ("done", 7)


def test_a_condition_that_no_command_has_looked_at_is_refused_by_the_relay(
    orders: Session, database: str, attempts: Attempts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BWTUI_STATE_HOME", str(attempts.state))
    with relaying(attempts, database, orders):
        where = "id > 5\n) to stdout; commit; drop table orders; --"
        id = send_again(attempts.name, BackfillRequest("public.orders", where=where))
        failed = eventually("it ends", lambda: (one := statuses(attempts)[id])["ended"] and one)
        assert failed["state"] == "failed"
        assert "PostgreSQL rejects the condition: syntax error" in failed["error"]
        assert orders.value("select count(*) from orders") == 100


def test_a_condition_that_fails_on_a_row_is_said_and_the_stream_goes_on(
    orders: Session, database: str, attempts: Attempts
) -> None:
    """The hint is about the condition: nothing is wrong with the table."""
    with relaying(attempts, database, orders):
        where = "1 / (id - 7) >= 0 or note::int = 1"
        ended = again(attempts, "orders", "--where", where)
        assert ended.code == 2
        assert "the condition fails on a row of public.orders: " in ended.stderr
        assert "é" not in ended.stderr, "a row's value"
        assert f"true, false or null for every row: {where}" in ended.stderr
        orders.run(
            "create sequence numbers; create table seen (id int); create function noted(int) returns bool "
            "language plpgsql as 'begin insert into seen values ($1); return true; end'"
        )
        for where, why in (
            ("nextval('public.numbers') > 0", "cannot execute nextval() in a read-only transaction"),
            ("public.noted(id)", 'relation "seen" does not exist'),
        ):
            ended = again(attempts, "orders", "--where", where)
            assert ended.code == 2
            assert (
                f"PostgreSQL can't evaluate the condition: {why}\nhint: a condition may not write"
                in ended.stderr
            )
        none = json.loads(again(attempts, "orders", "--where", "id < (select 0)", "--json").stdout)
        assert (none["state"], none["rows"]) == ("done", 0)
        done = json.loads(again(attempts, "orders", "--json").stdout)
        assert (done["state"], done["rows"]) == ("done", 100)


@pytest.mark.long
def test_a_condition_that_ends_its_own_session_is_not_tried_for_ever(
    orders: Session, database: str, attempts: Attempts
) -> None:
    with relaying(attempts, database, orders):
        where = "pg_terminate_backend(pg_backend_pid())"
        ended = again(attempts, "orders", "--where", where)
        assert ended.code == 2, ended.stderr
        assert "the session that reads rows of public.orders ended 5 times in a row" in ended.stderr
        assert f"hint: check whether the condition ends the session: {where}" in ended.stderr
        done = json.loads(again(attempts, "orders", "--json").stdout)
        assert (done["state"], done["rows"]) == ("done", 100)


def test_what_was_asked_outlives_a_kill(orders: Session, database: str, attempts: Attempts) -> None:
    # The rows can't be read as long as another session has locked the table.
    with session(database) as holder:
        with relaying(attempts, database, orders) as relay:
            holder.run("begin; lock table orders in access exclusive mode")
            id = json.loads(again(attempts, "orders", "--no-wait", "--json").stdout)["id"]
            refused = again(attempts, "orders", "--no-wait")
            assert (refused.code, refused.stdout) == (2, "")
            assert f"already has an unfinished backfill: {id}" in refused.stderr
            assert again(attempts, "--pause", id).code == 0
            relay.kill()
            relay.wait()
        # A starting relay reads its tables, too.
        holder.run("rollback")
        with relaying(attempts, database, orders):
            eventually("it is known", lambda: statuses(attempts)[id]["state"] == "paused")
            assert statuses(attempts)[id]["rows"] == 0
            assert again(attempts, "--resume", id).code == 0
            done = eventually(
                "it is sent", lambda: (one := statuses(attempts)[id])["state"] == "done" and one
            )
            assert done["rows"] == 100
            over = again(attempts, "--cancel", id)
            assert (over.code, over.stdout) == (2, "")
            assert f"{id} has already ended: done" in over.stderr
