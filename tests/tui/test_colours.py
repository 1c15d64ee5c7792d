"""The screens in every theme, without colours, with sixteen, and with wide characters.

``snapshots/*.tones`` contains the colours, letter for letter (`tests.tui.cells.TONES`), which are the same in
all themes. ``BWTUI_UPDATE_SNAPSHOTS=1 pytest tests/tui/test_colours.py`` rewrites them.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest
from rich.cells import cell_len

from bwtui.model.status import ChangeSample
from bwtui.tui.base.theme import THEMES
from tests.tui.cells import painted, tones
from tests.tui.doubles import Stage
from tests.tui.picture import lines
from tests.tui.pictured import can_be_read, compare_text
from tests.tui.recorded import RecordedStage
from tests.tui.shop import NOON, TABLES, Shop, ShopTable
from tests.tui.shop_history import history

SIZES = ((80, 24), (160, 45), (250, 70))
MODES = ("overview", "changes", "registry", "errors", "slots", "consumers")
#: Wide, joined and combined characters: of two cells each, one cell for several, and none.
WIDE = (
    "注文.受注明細",
    "public.👩‍👩‍👧‍👦family",
    "public.naïve café",
    "public.🏳️‍🌈",
    "public.ลูกค้า",
    "public.ｆｕｌｌ",
)


class WideShop(Shop):
    """A shop whose tables have names in other scripts."""

    def tables(self) -> dict[str, ShopTable]:
        return dict(zip(WIDE, TABLES.values(), strict=True))

    def changes(self, now: float, after: int) -> list[ChangeSample]:
        """Return the shop's changes, with values in other scripts."""
        return [self._widened(change) for change in super().changes(now, after)]

    def _widened(self, change: ChangeSample) -> ChangeSample:
        fields = tuple(
            replace(field, name="値段", before="e\u0301", after="👍🏽 注文") for field in change.fields
        )
        return replace(change, table=WIDE[change.sequence % len(WIDE)], key="id=注文", fields=fields)


async def shown(stage: Stage, mode: str) -> None:
    """Show a screen with all its elements."""
    stage.relay.past = history(NOON + 71)
    await stage.advance(8)
    await stage.show(mode)
    await stage.advance(1)


@pytest.mark.parametrize(
    ("mode", "size"), [(m, s) for m in MODES for s in SIZES[:2]] + [("overview", (250, 70))]
)
async def test_all_themes_paint_the_same_and_can_be_read(mode: str, size: tuple[int, int]) -> None:
    stage = Stage(Shop(trouble=True))
    pictures = {}
    async with stage.run(size):
        await shown(stage, mode)
        for theme in THEMES:
            assert stage.app.theme == theme.name
            pictures[theme.name] = ("\n".join(lines(stage.app)), "\n".join(tones(stage.app)) + "\n")
            can_be_read(stage.app)
            await stage.press("t")
    assert len({text for text, _ in pictures.values()}) == 1, "a theme changes nothing but colours"
    if mode == "registry":
        # A schema's text has the highlighter's colours.
        return
    assert len({kinds for _, kinds in pictures.values()}) == 1, "and all of them at once"
    compare_text(f"{mode}-{size[0]}x{size[1]}.tones", pictures[THEMES[0].name][1])


@pytest.mark.parametrize("make", [Stage, RecordedStage])
async def test_without_colours_everything_can_still_be_told(
    make: Callable[[], Stage | RecordedStage], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    stage = make()
    async with stage.run((160, 45)):
        cells = painted(stage.app)
        for cell in (cell for line in cells for cell in line):
            assert cell.style.color is None and cell.style.bgcolor is None, cell
        tab = "".join(cell.text for cell in cells[0] if cell.style.reverse)
        assert "1 Overview" in tab, "the tab that is shown is turned round"
        cursor = [line for line in lines(stage.app) if "› " in line[:4]]
        assert len(cursor) == 1


@pytest.mark.parametrize("size", SIZES[:2])
@pytest.mark.parametrize("mode", ["overview", "changes"])
async def test_wide_characters_move_no_frame(mode: str, size: tuple[int, int]) -> None:
    stage = Stage(WideShop())
    async with stage.run(size):
        await shown(stage, mode)
        for line in lines(stage.app):
            assert cell_len(line) <= size[0]
            if line.startswith("│"):
                assert line.endswith("│"), line
                assert cell_len(line) == size[0], line
        shown_names = "\n".join(lines(stage.app))
        assert any(name in shown_names for name in WIDE)
        compare_text(f"wide-{mode}-{size[0]}x{size[1]}.txt", shown_names + "\n")
