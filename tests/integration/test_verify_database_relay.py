"""``bwtui verify --database --relay NAME``: the running relay supplies the settings."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from textual.pilot import Pilot

from bwtui.cli.inputs.audit_sources import records_of
from bwtui.relay.process.control import ControlClient
from bwtui.tui.app import RelayApp
from bwtui.tui.audit.session import RelayAuditSession
from bwtui.tui.screens.audit import ReportScreen
from bwtui.tui.screens.dialogs import Ending
from bwtui.tui.sources.relay_model import RelayModel
from tests.attempts import Attempts
from tests.database import Session
from tests.integration.test_verify_database import relaying
from tests.tui.picture import text

pytestmark = pytest.mark.services

_COMMAND = (sys.executable, "-c", "from bwtui.cli.main import main; main()")


def verify(attempts: Attempts, folder: Path, *args: str) -> "subprocess.CompletedProcess[str]":
    """Run the command in ``folder``, whose files and variables must not matter."""
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
    # In the folder in which the relay began, this is a file.
    (tmp_path / "ca.pem").touch()
    elsewhere = tmp_path / "elsewhere"
    chosen = ("--table", "a|b", "-C", "ssl.ca.location=ca.pem")
    with relaying(attempts, database, source, *chosen):
        source.run("insert into a values (3)")
        whole = report(verify(attempts, elsewhere))
        assert (whole["tables"], whole["expected"]) == (["public.a", "public.b"], 5)
        assert whole["command"] == f"bwtui verify --database --relay {attempts.name} --json"
        # A table that the relay leaves out can't be requested.
        narrow = report(verify(attempts, elsewhere, "--table", "[ac]"))
        assert narrow["tables"] == ["public.a"]
        without = report(verify(attempts, elsewhere, "--exclude-table", "a"))
        assert without["tables"] == ["public.b"]
        ended = verify(attempts, elsewhere, "--table", "c")
        assert ended.returncode == 2
        assert "no table is selected for the comparison" in ended.stderr
    ended = verify(attempts, elsewhere)
    assert (ended.returncode, ended.stdout) == (4, "")
    assert f"no relay called {attempts.name} is running" in ended.stderr


async def test_the_screens_verify_the_relay_that_they_show(
    attempts: Attempts, source: Session, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.run("create table a (id int primary key, v text); insert into a values (1, 'one'), (2, 'two')")
    monkeypatch.setenv("BWTUI_STATE_HOME", str(attempts.state))
    with relaying(attempts, database, source):
        # A record of no row: the topic has a key that the table lacks.
        producer = Producer({"bootstrap.servers": attempts.services.broker, "partitioner": "murmur2_random"})
        producer.produce(f"{attempts.name}.a", b"a value", b"strange")
        assert producer.flush(30) == 0
        audit = RelayAuditSession(attempts.name, lambda: records_of(attempts.name))
        client = ControlClient(attempts.name)
        app = RelayApp(RelayModel(client), audit=audit)
        async with app.run_test(size=(140, 40)) as pilot:
            await pilot.press("v", "enter")
            await until(pilot, lambda: isinstance(app.screen, ReportScreen) and audit.report is not None)
            assert audit.report is not None
            assert (audit.report.verdict, audit.report.wrong) == ("anomalies", 1)
            await pilot.press("enter", "enter")
            await until(pilot, lambda: "key: 7 bytes that can't be decoded" in text(app))
        # Not before the screens, which would connect again.
        await client.close()


async def until(pilot: Pilot[Ending], condition: Callable[[], bool]) -> None:
    """Wait for a state of the screens."""
    for _ in range(1_200):
        if condition():
            return
        await pilot.pause(0.05)
    raise AssertionError(text(pilot.app))
