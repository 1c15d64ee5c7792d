"""Pictures, as plain text: what a change of layout did to them is plain to read in a diff.

``BWTUI_UPDATE_SNAPSHOTS=1 pytest tests/tui/test_snapshots.py`` writes them anew.
"""

import os
import re
from pathlib import Path

import pytest

from tests.tui.doubles import Stage
from tests.tui.picture import text
from tests.tui.shop import NOON, Shop
from tests.tui.shop_history import history

FOLDER = Path(__file__).parent / "snapshots"
TROUBLE = Shop(trouble=True)
SCENES: dict[str, tuple[tuple[int, int], Shop, tuple[str, ...]]] = {
    "overview-80x24": ((80, 24), TROUBLE, ()),
    "overview-100x40": ((100, 40), TROUBLE, ()),
    "overview-160x45": ((160, 45), TROUBLE, ()),
    "overview-250x70": ((250, 70), TROUBLE, ()),
    "slow-80x24": ((80, 24), Shop(slow="produce"), ()),
    "snapshot-120x36": ((120, 36), Shop(state="snapshot", start=NOON + 42), ()),
    "changes-80x24": ((80, 24), Shop(), ("2",)),
    "changes-200x60": ((200, 60), Shop(), ("2", "up")),
    "registry-120x36": ((120, 36), Shop(), ("3", "end")),
    **{
        f"versions-{size[0]}x{size[1]}": (size, Shop(), ("3", "slash", *"orders-v", "enter", "D"))
        for size in ((80, 24), (160, 45), (250, 70))
    },
    "errors-80x24": ((80, 24), TROUBLE, ("4",)),
    "table-120x36": ((120, 36), TROUBLE, ("down", "down", "enter")),
    "leave-80x24": ((80, 24), Shop(), ("q",)),
    "transactions-80x24": ((80, 24), Shop(), ("0",)),
    "transactions-160x45": ((160, 45), Shop(), ("0",)),
    "transactions-250x70": ((250, 70), Shop(), ("0",)),
    "transaction-120x36": ((120, 36), Shop(), ("0", "enter")),
}


@pytest.mark.parametrize("name", SCENES)
async def test_snapshot(name: str) -> None:
    size, shop, keys = SCENES[name]
    stage = Stage(shop)
    stage.relay.past = history(NOON + 71)
    async with stage.run(size):
        await stage.advance(8)
        for key in keys:
            await stage.press(key)
            # A screen has rows to move among once it was sampled, which the app by itself does now and then.
            await stage.app.sample()
        await stage.advance(1)
        shown = await steady(stage)
    compare(name, shown)


def compare(name: str, shown: str) -> None:
    """Compare what is shown with the picture of that name, or write that anew."""
    path = FOLDER / f"{name}.txt"
    if os.environ.get("BWTUI_UPDATE_SNAPSHOTS"):
        FOLDER.mkdir(exist_ok=True)
        path.write_text(shown)
    assert without_thumbs(shown) == without_thumbs(path.read_text())


def without_thumbs(shown: str) -> str:
    """Leave out where a scrollbar's thumb ends, in eighths of a line: it is not the same on every run."""
    return re.sub("[▁▂▃▄▅▆▇](?=│)", " ", shown)


async def steady(stage: Stage) -> str:
    """Return what the screen shows once it shows the same thing again and again."""
    shown, same = "", 0
    for _ in range(50):
        await stage.settle()
        now = text(stage.app) + "\n"
        same = same + 1 if now == shown else 0
        shown = now
        if same == 3:
            break
    return shown
