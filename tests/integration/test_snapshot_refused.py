"""PostgreSQL's errors when it does not copy a table, each with a fitting hint."""

import pytest

from tests.attempts import Attempts
from tests.database import Session

pytestmark = pytest.mark.services


def test_a_row_filter_that_fails(attempts: Attempts, database: str, source: Session) -> None:
    """The text of such an error may quote a value, so it is not shown."""
    source.run("create table t (id int primary key)")
    source.run("insert into t values (0), (1)")
    source.run(f"create publication bwtui_{attempts.name} for table t where (10 / id > 0)")
    error, hint = attempts.fail(database, 2)
    assert error == "the snapshot can't read public.t: DivisionByZero (SQLSTATE 22012)"
    assert hint == "fix the publication's row filter, or the row for which it fails: ((10 / id) > 0)"


def test_a_damaged_table(attempts: Attempts, database: str, source: Session) -> None:
    source.run("create extension pg_surgery")
    source.run("create table t (id int primary key, big text)")
    source.run("alter table t alter big set storage external")
    source.run("insert into t values (1, repeat('x', 3000))")
    source.run(
        "select heap_force_kill(reltoastrelid::regclass, array['(0,1)', '(0,2)']::tid[]) from pg_class"
        " where oid = 't'::regclass"
    )
    error, hint = attempts.fail(database, 2)
    assert "the snapshot can't read public.t: missing chunk number 0 for toast value" in error
    assert hint == (
        "the table's files are damaged: restore them, or exclude the table with --exclude-table 'public.t'"
    )
