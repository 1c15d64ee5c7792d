"""``bwtui verify --database --relay NAME``: the running relay says where to look."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.attempts import Attempts
from tests.database import Session
from tests.integration.test_verify_database import relaying

pytestmark = pytest.mark.services

_COMMAND = (sys.executable, "-c", "from bwtui.cli.main import main; main()")


def verify(attempts: Attempts, folder: Path, *args: str) -> "subprocess.CompletedProcess[str]":
    """Run the command in ``folder``; what it finds there and in its variables leads nowhere."""
    folder.mkdir(exist_ok=True)
    (folder / "bwtui.toml").write_text("broker = 'localhost:1'\n")
    around = {name: value for name, value in os.environ.items() if not name.startswith(("BWTUI_", "PG"))}
    around |= {"BWTUI_STATE_HOME": str(attempts.state), "XDG_CONFIG_HOME": str(folder)}
    around |= {"BWTUI_SLOT": "another", "PGHOST": "nowhere", "PGSSLMODE": "verify-full"}
    return subprocess.run(
        [*_COMMAND, "verify", "--database", "--relay", attempts.name, "--json", *args],
        env=around,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def report(ended: "subprocess.CompletedProcess[str]") -> dict[str, Any]:
    """Return the report of a clean audit."""
    assert (ended.returncode, ended.stderr) == (0, "")
    found: dict[str, Any] = json.loads(ended.stdout)
    assert found["verdict"] == "clean"
    return found


def test_a_relay_is_verified_from_anywhere(
    attempts: Attempts, source: Session, database: str, tmp_path: Path
) -> None:
    for name in ("a", "b", "c"):
        source.run(f"create table {name} (id int primary key); insert into {name} values (1), (2)")
    # Where the relay began, this is a file.
    (tmp_path / "ca.pem").touch()
    elsewhere = tmp_path / "elsewhere"
    chosen = ("--table", "a|b", "-C", "ssl.ca.location=ca.pem")
    with relaying(attempts, database, source, *chosen):
        source.run("insert into a values (3)")
        whole = report(verify(attempts, elsewhere))
        assert (whole["tables"], whole["expected"]) == (["public.a", "public.b"], 5)
        assert whole["command"] == f"bwtui verify --database --relay {attempts.name} --json"
        # What the relay leaves out nobody can ask for.
        narrow = report(verify(attempts, elsewhere, "--table", "[ac]"))
        assert narrow["tables"] == ["public.a"]
        without = report(verify(attempts, elsewhere, "--exclude-table", "a"))
        assert without["tables"] == ["public.b"]
        ended = verify(attempts, elsewhere, "--table", "c")
        assert ended.returncode == 2
        assert "no table is to be compared" in ended.stderr
    ended = verify(attempts, elsewhere)
    assert (ended.returncode, ended.stdout) == (4, "")
    assert f"no relay called {attempts.name} is running" in ended.stderr
