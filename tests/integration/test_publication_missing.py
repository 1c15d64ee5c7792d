"""A publication that is missing for a while: PostgreSQL leaves out the changes from that time."""

from collections.abc import Iterator
from contextlib import closing

import psycopg2
import pytest

from tests.attempts import Attempts
from tests.database import Session, with_options
from tests.waiting import eventually


@pytest.fixture
def source(database: str) -> Iterator[Session]:
    """A session on a database with one published table of one row."""
    with closing(Session(database)) as opened:
        opened.run("create table t (id int primary key)")
        opened.run("insert into t values (1)")
        yield opened


def names(attempts: Attempts) -> tuple[str, str]:
    return f"bwtui_{attempts.name}", f"bwtui_{attempts.name}_unkeyed"


def test_a_role_without_warnings_in_another_language(
    attempts: Attempts, database: str, source: Session
) -> None:
    """Settings of the role or the connection string do not hide the warning; the SQLSTATE identifies it."""
    attempts.succeed(database)
    publication, _ = names(attempts)
    source.run(f"drop publication {publication}")
    source.run("insert into t values (2)")
    source.run(f"create publication {publication} for table t")
    source.run("insert into t values (3)")
    quiet = with_options(database, client_min_messages="error", lc_messages="xx_YY")
    try:
        psycopg2.connect(quiet).close()
    except psycopg2.OperationalError:
        quiet = with_options(database, client_min_messages="error")
    before = source.confirmed(attempts.name)
    for _ in range(2):
        ended = attempts.run(quiet)
        error, hint = attempts.refused(ended, 5, quiet)
        assert "PostgreSQL can't decode changes" in error
        assert publication in error
        assert "take a new snapshot" in hint
        assert source.confirmed(attempts.name) == before


def test_a_companion_that_an_earlier_run_read_is_missed(
    attempts: Attempts, database: str, source: Session
) -> None:
    """The changes of its tables would just stop."""
    source.run("create table unkeyed (n int)")
    attempts.succeed(database, "-u")
    _, companion = names(attempts)
    source.run(f"drop publication {companion}")
    error, hint = attempts.refused(attempts.run(database, "-u"), 2, database)
    assert f"publication {companion} is missing" in error
    assert f'create publication "{companion}"' in hint
    source.run(hint.partition("after this: ")[2])
    source.run(f"alter publication {companion} add table unkeyed")
    attempts.succeed(database, "-u")


def test_a_publication_that_is_dropped_while_the_relay_reconnects(
    attempts: Attempts, database: str, source: Session
) -> None:
    with attempts.start(database) as relay:
        reader = eventually("it streams", lambda: source.reader(attempts.name))
        source.run(f"drop publication {names(attempts)[0]}")
        source.run("select pg_terminate_backend(%s)", reader)
        _, words = relay.communicate(timeout=60)
    assert relay.returncode == 2, words
    assert f"publication {names(attempts)[0]} is missing" in words


def test_doctor_says_what_connect_would_say(attempts: Attempts, database: str, source: Session) -> None:
    """A missing slot is not reported if no relay has a record of it; here the relay has one."""
    attempts.succeed(database)
    ends = ["-b", attempts.services.broker, "-r", attempts.services.schema_registry]
    command = ("doctor", "-d", database, "-s", attempts.name, *ends)
    assert "slot position: confirmed up to " in attempts.command(*command).stdout
    source.run(f"drop publication {names(attempts)[0]}")
    ended = attempts.command(*command)
    assert "FAIL  publications: " in ended.stdout
    assert "tables are captured: not checked" in ended.stdout
    source.run(f"create publication {names(attempts)[0]} for table t")
    source.run("select pg_drop_replication_slot(%s)", attempts.name)
    ended = attempts.command(*command)
    assert ended.code == 5, ended.stdout
    assert f"FAIL  slot position: slot {attempts.name} is missing" in ended.stdout
    error, _ = attempts.refused(attempts.run(database), 5, database)
    assert f"slot {attempts.name} is missing" in error


def test_the_users_own_publication_is_created_by_the_statement_of_the_hint(
    attempts: Attempts, database: str, source: Session
) -> None:
    source.run("create publication mine for table t")
    attempts.succeed(database, "--publication", "mine")
    source.run("drop publication mine")
    error, hint = attempts.refused(attempts.run(database, "--publication", "mine"), 2, database)
    assert "its publication mine does not" in error
    source.run(hint.partition("for example with: ")[2])
    attempts.succeed(database, "--publication", "mine")
