"""Make the screenshots and docs/keys.md from the running program.

Run as ``.venv/bin/python docs/screenshots/make.py [--png FOLDER] [SCENE …]``; PNG needs
rsvg-convert. The relay is the made-up shop of tests/tui, so that the pictures are the same on every run.
"""

import argparse
import asyncio
import os
import re
import subprocess
import sys
import time
from pathlib import Path

FOLDER = Path(__file__).parent
ROOT = FOLDER.parent.parent
sys.path.insert(0, str(ROOT))

from bwtui.tui.base.keys import docs_table  # noqa: E402
from bwtui.tui.sources.model import ViewSettings  # noqa: E402
from tests.tui.doubles import Stage  # noqa: E402
from tests.tui.shop import Shop  # noqa: E402

WIDE, SMALL, MEDIUM = (200, 50), (80, 24), (120, 36)
TROUBLE = Shop(trouble=True)
#: File name → terminal, relay, keys to press, theme.
SCENES = {
    "overview": (WIDE, TROUBLE, (), "bwtui-dark"),
    "overview-light": (WIDE, TROUBLE, (), "bwtui-light"),
    "overview-80x24": (SMALL, Shop(), (), "bwtui-dark"),
    "slow-80x24": (SMALL, Shop(slow="produce"), (), "bwtui-dark"),
    "snapshot": (MEDIUM, Shop(state="snapshot", start=Shop().start + 42), (), "bwtui-dark"),
    "changes": (MEDIUM, Shop(), ("2", "up"), "bwtui-dark"),
    "changes-80x24": (SMALL, Shop(), ("2",), "bwtui-dark"),
    "registry": (MEDIUM, Shop(), ("3", *["down"] * 6), "bwtui-dark"),
    "errors": (MEDIUM, TROUBLE, ("4",), "bwtui-dark"),
    "table": (MEDIUM, TROUBLE, ("down", "down", "down", "enter"), "bwtui-dark"),
    "help": (MEDIUM, Shop(), ("question_mark",), "bwtui-dark"),
    "leave": (MEDIUM, Shop(), ("q",), "bwtui-dark"),
    "paused": (MEDIUM, TROUBLE, ("space",), "bwtui-dark"),
}


async def picture(name: str) -> str:
    """Return a scene as SVG."""
    size, shop, keys, theme = SCENES[name]
    stage = Stage(shop, ViewSettings(theme=theme))
    # The shop is a minute old at the end.
    stage.clock.now -= 21
    async with stage.run(size):
        await stage.advance(18)
        await stage.press(*keys)
        await stage.advance(12 if name in ("paused", "changes") else 1)
        return even(stage.app.export_screenshot(title="bwtui"))


def even(svg: str) -> str:
    """Give a chart's blanks the width of its dots, whichever font the reader has for them."""

    def blanks(run: re.Match[str]) -> str:
        return run[0].replace("&#160;", "\u2800") if re.search("[\u2801-\u28ff]", run[0]) else run[0]

    return re.sub(r">[^<>]+</text>", blanks, svg)


def to_png(svg: str, path: Path) -> None:
    """Convert with a font that is as wide as the cells of the SVG, which are 0.61 em of 20 px."""
    text = re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL)
    text = re.sub(r"font-family: [^;]*;", "font-family: DejaVu Sans Mono;", text)
    text = text.replace("font-size: 20px", "font-size: 20.264px").replace(
        "<text ", '<text xml:space="preserve" '
    )
    command = ["rsvg-convert", "--zoom", "0.75", "-o", str(path)]
    subprocess.run(command, input=text.encode(), check=True)


def main() -> None:
    """Make all scenes, or those named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--png", type=Path, help="a folder for PNG files as well")
    parser.add_argument("scenes", nargs="*", help="all when none is named")
    options = parser.parse_args()
    os.environ["TZ"] = "UTC"
    time.tzset()
    (ROOT / "docs" / "keys.md").write_text(docs_table())
    for name in options.scenes or SCENES:
        svg = asyncio.run(picture(name))
        (FOLDER / f"{name}.svg").write_text(svg)
        if options.png:
            to_png(svg, options.png / f"{name}.png")
        print(name)


if __name__ == "__main__":
    main()
