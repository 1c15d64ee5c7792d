"""Make the README's screenshots from a running relay.

With ``bwtui demo`` running: ``.venv/bin/python docs/screenshots/live.py [NAME [SCENE …]]``. The pictures show
whatever that relay does at the moment.
"""

import asyncio
import sys
from pathlib import Path

from textual.pilot import Pilot

from bwtui.relay.process.control import ControlClient
from bwtui.tui.app import RelayApp
from bwtui.tui.screens.dialogs import Ending
from bwtui.tui.state import RelayModel

FOLDER = Path(__file__).parent
#: Seconds of history that a picture of the overview should have.
HISTORY = 45.0
#: File name → terminal, and the keys that lead to the scene.
SCENES: dict[str, tuple[tuple[int, int], tuple[str, ...]]] = {
    "live-overview": ((160, 40), ()),
    "live-changes": ((130, 36), ("2", "slash", *"update.*orders", "enter", "up", "up")),
    "live-registry": ((130, 36), ("3", "down", "down")),
    "live-table": ((130, 36), ("down", "down", "enter")),
    "live-errors": ((130, 24), ("4",)),
}


async def picture(name: str, scene: str) -> str:
    """Return a scene of the relay called ``name`` as SVG."""
    size, keys = SCENES[scene]
    app = RelayApp(RelayModel(ControlClient(name)))
    async with app.run_test(size=size) as pilot:
        await _watch(pilot, HISTORY if not keys else 4.0)
        await pilot.press(*keys)
        await _watch(pilot, 3.0)
        return app.export_screenshot(title="bwtui")


async def _watch(pilot: Pilot[Ending], seconds: float) -> None:
    """Let the app sample for a while: its clock is the real one."""
    end = asyncio.get_running_loop().time() + seconds
    while asyncio.get_running_loop().time() < end:
        await pilot.pause(0.1)


def main() -> None:
    """Make all scenes."""
    name = sys.argv[1] if len(sys.argv) > 1 else "demo"
    for scene in sys.argv[2:] or SCENES:
        (FOLDER / f"{scene}.svg").write_text(asyncio.run(picture(name, scene)))
        print(scene)


if __name__ == "__main__":
    main()
