"""The command that drops a slot can be pasted for any connection string, and contains no password."""

import shlex

import pytest

from bwtui.settings import RelaySettings, drop_command


@pytest.mark.parametrize(
    ("postgres", "printed"),
    [
        ("", "bwtui slots drop shop"),
        ("service=shop", "bwtui slots drop shop -d service=shop"),
        ("host=db dbname=shop", 'bwtui slots drop shop -d "host=db dbname=shop"'),
        ("host=db password=hunter2", "bwtui slots drop shop -d host=db"),
        ("password = 'hunter2 x' host=db", "bwtui slots drop shop -d host=db"),
        ("postgresql://me:hunter2@db/shop", "bwtui slots drop shop -d postgresql://me@db/shop"),
        (
            "postgresql://me@db/shop?password=hunter2&sslmode=require",
            'bwtui slots drop shop -d "postgresql://me@db/shop?sslmode=require"',
        ),
        (
            "postgresql://db/shop?sslmode=require&password=hunter2",
            'bwtui slots drop shop -d "postgresql://db/shop?sslmode=require"',
        ),
        ("postgresql://db/shop?password=hunter2", "bwtui slots drop shop -d postgresql://db/shop"),
        ("dbname='my shop'", "bwtui slots drop shop -d \"dbname='my shop'\""),
    ],
)
def test_the_command_names_slot_and_server(postgres: str, printed: str) -> None:
    assert drop_command("shop", postgres) == printed
    assert RelaySettings(slot="shop", postgres=postgres).drop_command == printed


def test_a_password_in_the_environment_is_left_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BWTUI_POSTGRES", "host=db password=hunter2")
    assert drop_command("shop", "host=db password=hunter2") == "bwtui slots drop shop"
    assert drop_command("shop", "host=other password=hunter2") == "bwtui slots drop shop -d host=other"
    monkeypatch.setenv("BWTUI_POSTGRES", "service=shop")
    assert drop_command("shop", "service=shop") == "bwtui slots drop shop -d service=shop"


@pytest.mark.parametrize(
    ("origin", "postgres", "printed"),
    [
        ("./bwtui.toml", "host=db password=hunter2", "bwtui slots drop shop"),
        ("/home/me/bwtui.toml [profile.prod]", "host=db password=x", "bwtui slots drop shop --profile prod"),
        ("./bwtui.toml", "host=db", "bwtui slots drop shop -d host=db"),
        ("command line", "host=db password=hunter2", "bwtui slots drop shop -d host=db"),
    ],
)
def test_a_password_in_a_file_is_left_there(origin: str, postgres: str, printed: str) -> None:
    """With -d, the command would not use the file's connection string, and have no password."""
    settings = RelaySettings(slot="shop", postgres=postgres, origins=(("postgres", origin),))
    assert settings.drop_command == printed


@pytest.mark.parametrize("postgres", ['dbname=a"b', "dbname=a$b", "dbname=`a`", "dbname=a\\ b", "dbname=a!b"])
def test_a_shell_changes_no_character_of_the_connection_string(postgres: str) -> None:
    assert shlex.split(drop_command("shop", postgres))[-1] == postgres
