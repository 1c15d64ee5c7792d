"""Messages of the demo's screens about the demo itself."""

from typing import Any

import pytest

from bwtui.demo.screens import DemoSource
from bwtui.errors import BwtuiError
from bwtui.model.status import Status
from bwtui.relay.process.control import ControlClient


class _Demo:
    """A demo whose writes have ended unexpectedly."""

    def check_writes(self) -> None:
        raise BwtuiError("the workload ended unexpectedly with exit code -9", "look at the log")


async def test_a_workload_that_died_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def status(self: Any) -> Status:
        return Status("streaming", "demo", "s", time=17.0)

    monkeypatch.setattr(ControlClient, "status", status)
    source = DemoSource(_Demo())  # type: ignore[arg-type]
    for _ in range(2):
        found = await source.status()
        assert "the workload ended unexpectedly" in found.detail
        assert [(e.kind, e.time, e.hint) for e in found.errors] == [("workload", 17.0, "look at the log")]
