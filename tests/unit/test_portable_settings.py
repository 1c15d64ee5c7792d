"""A relay's reported settings are valid in a different folder and with different variables."""

import os
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict

from bwtui.relay.portable_settings import portable
from bwtui.settings import RelaySettings


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use only the test's variables, and a separate folder."""
    for name in [name for name in os.environ if name.startswith("PG")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PGUSER", "me")
    monkeypatch.chdir(tmp_path)


def told(dsn: str) -> dict[str, object]:
    """Return the reported connection parameters for ``dsn``."""
    return dict(conninfo_to_dict(portable(RelaySettings(postgres=dsn)).postgres))


@pytest.mark.parametrize(
    ("dsn", "said"),
    [
        ("", {"host": "db", "password": "it's", "user": "me"}),
        ("host=a dbname='b c'", {"host": "a", "dbname": "b c", "password": "it's", "user": "me"}),
        (
            "postgresql://you:x%20y@a:77/b",
            {"host": "a", "port": "77", "dbname": "b", "user": "you", "password": "x y"},
        ),
    ],
)
def test_variables_fill_in(monkeypatch: pytest.MonkeyPatch, dsn: str, said: dict[str, str]) -> None:
    monkeypatch.setenv("PGHOST", "db")
    monkeypatch.setenv("PGPASSWORD", "it's")
    assert told(dsn) == said


@pytest.mark.parametrize("named", ["string", "variable"])
def test_a_service_is_looked_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str) -> None:
    (tmp_path / "services").write_text("[shop]\nhost=db\ndbname=shop\nsslmode=require\n")
    monkeypatch.setenv("PGSERVICEFILE", str(tmp_path / "services"))
    monkeypatch.setenv("PGHOST", "another")
    monkeypatch.setenv("PGSERVICE", "shop" if named == "variable" else "none")
    before = dict(os.environ)
    said = told("dbname=x" + (" service=shop" if named == "string" else ""))
    # libpq's own default, if a service is in the string.
    said.pop("passfile", None)
    assert said == {"host": "db", "dbname": "x", "sslmode": "require", "user": "me"}
    assert dict(os.environ) == before


def test_files_have_a_folder(tmp_path: Path) -> None:
    kafka = (("ssl.ca.location", "ca.pem"), ("client.id", "ca.pem"), ("ssl.key.location", "/key"))
    registry = (("ssl.ca.location", "probe"), ("ssl.key.location", ""))
    settings = RelaySettings(
        postgres="sslrootcert=r.crt sslcert=/c", kafka_config=kafka, registry_config=registry
    )
    found = portable(settings)
    assert found.kafka_config == (("ssl.ca.location", f"{tmp_path}/ca.pem"), *kafka[1:])
    assert found.registry_config == registry
    said = conninfo_to_dict(found.postgres)
    assert (said["sslrootcert"], said["sslcert"]) == (f"{tmp_path}/r.crt", "/c")
    assert told("sslrootcert=system")["sslrootcert"] == "system"


@pytest.mark.parametrize("dsn", ["no connection string", "postgresql://[", "x=y"])
def test_a_malformed_connection_string_is_left_to_who_uses_it(dsn: str) -> None:
    assert portable(RelaySettings(postgres=dsn)).postgres == dsn
