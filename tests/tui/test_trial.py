"""Try a file of DDL from the registry screen: the question, the result, and the refusals."""

from pathlib import Path
from typing import Any

import pytest
from textual.widgets import Input

from bwtui.tui.screens.dialogs import AskScreen, FormScreen, completed
from bwtui.tui.screens.jobs import JobScreen
from tests.tui.commands import Commands
from tests.tui.doubles import Stage
from tests.tui.picture import text
from tests.tui.recorded import RecordedStage

SIZES = ((80, 24), (160, 45), (250, 70))


class TrialStage(Commands, Stage):
    """The screens of a relay, with commands that a test ends."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.take_commands(folder)


def part(result: str, *reasons: str) -> dict[str, Any]:
    return {"subject": "orders-value", "result": result, "rule": "BACKWARD", "reasons": list(reasons)}


def table(value: dict[str, Any] | None, error: str | None = None) -> dict[str, Any]:
    good = error is None and (value or {}).get("result") != "incompatible"
    return {"topic": "t", "ok": good, "key": part("unchanged"), "value": value, "error": error}


BAD = {
    "ok": False,
    "tables": {
        "public.customers": table(part("compatible")),
        "public.orders": table(part("incompatible", 'field "total" changed from decimal(10,2) to string')),
        "public.audit": table(None, "table public.audit has no primary key"),
    },
}
GOOD = {"ok": True, "tables": {"public.orders": table(part("compatible"))}}


async def begin(stage: TrialStage, path: str) -> None:
    """Request a trial of a file."""
    await stage.press("3", "c")
    assert isinstance(stage.app.screen, FormScreen)
    stage.app.screen.query_one("#script", Input).value = path
    await stage.press("enter")
    await stage.until_reading()


@pytest.mark.parametrize("size", SIZES)
async def test_each_table_says_what_would_stop_it(tmp_path: Path, size: tuple[int, int]) -> None:
    stage = TrialStage(tmp_path)
    async with stage.run(size):
        await begin(stage, "~/migration.sql")
        path = str(Path("~/migration.sql").expanduser())
        assert stage.commands == [("schema", "check", "--relay", "shop", "--json", "--ddl", path)]
        await stage.end(BAD, code=1, said="bwtui: error: 2 of 3 tables would stop the relay\nhint: …\n")
        assert isinstance(stage.app.screen, AskScreen)
        seen = text(stage.app)
        assert "✗ 2 of 3 tables would stop the relay after migration.sql" in seen
        assert 'field "total" changed from decimal(10,2) to string' in seen
        assert "orders-value, compatibility level BACKWARD" in seen
        assert "table public.audit has no primary key" in seen
        await stage.press("escape")
        # The path is remembered for the next time.
        await stage.press("c")
        assert stage.app.screen.query_one("#script", Input).value == "~/migration.sql"


async def test_all_that_is_compatible_says_so(tmp_path: Path) -> None:
    stage = TrialStage(tmp_path)
    async with stage.run():
        await begin(stage, "m.sql")
        await stage.end(GOOD)
        assert "✓ all 1 tables are compatible after m.sql" in text(stage.app)
        assert "Nothing was changed" in text(stage.app)


async def test_without_a_file_the_tables_are_looked_at_as_they_are(tmp_path: Path) -> None:
    stage = TrialStage(tmp_path)
    async with stage.run():
        await begin(stage, "")
        assert stage.commands == [("schema", "check", "--relay", "shop", "--json")]
        await stage.end({"ok": True, "tables": {}})
        assert "▲ this relay has no tables at present" in text(stage.app)


async def test_a_path_is_never_an_option_nor_stdin(tmp_path: Path) -> None:
    for name in ("-", "--help"):
        folder = tmp_path / name.strip("-") / "x"
        folder.mkdir(parents=True)
        stage = TrialStage(folder)
        async with stage.run():
            await begin(stage, name)
            assert stage.commands[0][-1] == str(Path.cwd() / name)
            await stage.end(GOOD)


async def test_an_error_in_the_file_is_shown_with_its_place(tmp_path: Path) -> None:
    stage = TrialStage(tmp_path)
    async with stage.run():
        await begin(stage, "m.sql")
        said = 'ALTER TABLE nothing (line 3) fails: relation "nothing" does not exist'
        await stage.end(code=2, said=f"bwtui: error: {said}\nhint: name a table that is there\n")
        assert isinstance(stage.app.screen, JobScreen)
        seen = " ".join(text(stage.app).split())
        assert "ALTER TABLE nothing (line 3) fails" in seen
        assert "→ name a table that is there" in seen


async def test_a_result_that_comes_in_the_background_is_told(tmp_path: Path) -> None:
    stage = TrialStage(tmp_path)
    async with stage.run():
        await begin(stage, "m.sql")
        await stage.press("escape", "1")
        await stage.end(GOOD)
        assert [one.message for one in stage.app._notifications] == ["every table is compatible"]


async def test_hostile_names_are_shown_as_they_are(tmp_path: Path) -> None:
    hostile = "public.[b]o\x1b[31m\nrders[/b]"
    stage = TrialStage(tmp_path)
    async with stage.run((120, 40)):
        await begin(stage, "[red]m.sql")
        await stage.end({"ok": False, "tables": {hostile: table(None, "no\x07key")}}, code=1)
        seen = text(stage.app)
        assert "public.[b]o\\x1b[31m" in seen
        assert "[red]m.sql" in seen
        assert "no\\x07key" in seen


async def test_a_recording_says_why_nothing_can_be_tried() -> None:
    stage = RecordedStage()
    async with stage.run():
        await stage.press("3", "c")
        assert [told.strip() for told in stage.told] == [
            "A recording has no server to try DDL on; use 'bwtui schema check --ddl FILE'"
        ]


def test_paths_are_completed_as_far_as_they_are_alike(tmp_path: Path) -> None:
    for name in ("one.sql", "onetwo.sql", ".hidden", "b\x1b[31m"):
        (tmp_path / name).touch()
    (tmp_path / "folder").mkdir()
    assert completed(f"{tmp_path}/fo") == f"{tmp_path}/folder/"
    assert completed(f"{tmp_path}/o") == f"{tmp_path}/one"
    assert completed(f"{tmp_path}/one") is None
    assert completed(f"{tmp_path}/onet") == f"{tmp_path}/onetwo.sql"
    assert completed(f"{tmp_path}/.h") == f"{tmp_path}/.hidden"
    assert completed(f"{tmp_path}/b") is None
    assert completed(f"{tmp_path}/nothing/x") is None
