"""Failpoints: no effect without the variable, and one action at one point with it."""

import importlib
import subprocess
import sys
from typing import Any

import pytest

from bwtui.errors import ConnectionFailed, UsageError
from bwtui.relay import failpoints
from bwtui.relay.failpoints import EFFECTS, NAMES, arm


def targets() -> dict[str, Any]:
    """Return every function that has a failpoint."""
    found = {}
    for effect, path in EFFECTS.items():
        module, _, names = path.partition(":")
        owner: Any = importlib.import_module(module)
        for name in names.split("."):
            owner = getattr(owner, name)
        found[effect] = owner
    return found


def test_without_the_variable_every_function_is_as_it_was() -> None:
    before = targets()
    arm(None)
    arm("")
    assert all(one is before[effect] for effect, one in targets().items())


@pytest.mark.parametrize(
    "text", ["send", "before-send", "before-sent:kill", "before-send:x:kill", "before-send:1:2:kill", ":kill"]
)
def test_what_names_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a failpoint"):
        arm(text)


@pytest.mark.parametrize(("side", "called"), [("before", 1), ("after", 2)])
def test_it_acts_once_at_its_turn(monkeypatch: pytest.MonkeyPatch, side: str, called: int) -> None:
    calls: list[int] = []

    class Disk:
        def write(self, number: int) -> int:
            calls.append(number)
            return number

    monkeypatch.setattr(sys.modules[__name__], "Disk", Disk, raising=False)
    monkeypatch.setattr(failpoints, "EFFECTS", {**EFFECTS, "send": f"{__name__}:Disk.write"})
    arm(f"{side}-send:2:raise")
    disk = Disk()
    assert disk.write(1) == 1
    with pytest.raises(ConnectionFailed, match=f"failpoint {side}-send"):
        disk.write(2)
    assert len(calls) == called
    assert disk.write(3) == 3


def test_a_kill_is_one() -> None:
    program = (
        "import bwtui.relay.history.slot_checkpoint as m\n"
        "from bwtui.relay.failpoints import arm\n"
        "arm('before-state:kill')\n"
        "m.SlotCheckpointStore._write(None, None)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == -9


def test_each_has_two_sides() -> None:
    assert len(NAMES) == 2 * len(EFFECTS) == len(set(NAMES))
