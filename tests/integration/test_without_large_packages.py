"""Relay, screens and recordings without Spark, pandas, pyarrow, DuckDB and Java installed."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bwtui.sandbox.sandbox import ServiceAddresses
from tests.database import session
from tests.on_terminal import OnTerminal
from tests.without_packages import without_packages

pytestmark = pytest.mark.services


def test_a_recording_is_made_checked_and_opened(
    services: ServiceAddresses, database: str, tmp_path: Path
) -> None:
    with session(database) as shop:
        shop.run("create table items (id int primary key, body text)")
        shop.run("insert into items select n, 'x' from generate_series(1, 100) n")
    environment = without_packages(tmp_path)
    program = [sys.executable, "-P", "-m", "bwtui"]
    to = [
        "-d",
        database,
        "-b",
        services.broker,
        "-r",
        services.schema_registry,
        "-p",
        tmp_path.name,
        "-s",
        "alone",
    ]
    commands = (
        ["connect", *to, "--headless", "--json", "--record", "shop", "--until-caught-up"],
        ["recording", "check", "shop"],
    )
    said = [
        subprocess.run(
            [*program, *args],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        ).stdout
        for args in commands
    ]
    status = json.loads(said[0].splitlines()[-1])
    assert (status["state"], status["tables"]["public.items"]["snapshot_rows"]) == ("stopped", 100)
    assert "100 messages, 100 acknowledged" in said[1]
    with OnTerminal([*program, "open", "shop"], environment, tmp_path) as screens:
        screens.wait_for_screens()
        assert screens.ended(signal.SIGTERM) == 130
        assert b"not installed" not in screens.said
