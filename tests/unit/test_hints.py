"""Behind each error stands a hint, and it says what to do in that case."""

import ast
import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import bwtui
from bwtui.crash import crash
from bwtui.errors import BwtuiError, RefusedError, UsageError
from bwtui.file_errors import file_failed
from bwtui.options import BY_NAME, parse, parse_pair, split_advice
from bwtui.source.connection import connect
from bwtui.source.sqlstate_hints import hint_for_sqlstate

_PACKAGE = Path(bwtui.__file__).parent
#: What says nothing: it would stand behind any error as well.
_GENERIC = {
    "try again",
    "check the input",
    "see the log",
    "see the documentation",
    "contact support",
    "-",
    "?",
}


def _classes() -> set[str]:
    """Return the names of all errors of ours, by the source: importing all of it takes Spark and more."""
    bases: dict[str, set[str]] = {}
    for node in (node for tree in _trees().values() for node in ast.walk(tree)):
        if isinstance(node, ast.ClassDef):
            bases[node.name] = {base.id for base in node.bases if isinstance(base, ast.Name)}
    found = {BwtuiError.__name__}
    while more := {name for name, above in bases.items() if above & found} - found:
        found |= more
    return found


def _trees() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text()) for path in _PACKAGE.rglob("*.py")}


def _calls() -> Iterator[tuple[str, ast.Call]]:
    classes = _classes()
    for path, tree in _trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
                if name in classes or name in ("file_failed", "error_with_code"):
                    yield f"{path.relative_to(_PACKAGE)}:{node.lineno}", node


def _texts(call: ast.Call) -> Iterator[str]:
    """Yield the arguments behind the message that are given as they are."""
    for argument in [*call.args[1:], *(word.value for word in call.keywords)]:
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
            yield argument.value


def test_no_hint_is_empty_or_generic() -> None:
    calls = list(_calls())
    assert len(calls) > 300, "the walk sees what is raised"
    wrong = []
    for place, call in calls:
        for text in _texts(call):
            words = text.rstrip(".").lower()
            if not words or words in _GENERIC:
                wrong.append(f"{place}: {text!r}")
        if any(isinstance(one, ast.Constant) and one.value is None for one in call.args[1:2]):
            wrong.append(f"{place}: None")
    assert not wrong


def test_an_error_without_a_hint_is_none() -> None:
    with pytest.raises(TypeError, match="hint"):
        RefusedError("a sentence")  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("number", "what"),
    [
        (errno.EACCES, "grant the user"),
        (errno.ENOSPC, "free some space"),
        (errno.EROFS, "read-only"),
        (errno.EISDIR, "is a folder"),
        (errno.ENOTDIR, "is a file, not a folder"),
        (errno.EEXIST, "a file already exists at"),
        (errno.ENAMETOOLONG, "255 bytes"),
        (errno.EMFILE, "ulimit -n"),
        (errno.ELOOP, "loop"),
        (errno.EIO, "system's log"),
        (errno.EDQUOT, "disk quota"),
    ],
)
def test_the_systems_word_on_a_file_is_no_bug(number: int, what: str) -> None:
    error = OSError(number, os.strerror(number), "/srv/x")
    told = crash(error)
    assert told.message == f"/srv/x can't be used: {os.strerror(number)}"
    assert what in told.hint
    assert file_failed("/srv/x can't be read", error, UsageError).hint == told.hint


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.EACCES, "refused"),
        ConnectionResetError(errno.ECONNRESET, "gone"),
        FileNotFoundError(errno.ENOENT, "no such file", "/srv/x"),
        ValueError("a secret"),
    ],
)
def test_what_is_not_of_a_file_stays_a_bug(error: Exception) -> None:
    assert crash(error).hint.startswith("this is a bug in bwtui")


def test_a_full_disk_and_too_many_files_need_no_path() -> None:
    assert "free some space" in crash(OSError(errno.ENOSPC, "full")).hint
    assert "ulimit -n" in crash(OSError(errno.EMFILE, "too many")).hint


def test_a_working_directory_that_is_gone_is_no_bug(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(FileNotFoundError) as raised:
        Path("x").absolute()
    assert crash(raised.value).message == "the working directory was removed"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *(("slot", "Bad"), ("name", "../x"), ("publication", "é" * 32), ("broker", "a:0")),
        *(("schema-registry", "x"), ("topic-prefix", "a b"), ("table", "("), ("headers", "perhaps")),
        *(("output-format", "xml"), ("endpos", "12"), ("segment-bytes", "0"), ("postgres", "a\nb")),
        *(("kafka-config", "novalue"), ("kafka-config", "a b=c")),
    ],
)
def test_a_value_that_is_refused_says_what_is_taken(name: str, text: str) -> None:
    option = BY_NAME[name]
    with pytest.raises(ValueError, match=r"\w") as raised:
        parse_pair(text) if option.kind == "pairs" else parse(option, text)
    problem, advice = split_advice(raised.value)
    assert problem
    assert advice
    assert not problem.endswith(")") or name == "table"


@pytest.mark.parametrize("state", ["42501", "42601", "55006", "08006", "XX001", "P0001", "99999", None])
def test_every_sqlstate_has_a_remedy(state: str | None) -> None:
    assert hint_for_sqlstate(state)


@pytest.mark.parametrize(
    ("dsn", "message", "hint"),
    [
        (
            "dbnme=shop",
            "the connection string is not valid: libpq has no keyword 'dbnme'",
            "did you mean 'dbname'?",
        ),
        (
            "postgresql://db/shop?sslmod=require",
            "the connection string is not valid: libpq has no keyword 'sslmod'",
            "did you mean 'sslmode'?",
        ),
        # What libpq takes for a keyword may be a piece of the password.
        ("password=top secret=1", "the connection string is not valid", None),
        ("postgresql://me:secret@db/shop?secret=1", "the connection string is not valid", None),
    ],
)
def test_an_unknown_keyword_is_named_unless_it_may_be_secret(
    dsn: str, message: str, hint: str | None
) -> None:
    with pytest.raises(UsageError) as refused:
        connect(dsn)
    assert refused.value.message == message
    assert hint is None or refused.value.hint == hint
