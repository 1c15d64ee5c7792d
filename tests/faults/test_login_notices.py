"""Notices of PostgreSQL and libpq at login are logged, and stderr stays unchanged."""

import ctypes
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from bwtui.errors import ConnectionFailed
from bwtui.source.connection import connect
from bwtui.source.raw_session import connect_raw
from tests.faults.relays import Relay, execute
from tests.faults.test_headless_words import Headless

LOGGER = "bwtui.source.libpq_output"
LOGIN = r"""
create function public.greets() returns event_trigger language plpgsql as $$
begin raise warning E'\x1b[31mwelcome, %', session_user; end $$;
create event trigger greets on login execute function public.greets();
alter event trigger greets enable always;
"""


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the log's entries about logins."""
    return [record.getMessage() for record in caplog.records if record.name == LOGGER]


@pytest.mark.since(15, "databases have no collation version before")
def test_a_warning_at_login_is_logged_once_and_not_printed(
    database: str, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    # PostgreSQL warns before it reads the options of a session, so no option suppresses the warning.
    execute(database, "update pg_database set datcollversion = '0' where datname = current_database()")
    for _ in range(2):
        connect(database).close()
        connect_raw(database).finish()
    printed = capfd.readouterr()
    assert (printed.out, printed.err) == ("", "")
    [words] = said(caplog)
    assert re.match(r".*: WARNING: +database .* has no actual collation version", words)


@pytest.mark.parametrize("opened", [connect, connect_raw])
def test_a_password_file_that_others_may_read_is_logged_and_not_printed(
    database: str,
    opened: Callable[[str], object],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    passwords = tmp_path / "passwords"
    passwords.touch(0o644)
    monkeypatch.setenv("PGPASSFILE", str(passwords))
    with pytest.raises(ConnectionFailed, match="no password supplied"):
        opened(re.sub(r":[^:/@]+@", "@", database))
    assert capfd.readouterr().err == ""
    assert f'password file "{passwords}" has group or world access' in said(caplog)[-1]


def test_other_libraries_print_to_stderr_as_before(database: str, capfd: pytest.CaptureFixture[str]) -> None:
    connect(database).close()
    libc = ctypes.CDLL(None)
    libc.perror(b"another library")
    assert capfd.readouterr().err.startswith("another library: ")


@pytest.mark.since(17, "logins have no event trigger before")
def test_a_log_in_json_stays_json_when_a_login_trigger_speaks(
    database: str, new_relay: Callable[..., Relay]
) -> None:
    execute(database, "create table rows (id int primary key)")
    relay = new_relay("--log-format", "json", "--until-caught-up", kind=Headless)
    execute(database, LOGIN)
    relay.start()
    assert relay.join() == 0, relay.last_words()
    lines = [json.loads(line) for line in relay.last_words().splitlines()]
    assert lines
    log = relay.log().splitlines()
    told = [line for line in map(json.loads, log) if line["logger"] == LOGGER]
    assert [(line["event"], line["level"]) for line in told] == [("notice", "warning")]
    assert told[0]["message"].endswith(": WARNING:  \\x1b[31mwelcome, postgres")
