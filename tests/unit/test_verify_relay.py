"""`bwtui verify --database --relay` uses the relay's settings, and none of the caller's."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from bwtui.audit.report import AuditSummary
from bwtui.cli import verify as command
from bwtui.cli.main import CONTEXT, cli
from bwtui.errors import UsageError
from bwtui.relay.serving.control_server import ControlServer
from bwtui.settings import RelaySettings
from tests.unit.relay_double import DoubleEngine

RELAY = RelaySettings(name="shop", slot="s", topic_prefix="p", postgres="dbname=shop", tables=("a.*",))


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A state folder, and surrounding settings with wrong or missing services."""
    monkeypatch.setenv("BWTUI_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("BWTUI_SLOT", "NOT A SLOT")
    monkeypatch.setenv("BWTUI_PROFILE", "none")
    monkeypatch.setenv("BWTUI_TABLE", "nothing")
    monkeypatch.setenv("PGHOST", "nowhere")
    (tmp_path / "bwtui.toml").write_text("this is no TOML")
    monkeypatch.chdir(tmp_path)


@contextmanager
def relay(settings: RelaySettings = RELAY) -> Iterator[DoubleEngine]:
    """A relay that reports its settings."""
    engine = DoubleEngine(settings)
    with ControlServer(settings.relay_name, engine):
        yield engine


def run(*arguments: str, **extra: Any) -> Result:
    """Run the command on the relay."""
    given = ["--database", "--relay", "shop", *arguments]
    return CliRunner().invoke(command.verify, given, **CONTEXT, **extra)


def test_its_settings_alone_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def audit(settings: RelaySettings, narrower: RelaySettings, *_: object, **__: object) -> AuditSummary:
        asked.append((settings, narrower, os.environ.get("PGHOST")))
        return AuditSummary("clean", {}, 0, 0, {"expected": {}, "actual": {}}, {}, {}, [], {}, [], [])

    monkeypatch.setattr(command, "_database", audit)
    with relay() as engine:
        ended = run("--table", "public.x", "--exclude-table", "y", "--json", catch_exceptions=False)
    assert ended.exit_code == 0
    assert asked == [(RELAY, RelaySettings(tables=("public.x",), exclude_tables=("y",)), None)]
    assert os.environ["PGHOST"] == "nowhere"
    assert engine.verdicts == ["clean"]


def test_a_relay_that_only_records() -> None:
    with relay(RelaySettings(name="shop", record="/r", record_only=True)):
        with pytest.raises(UsageError, match=r"^relay shop only records, so it has no topics$"):
            run(catch_exceptions=False)
        ended = CliRunner().invoke(cli, ["verify", "--database", "--relay", "shop"])
    assert (ended.exit_code, ended.stdout) == (2, "")


def test_a_table_that_is_no_regular_expression() -> None:
    with relay(), pytest.raises(UsageError, match="--table: '\\(' is not a regular expression"):
        run("--table", "(", catch_exceptions=False)
