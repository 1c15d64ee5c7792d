"""Several hosts in a connection string: the relay uses the primary, unless the user sets otherwise."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psycopg2.extensions
import pytest
from psycopg import pq
from psycopg2.extensions import parse_dsn

from bwtui.errors import UsageError
from bwtui.source import conninfo, hosts
from bwtui.source.connection import connect
from bwtui.source.hosts import complete, describe, each_host, effective, with_defaults
from bwtui.source.raw_session import connect_raw


def added(dsn: str) -> dict[str, str]:
    found: dict[str, str] = psycopg2.extensions.parse_dsn(with_defaults(dsn))
    return found


@pytest.mark.parametrize(
    "dsn",
    [
        "host=one,two dbname=shop",
        "hostaddr=127.0.0.1,127.0.0.2 dbname=shop",
        "postgresql://u@one:1,two:2/shop",
    ],
)
def test_of_several_hosts_the_primary_is_wanted(dsn: str) -> None:
    found = added(dsn)
    assert found["target_session_attrs"] == "read-write"
    assert int(found["connect_timeout"]) < int(added("host=one dbname=shop")["connect_timeout"])


@pytest.mark.parametrize("dsn", ["", "host=one dbname=shop", "postgresql://u@one/shop"])
def test_a_single_host_may_be_a_standby(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PGHOST", raising=False)
    assert "target_session_attrs" not in added(dsn)


def test_what_the_user_says_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    dsn = "host=one,two dbname=shop"
    assert added(f"{dsn} target_session_attrs=any")["target_session_attrs"] == "any"
    assert added(f"{dsn} connect_timeout=9")["connect_timeout"] == "9"
    monkeypatch.setenv("PGTARGETSESSIONATTRS", "any")
    assert "target_session_attrs" not in added(dsn)


def test_hosts_of_variables_and_services_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGHOST", "127.0.0.1,127.0.0.2")
    assert added("dbname=shop")["target_session_attrs"] == "read-write"
    monkeypatch.delenv("PGHOST")
    services = tmp_path / "services"
    services.write_text(
        "[two]\nhost=127.0.0.1,127.0.0.2\nport=1,2\n[read]\nhost=127.0.0.1,127.0.0.2\nport=1,2\n"
        "target_session_attrs=prefer-standby\n[one]\nhost=127.0.0.1\nport=1\n"
    )
    monkeypatch.setenv("PGSERVICEFILE", str(services))
    assert added("service=two")["target_session_attrs"] == "read-write"
    assert "target_session_attrs" not in added("service=read")
    assert "target_session_attrs" not in added("service=one")


def test_what_variables_and_services_say_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    services = tmp_path / "services"
    services.write_text("[slow]\nhost=one\nconnect_timeout=45\nkeepalives_idle=7\n")
    monkeypatch.setenv("PGSERVICEFILE", str(services))
    assert {"connect_timeout", "keepalives_idle"}.isdisjoint(added("service=slow"))
    assert added("service=slow")["tcp_user_timeout"] == "60000"
    assert added("service=slow connect_timeout=5")["connect_timeout"] == "5"
    monkeypatch.setenv("PGCONNECT_TIMEOUT", "60")
    assert "connect_timeout" not in added("host=one")
    assert "connect_timeout" not in added("host=one,two")


def test_a_service_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only libpq can read it, by starting a connection."""
    services = tmp_path / "services"
    services.write_text("[once]\nhost=127.0.0.1,127.0.0.2\nport=1,2\n")
    monkeypatch.setenv("PGSERVICEFILE", str(services))
    begun: list[bytes] = []
    begin = pq.PGconn.connect_start

    def counted(conninfo: bytes) -> pq.abc.PGconn:
        begun.append(conninfo)
        return begin(conninfo)

    double = SimpleNamespace(PGconn=SimpleNamespace(connect_start=counted), Conninfo=pq.Conninfo)
    monkeypatch.setattr(conninfo, "pq", double)
    for _ in range(3):
        assert added("service=once dbname=shop")["target_session_attrs"] == "read-write"
        assert len(each_host("service=once dbname=shop")) == 2
    assert len(begun) == 1


def test_a_service_that_is_edited_holds_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in libpq; otherwise sessions would go to different servers."""
    services = tmp_path / "services"
    monkeypatch.setenv("PGSERVICEFILE", str(services))
    for host in ("127.0.0.1", "127.0.0.22"):
        services.write_text(f"[moved]\nhost={host}\nport=1\n")
        assert effective("service=moved")["host"] == host


def test_each_host_is_reached_by_itself() -> None:
    one, two = each_host("host=one,two port=1,2 dbname=shop target_session_attrs=read-write")
    assert (describe(one), describe(two)) == ("one:1/shop", "two:2/shop")
    assert psycopg2.extensions.parse_dsn(two)["target_session_attrs"] == "any"
    same = [describe(each) for each in each_host("postgresql://one,two:5432/shop")]
    assert same == ["one:5432/shop", "two:5432/shop"]
    assert each_host("host=one dbname=shop") == ["host=one dbname=shop"]


def test_they_are_told_without_a_password() -> None:
    assert describe("postgresql://u:secret@one:1,two:2/shop") == "one:1,two:2/shop"
    with pytest.raises(UsageError, match="not valid"):
        each_host("host=one,two dbname")


@pytest.mark.parametrize("dsn", ["host=a dbname=x", "host=a,b", "postgresql://u@a/x?connect_timeout=7", ""])
def test_a_string_that_is_complete_needs_nothing_looked_up(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PGHOST", "PGTARGETSESSIONATTRS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PGCONNECT_TIMEOUT", "60")
    full = complete(dsn)
    assert effective(full) == effective(with_defaults(dsn))
    monkeypatch.setattr(hosts, "_conninfo", None)
    assert parse_dsn(with_defaults(full, client_encoding="UTF8")) == parse_dsn(full) | {
        "client_encoding": "UTF8"
    }


def test_a_worker_of_a_snapshot_has_no_psycopg() -> None:
    """Importing it takes 0.1 s and 15 MB in each worker."""
    look = "import sys, bwtui.relay.snapshot.worker; sys.exit('psycopg' in sys.modules)"
    subprocess.run([sys.executable, "-c", look], check=True)


@pytest.mark.parametrize(
    "password",
    ["s3cr/etXYZ", "s3cr@etXYZ", "a/b@etXYZ", "12/etXYZ", "12@a/etXYZ", "s3cr%zzetXYZ", "a?/b@etXYZ"],
)
@pytest.mark.parametrize("place", ["db:5432/shop", "127.0.0.1:1/shop?sslmode=disable"])
def test_a_password_that_is_not_escaped_is_refused_and_not_shown(password: str, place: str) -> None:
    """libpq would take a part of it for a host, a port or a database, and name that in its error."""
    dsn = f"postgresql://me:{password}@{place}"
    for read in (with_defaults, connect, connect_raw):
        with pytest.raises(UsageError) as raised:
            read(dsn)
        text = f"{raised.value.message} {raised.value.hint}"
        assert "percent-encode" in text
        assert "XYZ" not in text and "s3cr" not in text


@pytest.mark.parametrize(
    "rest",
    ["me:pw@h/d@b", "h:5432/d@b", "h/d?user=me@corp", "me:pw@h/d?application_name=a@b/c", "h1:1,h2:2/db",
     "/db@x", "[::1]:5432/d@b", "[::1]/d@b", "me:s3cr?x@h/d", "me:a%2Fb%40c@h/d"],
)  # fmt: skip
def test_an_at_sign_elsewhere_is_none_of_the_password(rest: str) -> None:
    assert with_defaults(f"postgresql://{rest}")
