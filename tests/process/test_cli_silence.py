"""A command names the service that it waits for."""

import json
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner

from bwtui.cli.main import cli
from bwtui.cli.output import progress


@pytest.mark.parametrize("options", [[], ["--json"], ["--progress-json"]])
def test_a_frozen_server_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    """The kernel accepts the connection, and no process answers."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr(progress, "_SILENT_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as frozen:
        place = f"127.0.0.1:{frozen.getsockname()[1]}"
        dsn = f"postgresql://me@{place}/shop?connect_timeout=2"
        ran = CliRunner().invoke(cli, ["verify", "--database", "-d", dsn, *options])
    lines = ran.stderr.splitlines()
    if options == ["--progress-json"]:
        lines[:1] = [f"bwtui: {json.loads(lines[0])['waits']}"]
    assert ran.exit_code == 4
    assert lines[0].startswith("bwtui: PostgreSQL has not answered for ")
    assert lines[0].endswith(f" s: connect to {place}/shop")
    assert lines[1].startswith("bwtui: error: ")
