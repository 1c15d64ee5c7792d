"""``[theme]`` of bwtui.toml: a theme by its name, or the user's colours over a theme."""

from collections.abc import Mapping

from textual.color import Color, ColorParseError
from textual.theme import Theme

from bwtui.config import Setting
from bwtui.config_file import suggestion
from bwtui.errors import UsageError
from bwtui.options import refused_at
from bwtui.setting_origins import table_place
from bwtui.tui.theme import (
    BASIC,
    GROUNDS,
    NAMES,
    OURS,
    THEMES,
    colours_of,
    contrast,
    derived,
    make,
    named,
)

COLOURS = (*BASIC, *GROUNDS, *OURS)
#: Minimum contrast to the background; text with less is unreadable.
_LEAST = 2.0


def chosen_theme(table: Mapping[str, Setting]) -> Theme | None:
    """Return the theme that ``[theme]`` names or defines, or None. Raises UsageError."""
    if not table:
        return None
    texts = {key: _text(key, setting) for key, setting in table.items()}
    name, given = texts.get("name", ""), {key: texts[key] for key in COLOURS if key in texts}
    base = _base(table, texts)
    if not given:
        return named(base)
    for key in given:
        with refused_at(_place(table, key)):
            given[key] = _colour(given[key])
    colours = colours_of(named(base))
    if given.keys() & {"background", "foreground", "primary"}:
        # Colours that were derived from the old ones are derived again from the new ones.
        colours |= derived(colours | given)
        if "background" in given:
            colours |= {"surface": given["background"], "panel": colours["bar"]}
    colours |= given
    _check_readable(table, colours)
    return make(f"own-{name}" if name in NAMES or not name else name, colours)


def cycle(first: Theme) -> tuple[Theme, ...]:
    """Return the themes that the theme key cycles through, ``first`` first."""
    return (first, *(theme for theme in THEMES if theme.name != first.name))


def _place(table: Mapping[str, Setting], key: str) -> str:
    return f"{table_place(table[key].origin, 'theme')}: {key}"


def _text(key: str, setting: Setting) -> str:
    place = f"{table_place(setting.origin, 'theme')}: {key}"
    if key not in ("name", "base", *COLOURS):
        raise UsageError(f"{place}: a theme has no such key", suggestion(key, ["name", "base", *COLOURS]))
    assert isinstance(setting.value, tuple)
    if len(setting.value) != 1:
        raise UsageError(f"{place}: expected one string", "take it out of the brackets")
    return setting.value[0]


def _base(table: Mapping[str, Setting], texts: Mapping[str, str]) -> str:
    """Return the theme that provides the colours that are not set."""
    makes_one = any(key in COLOURS for key in texts)
    key = "base" if "base" in texts else "name"
    name = texts.get(key, "dark")
    if name in NAMES:
        return name
    if key == "name" and makes_one:
        return "dark"
    raise UsageError(f"{_place(table, key)}: there is no theme {name!r}", suggestion(name, list(NAMES)))


def _colour(text: str) -> str:
    """Return a colour as #rrggbb. Raises ValueError."""
    try:
        colour = Color.parse(text)
    except ColorParseError:
        colour = Color.parse("transparent")
    if colour.a < 1 or colour.ansi is not None or colour.auto:
        raise ValueError(f"{text!r} is no colour (write '#rrggbb', or a name such as 'steelblue')")
    return colour.hex6


def _check_readable(table: Mapping[str, Setting], colours: Mapping[str, str]) -> None:
    background = Color.parse(colours["background"])
    for name in (*BASIC, "foreground", "quiet"):
        if contrast(Color.parse(colours[name]), background) < _LEAST:
            key = name if name in table else "background" if "background" in table else "foreground"
            raise UsageError(
                f"{_place(table, key)}: {name} {colours[name]} can't be read on {colours['background']}",
                "choose colours with more contrast, or a different base",
            )
