"""Every error has a hint that fits the case."""

import errno
import os
from pathlib import Path

import pytest

from bwtui.crash import crash
from bwtui.errors import RefusedError, UsageError
from bwtui.file_errors import file_failed
from bwtui.options import BY_NAME, parse, parse_pair, split_advice
from bwtui.source.connection import connect
from bwtui.source.sql_hints import hint_for_sqlstate


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
    ("dsn", "reason", "hint"),
    [
        ("dbnme=shop", "keyword 'dbnme'", "'dbname'"),
        ("postgresql://db/shop?sslmod=require", "keyword 'sslmod'", "'sslmode'"),
        ("host=db dbnme=shop password=secret", "keyword 'dbnme'", "'dbname'"),
        ("postgresql://me:secret@db/shop?SSLMODE=require", "keyword 'SSLMODE'", "'sslmode'"),
        ("postgresql://me:s%zz@db/shop", "can't decode a % in it", ""),
        # The text that libpq takes for a keyword may be a part of the password.
        ("password=top secret=1 host=db", "is not valid", ""),
        ("postgresql://me:top@a?secret=1@db/shop", "is not valid", ""),
        ("password=top secret=1", "is not valid", ""),
        ("postgresql://me:secret@db/shop?secret=1", "is not valid", ""),
    ],
)
def test_an_unknown_keyword_is_named_unless_it_may_be_secret(dsn: str, reason: str, hint: str) -> None:
    with pytest.raises(UsageError) as refused:
        connect(dsn)
    assert refused.value.message.endswith(reason)
    assert hint in refused.value.hint
