"""Pictures of the screens of a relay, in two themes (`tests.tui.pictured`)."""

import pytest

from tests.tui.doubles import Stage
from tests.tui.pictured import compare
from tests.tui.shop import NOON, Shop
from tests.tui.shop_history import history

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
            # A screen needs a sample before it has rows to move among; the app samples only now and then.
            await stage.app.sample()
        await stage.advance(1)
        await compare(stage, name)
