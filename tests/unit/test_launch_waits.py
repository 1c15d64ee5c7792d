"""Messages about an engine that neither starts nor exits."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bwtui.errors import BwtuiError
from bwtui.model.status import Status
from bwtui.relay.process import launch


@pytest.fixture
def process() -> Iterator["subprocess.Popen[bytes]"]:
    """A process that does not exit on its own."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as made:
        yield made
        made.kill()


def test_one_that_failed_and_does_not_end_is_no_relay_that_runs(
    process: "subprocess.Popen[bytes]", monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("BWTUI_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(launch, "_READY_SECONDS", 0.2)
    told = Status("failed", "shop", "shop", detail="slot shop is gone").to_json()
    monkeypatch.setattr(launch, "request", lambda name, message: told)
    with pytest.raises(BwtuiError) as raised:
        launch.EngineProcess("shop", process).wait_ready()
    assert str(raised.value) == "the relay failed, but its process has not ended: slot shop is gone"
    assert raised.value.hint == f"see {tmp_path / 'shop' / 'engine.log'}"
