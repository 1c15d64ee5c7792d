"""Parsing of SQL files: statements that can be tried, and clear errors for the others."""

import pytest

from bwtui.errors import RefusedError
from bwtui.source.ddl import statements

FUNCTION = """create function f() returns int language sql
begin atomic
  select case when true then 1 else 2 end;
  select 3;
end"""


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("", []),
        (" ;; -- nothing\n /* at ; /* all */ ; */ ", []),
        ("alter table t add c int", ["alter table t add c int"]),
        ("a;\n b ; c;", ["a", "b", "c"]),
        ("select ';', \"a;b\", E'\\';', 'it''s;'; x", ["select ';', \"a;b\", E'\\';', 'it''s;'", "x"]),
        ("do $$ begin; commit; end $$; x", ["do $$ begin; commit; end $$", "x"]),
        ("do $a$ ; $$ ; $b$ ; $a$", ["do $a$ ; $$ ; $b$ ; $a$"]),
        (f"{FUNCTION}; x", [FUNCTION, "x"]),
        ("prepare p as select 1", ["prepare p as select 1"]),
        ('alter table t rename "begin" to "commit"', ['alter table t rename "begin" to "commit"']),
        ("select 1 -- commit;\n; x", ["select 1 -- commit;", "x"]),
        ("create table größe (x$1 int)", ["create table größe (x$1 int)"]),
    ],
)
def test_statements(script: str, expected: list[str]) -> None:
    assert [statement.text for statement in statements(script)] == expected


@pytest.mark.parametrize(
    "statement",
    [
        "begin", "BEGIN work", "start transaction", "commit", "Commit and chain", "end", "rollback",
        "abort", "savepoint a", "rollback to a", "release a", "prepare transaction 'x'",
        "commit prepared 'x'",
        "/* */ commit", "-- x\ncommit", "copy t from stdin", "COPY t (a) FROM STDIN with (format csv)",
        r"\i other.sql", r"\gexec", "select 'open", 'select "open', "do $$ open", "/* open /* */",
        "select e'\\'",
    ],
)  # fmt: skip
@pytest.mark.parametrize("around", ["{}", "create table t (a int);\n{};\nselect 1", ";{};"])
def test_refused(statement: str, around: str) -> None:
    with pytest.raises(RefusedError) as caught:
        statements(around.format(statement))
    assert caught.value.hint


def test_the_place_is_named_and_no_value() -> None:
    with pytest.raises(RefusedError, match=r"commit and chain \(line 4\)") as caught:
        statements("select 'secret';\n\n\ncommit and chain /* secret */;")
    assert "secret" not in str(caught.value)
