"""Split SQL files into statements as psql does, so that each can be checked before it runs."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg2

from bwtui.errors import ConnectionFailed, RefusedError
from bwtui.model.sql import quote_identifier
from bwtui.source.connection import Connection, connect, execute
from bwtui.source.sql_hints import format_sql, hint_for

# A doubled quote ends one string and begins the next, which makes no difference here. The quantifiers are
# possessive, because re would keep backtracking state for each character.
_TOKEN = re.compile(
    r"""(?P<space>\s+|--[^\n]*)
      | (?P<comment>/\*)
      | (?P<escaped>[eE]'[^'\\]*+(?:(?=\\|'')..[^'\\]*+)*+')
      | (?P<unclosed>[eE]')
      | (?P<string>'[^']*')
      | (?P<quoted>"[^"]*")
      | (?P<dollar>\$(?:[A-Za-z_\x80-\U0010ffff][\w\x80-\U0010ffff]*)?\$)
      | (?P<word>[A-Za-z_\x80-\U0010ffff][\w$\x80-\U0010ffff]*)
      | (?P<open>['"])
      | (?P<end>;)
      | (?P<meta>\\)
      | (?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)
_CONTROL = frozenset(("begin", "start", "commit", "end", "rollback", "abort", "savepoint", "release"))
_ROUTINES = frozenset(("function", "procedure"))


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement of a script without its semicolon; ``words`` are its unquoted words in lower case."""

    text: str
    line: int
    words: tuple[str, ...]
    #: The first three words as they were written.
    begins: tuple[str, ...]

    @property
    def place(self) -> str:
        """The statement's first words and its line, for an error message; never a value."""
        return f"{' '.join(self.begins)} (line {self.line})"


def statements(script: str) -> list[Statement]:
    """Return the statements of ``script``. Raises RefusedError for statements that can't run in a trial.

    These are transaction control, psql's own commands, and COPY FROM STDIN, whose rows are not SQL.
    """
    parsed = list(_split(script))
    for statement in parsed:
        first = statement.words[0]
        if first in _CONTROL or statement.words[:2] == ("prepare", "transaction"):
            raise RefusedError(
                f"the script contains transaction control: {statement.place}",
                "remove it: the whole script runs in one transaction, which is rolled back",
            )
        if first == "copy" and "stdin" in statement.words:
            raise RefusedError(f"the script copies rows: {statement.place}", "remove it: only DDL matters")
    return parsed


def _split(script: str) -> Iterator[Statement]:
    begin = at = depth = 0
    words: list[str] = []
    begins: list[str] = []
    while at < len(script):
        token = _TOKEN.match(script, at)
        assert token is not None
        kind, at = str(token.lastgroup), token.end()
        if kind in ("comment", "dollar", "open", "unclosed", "meta"):
            at = _skip(kind, script, token)
        elif kind == "word":
            words.append(token[0].lower())
            begins += [token[0]] if len(begins) < 3 else []
            depth = _depth(words, depth)
        if kind == "end" and depth == 0:
            yield from _statement(script, begin, token.start(), words, begins)
            begin, words, begins = at, [], []
    yield from _statement(script, begin, len(script), words, begins)


def _statement(script: str, begin: int, end: int, words: list[str], begins: list[str]) -> Iterator[Statement]:
    if words:
        text = script[begin:end]
        blank = len(text) - len(text.lstrip())
        line = script.count("\n", 0, begin + blank) + 1
        yield Statement(text.strip(), line, tuple(words), tuple(begins))


def _depth(words: list[str], depth: int) -> int:
    """Track BEGIN ATOMIC … END in a routine's body, whose statements end in semicolons of their own."""
    if words[0] != "create" or not _ROUTINES & set(words[:4]):
        return 0
    if words[-2:] == ["begin", "atomic"] or (depth and words[-1] == "case"):
        return depth + 1
    return max(0, depth - 1) if words[-1] == "end" else depth


def _skip(kind: str, script: str, token: re.Match[str]) -> int:
    """Return the end of a comment or a dollar-quoted string. Raises RefusedError if it is not closed."""
    line = script.count("\n", 0, token.start()) + 1
    if kind == "meta":
        raise RefusedError(f"line {line} contains a psql command", "remove it: only SQL is run")
    if kind == "comment":
        end = _comment_end(script, token.end())
    elif kind == "dollar":
        closing = script.find(token[0], token.end())
        end = closing + len(token[0]) if closing >= 0 else -1
    else:
        end = -1
    if end < 0:
        raise RefusedError(f"{token[0]} in line {line} of the script is not closed", "close it")
    return end


def _comment_end(script: str, at: int) -> int:
    """Return the end of a comment, which may contain nested ones; -1 if it is not closed."""
    depth = 1
    for mark in re.compile(r"/\*|\*/").finditer(script, at):
        depth += 1 if mark[0] == "/*" else -1
        if depth == 0:
            return mark.end()
    return -1


# A database as it would be after a script, which runs in a transaction that is always rolled back.

#: An ALTER TABLE that waits for a lock blocks every later session on that table.
_LOCK_TIMEOUT = "3s"
# No script can commit, whatever it contains: this constraint fails at COMMIT.
_NO_COMMIT = """
create temporary table bwtui_trial (n int unique deferrable initially deferred);
insert into pg_temp.bwtui_trial values (1), (1)
"""


@contextmanager
def after_script(dsn: str, script: str) -> Iterator[Connection]:
    """Yield a session that sees the database as it is after ``script``, which is rolled back at the end.

    An empty script changes nothing, and the session is an ordinary one. Raises RefusedError for a statement
    that fails or can't be tried.
    """
    parsed = statements(script)
    connection = connect(dsn)
    try:
        if parsed:
            _apply(connection, parsed)
        yield connection
    finally:
        # Closing the session rolls its transaction back.
        connection.close()


def _apply(connection: Connection, script: list[Statement]) -> None:
    execute(connection, "begin")
    try:
        execute(connection, _NO_COMMIT)
    except psycopg2.errors.InsufficientPrivilege as error:
        raise RefusedError(
            "the role may not create the temporary table that prevents the script from committing",
            "let a superuser run: "
            + format_sql(
                f"GRANT TEMPORARY ON DATABASE {quote_identifier(connection.info.dbname)}"
                f" TO {quote_identifier(connection.info.user)}"
            ),
        ) from error
    execute(connection, "reset search_path")
    execute(connection, f"set lock_timeout = '{_LOCK_TIMEOUT}'")
    for statement in script:
        try:
            execute(connection, statement.text)
        except psycopg2.Error as error:
            raise _refused(statement, error) from error
    execute(connection, "set search_path = ''")


def _refused(statement: Statement, error: psycopg2.Error) -> Exception:
    reason = error.diag.message_primary or " ".join(str(error).split())
    if isinstance(error, psycopg2.errors.ActiveSqlTransaction):
        return RefusedError(
            f"{statement.place} can't run in a trial: {reason}", "remove it: it does not change a schema"
        )
    if isinstance(error, psycopg2.errors.LockNotAvailable):
        return RefusedError(
            f"{statement.place} did not get its lock within {_LOCK_TIMEOUT}",
            "try again when the table is idle",
        )
    if error.diag.sqlstate is None:
        return ConnectionFailed(f"the connection to PostgreSQL broke: {reason}", "check PostgreSQL's log")
    return RefusedError(f"{statement.place} failed: {reason}", hint_for(error))
