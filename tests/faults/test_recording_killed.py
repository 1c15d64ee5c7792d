"""A recording that ``kill -9`` left is unfinished, not damaged, and each command names the fix."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from bwtui.cli.main import cli
from bwtui.sandbox.sandbox import ServiceAddresses
from tests.faults.recordings import size
from tests.faults.relays import Relay, execute, wait_for
from tests.faults.writer import create_tables

pytestmark = pytest.mark.services
NewRelay = Callable[..., Relay]
ROWS = 500


def bwtui(*args: str | Path) -> Result:
    return CliRunner().invoke(cli, [str(arg) for arg in args], prog_name="bwtui")


@pytest.mark.parametrize("segment_bytes", [64 << 20, 20_000], ids=["one segment", "several"])
def test_a_killed_recording_is_unfinished(
    services: ServiceAddresses, database: str, new_relay: NewRelay, tmp_path: Path, segment_bytes: int
) -> None:
    folder = tmp_path / "recording"
    create_tables(database, ROWS)
    relay = new_relay("--record", str(folder), "--segment-bytes", str(segment_bytes))
    relay.start()
    relay.wait_streaming()
    before = size(folder)
    for number in range(3):
        execute(database, f"update accounts set number = {number}")
        relay.wait_caught_up()
    wait_for("they are recorded", lambda: size(folder) > before)
    relay.kill()
    recover = f"bwtui recording recover {folder}"

    checked = bwtui("recording", "check", folder, "--json")
    report = json.loads(checked.stdout)
    assert report["verdict"] == "unfinished"
    assert report["damages"] == []
    assert checked.exit_code == 6
    assert "is not finished" in checked.stderr
    assert recover in checked.stderr

    shown = bwtui("recording", "info", folder)
    assert shown.exit_code == 0
    assert "recording, unfinished" in shown.stdout

    kafka = ("-b", services.broker, "-r", services.schema_registry)
    verified = bwtui("verify", folder, *kafka)
    said = verified.stdout + verified.stderr
    assert "is unfinished" in said
    assert recover in said
    assert "being written" not in said
    assert "damaged" not in said

    assert bwtui("recording", "recover", folder).exit_code == 0
    assert bwtui("recording", "check", folder).exit_code == 0
    again = bwtui("verify", folder, *kafka)
    assert again.exit_code == 0, again.output
    assert "unfinished" not in again.output
