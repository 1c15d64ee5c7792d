"""Make the README's screenshots of the rewinding screens from a recording.

Run as ``.venv/bin/python docs/screenshots/open.py [--png FOLDER] [--recording FOLDER] [SCENE …]``; the
recording is recordings/shop by default.
"""

import argparse
import asyncio
import sys
from pathlib import Path

from textual.pilot import Pilot

FOLDER = Path(__file__).parent
ROOT = FOLDER.parent.parent
sys.path[:0] = [str(ROOT), str(FOLDER)]

from make import to_png  # noqa: E402

from bwtui.recording.reader import open_recording  # noqa: E402
from bwtui.recording.view import RecordingView  # noqa: E402
from bwtui.tui.recording_app import RecordingApp  # noqa: E402
from bwtui.tui.screens.dialogs import Ending  # noqa: E402
from bwtui.tui.sources.model import ViewSettings  # noqa: E402
from bwtui.tui.sources.recorded_model import RecordingSource  # noqa: E402

WIDE, MEDIUM, SMALL = (160, 40), (130, 38), (80, 24)
QUERY = "table = orders and op = update"
#: A transaction that touches many tables, and a key that was changed often.
ORDER, PRODUCT = "table = orders and op = insert", "table = products and op = update"
#: File name → terminal, where to stand, keys to press (a text in braces is typed), theme.
SCENES: dict[str, tuple[tuple[int, int], str, tuple[str, ...], str]] = {
    "open-overview": (WIDE, "70%", ("greater_than_sign", "space"), "bwtui-dark"),
    "open-changes": (MEDIUM, "80%", ("2", "slash", f"{{{QUERY}}}", "enter"), "bwtui-dark"),
    "open-transaction": (
        MEDIUM,
        "60%",
        ("2", "slash", f"{{{ORDER}}}", "enter", "T", "up", "up"),
        "bwtui-dark",
    ),
    "open-key": (
        MEDIUM,
        "90%",
        ("2", "slash", f"{{{PRODUCT}}}", "enter", "x", "down", "down"),
        "bwtui-dark",
    ),
    "open-rows": (MEDIUM, "50%", ("down", "down", "down", "a", "down"), "bwtui-dark"),
}
#: For looking at, not for the README.
MORE: dict[str, tuple[tuple[int, int], str, tuple[str, ...], str]] = {
    "overview-small": (SMALL, "end", (), "bwtui-dark"),
    "changes-small": (SMALL, "60%", ("2",), "bwtui-dark"),
    "changes-light": ((200, 60), "60%", ("2",), "bwtui-light"),
    "query-wrong": (MEDIUM, "60%", ("2", "slash", "{table = orders and total > 5}"), "bwtui-dark"),
    "seek": (SMALL, "60%", ("2", "colon"), "bwtui-light"),
    "table": (WIDE, "60%", ("down", "enter"), "bwtui-dark"),
}


async def picture(view: RecordingView, path: Path, scene: str) -> str:
    """Return a scene of the recording as SVG."""
    size, place, keys, theme = (SCENES | MORE)[scene]
    source = RecordingSource(view, lambda: open_recording(path))
    source.player.seek_text(place)
    app = RecordingApp(source, ViewSettings(rate=10, theme=theme))
    async with app.run_test(size=size) as pilot:
        await _watch(pilot, 3.0)
        for key in keys:
            await pilot.press(*(_names(key) if key.startswith("{") else (key,)))
            await _watch(pilot, 1.0)
        await _watch(pilot, 2.0)
        return app.export_screenshot(title="bwtui")


def _names(text: str) -> list[str]:
    """Return the keys that type what stands in braces."""
    names = {" ": "space"}
    return [names.get(letter, letter) for letter in text[1:-1]]


async def _watch(pilot: Pilot[Ending], seconds: float) -> None:
    """Let the app work for a while: its clock is the real one."""
    end = asyncio.get_running_loop().time() + seconds
    while asyncio.get_running_loop().time() < end:
        await pilot.pause(0.1)


def main() -> None:
    """Make all scenes, or those named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--png", type=Path, help="a folder for PNG files as well")
    parser.add_argument("--recording", type=Path, default=ROOT / "recordings" / "shop")
    parser.add_argument("scenes", nargs="*", help="all of the README when none is named")
    options = parser.parse_args()
    for scene in options.scenes or SCENES:
        view = open_recording(options.recording)
        svg = asyncio.run(picture(view, options.recording, scene))
        if scene in SCENES:
            (FOLDER / f"{scene}.svg").write_text(svg)
        if options.png:
            to_png(svg, options.png / f"{scene}.png")
        print(scene)


if __name__ == "__main__":
    main()
