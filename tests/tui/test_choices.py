"""The choices in bwtui.toml: keys and colours, and the errors for invalid ones."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.color import ColorSystem
from textual.color import Color
from textual.theme import Theme

from bwtui import config
from bwtui.cli import config as command
from bwtui.cli.main import CONTEXT, guarded
from bwtui.errors import UsageError
from bwtui.tui.audit.report import parse_report
from bwtui.tui.base.actions import ACTIONS, choose_keys
from bwtui.tui.base.choices import Choices, chosen, parse_key
from bwtui.tui.base.keys import name_of
from bwtui.tui.base.theme import BASIC, HIGH_CONTRAST, NAMES, THEMES, contrast, named
from bwtui.tui.screens.audit import ClassGrid
from bwtui.tui.screens.dialogs import HelpScreen, LeaveScreen
from bwtui.tui.sources.model import ViewSettings
from tests.tui.audited import REPORTS
from tests.tui.doubles import Stage
from tests.tui.picture import help_cells, lines, text
from tests.tui.recorded import RecordedStage


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty current folder; the default keys are restored afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "user"))
    yield tmp_path
    choose_keys({})


def written(toml: str, profile: str | None = None) -> Choices:
    """Return the choices in such a file."""
    Path("bwtui.toml").write_text(toml)
    return chosen(config.load(profile=profile, environ={}))


def refused(toml: str) -> tuple[str, str]:
    """Return the error for such a file, and its hint; 'config validate' gives the same."""
    with pytest.raises(UsageError) as caught:
        written(toml)
    said = CliRunner().invoke(command.config, ["validate"], **CONTEXT)
    assert isinstance(said.exception, UsageError)
    assert said.exception.message == caught.value.message
    assert guarded(lambda: command.config.main(["validate"], standalone_mode=False, **CONTEXT)) == 2
    return caught.value.message, caught.value.hint


# Keys.


def test_names_are_readable_and_each_is_one_actions() -> None:
    names = [name_of(action) for action in ACTIONS]
    assert len(set(names)) == len(names)
    assert all(name.replace("-", "").isalpha() and name.islower() for name in names), names
    assert {"pause", "show-changes", "step-back", "journey", "errors-only", "leave"} <= set(names)


async def test_other_keys_are_those_of_footer_help_tabs_and_sentences() -> None:
    choices = written('[keys]\npause = "P"\nshow-errors = ["f4", "4"]\nleave = "ctrl+x"\n')
    stage = Stage(session=ViewSettings(choices=choices))
    async with stage.run((160, 45)):
        assert "P Pause" in lines(stage.app)[-1]
        assert "F4" in lines(stage.app)[0]
        await stage.press("space")
        assert stage.app.model.paused is None
        await stage.press("P")
        assert stage.app.model.paused is not None
        assert "P resumes" in text(stage.app)
        for key in ("f4", "1", "4"):
            await stage.press(key)
        assert stage.app.current_mode == "errors"
        await stage.press("question_mark")
        assert isinstance(stage.app.screen, HelpScreen)
        assert "F4 4" in help_cells(stage.app)
        await stage.press("escape", "q")
        assert not isinstance(stage.app.screen, LeaveScreen)
        await stage.press("ctrl+x")
        assert isinstance(stage.app.screen, LeaveScreen)


async def test_a_sentence_names_the_key_that_was_chosen() -> None:
    stage = RecordedStage(session=ViewSettings(choices=written('[keys]\nstep-on = "f3"\n')))
    async with stage.run():
        await stage.press("2", "g")
        assert "no change before this position; F3 goes to the first change" in text(stage.app)


async def test_the_audit_screen_names_the_chosen_keys() -> None:
    choices = written('[keys]\nall-classes = "f3"\nopen = "f2"\n')
    stage = Stage(session=ViewSettings(choices=choices))
    async with stage.run((160, 45)):
        stage.app.audit.report = parse_report(json.loads((REPORTS / "database.json").read_text()))
        await stage.show("audit")
        assert stage.app.screen.query_one(ClassGrid).remark.endswith(" empty · F3")
        assert "F2: expected and actual message" in text(stage.app)


async def test_the_next_app_has_its_own_keys_again() -> None:
    stage = Stage(session=ViewSettings(choices=Choices(keys={"pause": ("P",)})))
    async with stage.run():
        pass
    stage = Stage()
    async with stage.run():
        await stage.press("P")
        assert stage.app.model.paused is None
        await stage.press("space")
        assert stage.app.model.paused is not None


async def test_the_ends_of_a_recording_and_of_its_lists_can_part() -> None:
    choices = written('[keys]\nbeginning = "b"\nending = "B"\ndown = ["down", "ctrl+n"]\n')
    stage = RecordedStage(session=ViewSettings(choices=choices))
    async with stage.run():
        await stage.press("2", "b")
        assert stage.head.position == 0
        await stage.press("ctrl+n", "ctrl+n")
        assert stage.head.position == 2
        await stage.press("j")
        assert stage.head.position == 2, "down has other keys now"
        await stage.press("B")
        assert stage.head.position == stage.recording.length


@pytest.mark.parametrize(
    ("line", "problem", "hint"),
    [
        ('paus = "p"', "./bwtui.toml [keys]: paus: unknown action", "did you mean 'pause'?"),
        ('pause = "foo"', "./bwtui.toml [keys]: pause: unknown key 'foo'", "such as 'p'"),
        ('pause = "shift+g"', "the same as the character", "write 'G'"),
        ('pause = "ctrl+i"', "terminals send Tab for 'ctrl+i'", "different letter"),
        ('pause = "ctrl+1"', "not every terminal sends 'ctrl+1'", "letter"),
        ('pause = ""', "unknown key ''", "such as"),
        ('pause = "\\u001b"', "is not a key", "such as"),
        ("pause = 1", "./bwtui.toml [keys]: pause: expected a string, or a list of strings", "quotes"),
        ("pause = []", "./bwtui.toml [keys]: pause: expected a string, or a list of strings", "quotes"),
        (
            'pause = "/"',
            "./bwtui.toml [keys]: pause: / is already the key of filter",
            "give filter a different key",
        ),
        ('sort = "p"', "./bwtui.toml [keys]: sort: p is already the key of place", "a different key"),
        ('up = "s"', "./bwtui.toml [keys]: up: s is already the key of sort", "a different key"),
        ('sort = "6"', "./bwtui.toml [keys]: sort: 6 is already the key of show-slots", "a different key"),
    ],
)
def test_keys_that_can_not_be(line: str, problem: str, hint: str) -> None:
    said = refused(f"[keys]\n{line}\n")
    assert problem in said[0]
    assert hint in said[1]


def test_a_clash_ends_where_the_other_has_another_key() -> None:
    choices = written('[keys]\npause = "/"\nfilter = "f"\nplay = "/"\n')
    assert choices.keys == {"pause": ("slash",), "filter": ("f",), "play": ("slash",)}


def test_a_profile_has_keys_of_its_own() -> None:
    toml = '[keys]\npause = "P"\n[profile.left.keys]\nsort = "ctrl+s"\n[profile.wrong.keys]\nsrt = "x"\n'
    assert written(toml).keys == {"pause": ("P",)}
    assert written(toml, "left").keys == {"pause": ("P",), "sort": ("ctrl+s",)}
    with pytest.raises(UsageError, match=r"\./bwtui.toml \[profile.wrong.keys\]: srt"):
        written(toml, "wrong")
    assert guarded(lambda: command.config.main(["validate"], standalone_mode=False, **CONTEXT)) == 2


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("p", "p"),
        ("?", "question_mark"),
        (",", "comma"),
        ("PgUp", "pageup"),
        ("Esc", "escape"),
        ("↑", "up"),
        ("Ctrl+X", "ctrl+x"),
        ("shift+left", "shift+left"),
        ("ctrl+home", "ctrl+home"),
        ("F12", "f12"),
        (" ", "space"),
        ("ö", "ö"),
    ],
)
def test_keys_as_people_write_them(text: str, key: str) -> None:
    assert parse_key(text) == key


def test_config_show_lists_them(capsys: pytest.CaptureFixture[str]) -> None:
    Path("bwtui.toml").write_text('readonly = true\n[keys]\npause = ["P", "f9"]\n[theme]\nname = "light"\n')
    assert guarded(lambda: command.config.main(["show"], standalone_mode=False, **CONTEXT)) == 0
    shown = capsys.readouterr().out
    for row in ("readonly +true +./bwtui.toml", "keys.pause +P, f9 +./bwtui.toml", "theme.name +light +"):
        import re

        assert re.search(row, shown), row


# Themes.


@pytest.mark.parametrize("name", NAMES)
def test_every_theme_can_be_read(name: str) -> None:
    theme = named(name)
    least = 7.0 if theme is HIGH_CONTRAST else 4.5
    grounds = [theme.background, theme.surface, theme.variables["bar"]]
    for text_colour in (
        *(getattr(theme, basic) for basic in BASIC),
        theme.foreground,
        theme.variables["quiet"],
    ):
        for ground in grounds:
            assert seen(text_colour, ground) >= least, (name, text_colour, ground)
        assert seen(text_colour, theme.variables["cursor"]) >= 3.0, (name, text_colour)


@pytest.mark.parametrize("theme", THEMES, ids=lambda theme: theme.name)
def test_frames_are_there_in_16_colours(theme: Theme) -> None:
    drawn = (theme.variables["line"], theme.background or "")
    line, ground = (Color.parse(one).rich_color.downgrade(ColorSystem.STANDARD).number for one in drawn)
    assert line != ground


def seen(one: str | None, other: str | None) -> float:
    """Return the contrast of two colours."""
    assert one is not None and other is not None
    return contrast(Color.parse(one), Color.parse(other))


def test_contrast_is_as_wcag_counts_it() -> None:
    assert round(seen("#000000", "#ffffff"), 2) == 21
    assert round(seen("#767676", "#ffffff"), 2) == 4.54


async def test_one_key_goes_round_the_themes_the_chosen_one_first() -> None:
    choices = written('[theme]\nname = "high-contrast"\n')
    stage = Stage(session=ViewSettings(choices=choices))
    async with stage.run():
        seen = [stage.app.theme]
        for _ in THEMES:
            await stage.press("t")
            seen.append(stage.app.theme)
    assert seen == ["bwtui-high-contrast", "bwtui-dark", "bwtui-light", "bwtui-high-contrast"]


async def test_colours_of_ones_own_are_painted() -> None:
    choices = written('[theme]\nname = "mine"\nbase = "light"\nprimary = "teal"\nerror = "#a00"\n')
    theme = choices.theme
    assert theme is not None
    assert (theme.name, theme.primary, theme.error, theme.dark) == ("mine", "#008080", "#AA0000", False)
    stage = Stage(session=ViewSettings(choices=choices))
    async with stage.run():
        assert stage.app.theme_variables["primary"].upper() == "#008080"


async def test_textuals_own_themes_have_all_colours() -> None:
    stage = Stage(session=ViewSettings(choices=written('[theme]\nname = "solarized-light"\n')))
    async with stage.run():
        assert stage.app.theme == "solarized-light"
        for mode in ("changes", "errors"):
            await stage.show(mode)


def test_another_background_takes_the_rest_with_it() -> None:
    theme = written('[theme]\nname = "paper"\nbase = "light"\nbackground = "#fdf6e3"\n').theme
    assert isinstance(theme, Theme)
    assert theme.surface == "#FDF6E3"
    assert theme.variables["bar"] != "#f3f5f7"


@pytest.mark.parametrize(
    ("lines_", "problem", "hint"),
    [
        ('name = "drak"', "./bwtui.toml [theme]: name: unknown theme 'drak'", "did you mean 'dark'?"),
        ('base = "lite"\nerror = "red"', "[theme]: base: unknown theme 'lite'", "'light'"),
        ('acent = "#fff"', "./bwtui.toml [theme]: acent: unknown theme key", "did you mean 'accent'?"),
        ('accent = "bleu"', "./bwtui.toml [theme]: accent: 'bleu' is not a colour", "#rrggbb"),
        ('accent = "#ff"', "'#ff' is not a colour", "#rrggbb"),
        ('accent = "#ffffff00"', "is not a colour", "#rrggbb"),
        ('accent = "ansi_red"', "is not a colour", "#rrggbb"),
        ('accent = "auto"', "is not a colour", "#rrggbb"),
        ('accent = ["#fff", "#000"]', "accent: expected one string", "brackets"),
        ("accent = 3", "accent: expected a string", "quotes"),
        ('background = "white"', "[theme]: background: ", "more contrast"),
        ('error = "#0d1117"', "./bwtui.toml [theme]: error: error #0D1117 can't be read", "more contrast"),
    ],
)
def test_colours_that_can_not_be(lines_: str, problem: str, hint: str) -> None:
    said = refused(f"[theme]\n{lines_}\n")
    assert problem in said[0]
    assert hint in said[1]


def test_a_key_that_is_a_table_is_refused() -> None:
    assert "'keys' is not a table" in refused('keys = "x"\n')[0]
    assert "[theme]: name: expected a string" in refused("[theme.name]\nx = 1\n")[0]
