"""The user's settings of the screens: read-only mode, keys and theme, from the configuration."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations

from textual.color import Color, ColorParseError
from textual.keys import _character_to_key
from textual.theme import Theme

from bwtui.config import Config, Setting, suggestion
from bwtui.errors import UsageError
from bwtui.options import refused_at, table_place
from bwtui.tui.base.actions import ACTIONS, kinds_of
from bwtui.tui.base.keys import NAMED_KEYS, name_of, show_key
from bwtui.tui.base.theme import (
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

_MODIFIED = re.compile(r"(?:(ctrl)\+)?(?:(shift)\+)?(.+)", re.IGNORECASE | re.DOTALL)
#: A terminal sends the same bytes for Ctrl with these letters as for another key.
_SAME = {"h": "Backspace", "i": "Tab", "j": "Enter", "m": "Enter"}
_EXAMPLES = "such as 'p', '?', 'f5', 'space', 'ctrl+x' or 'shift+left'"


def chosen_keys(table: Mapping[str, Setting]) -> dict[str, tuple[str, ...]]:
    """Return the chosen keys by Textual's names of the actions. Raises UsageError."""
    by_name = {name_of(action): action for action in ACTIONS}
    keys: dict[str, tuple[str, ...]] = {}
    places: dict[str, str] = {}
    for name, setting in table.items():
        place = f"{table_place(setting.origin, 'keys')}: {name}"
        if name not in by_name:
            raise UsageError(f"{place}: unknown action", suggestion(name, list(by_name)))
        assert isinstance(setting.value, tuple)
        with refused_at(place):
            keys[by_name[name].name] = tuple(dict.fromkeys(map(parse_key, setting.value)))
        places[by_name[name].name] = place
    _check_clashes(keys, places)
    return keys


def parse_key(text: str) -> str:
    """Return Textual's name of a key. Raises ValueError, which suggests a valid key."""
    match = _MODIFIED.fullmatch(text) if len(text) > 1 else None
    ctrl, shift, base = match.groups() if match else (None, None, text)
    key_name = NAMED_KEYS.get(base.lower())
    if key_name is not None and (len(base) > 1 or not (ctrl or shift)):
        return "".join(f"{modifier.lower()}+" for modifier in (ctrl, shift) if modifier) + key_name
    if len(base) != 1:
        raise ValueError(f"unknown key {text!r} ({_EXAMPLES})")
    if shift:
        raise ValueError(f"{text!r} is the same as the character that it types (write 'G')")
    if ctrl:
        return _with_ctrl(text, base.lower())
    if not base.isprintable():
        raise ValueError(f"{text!r} is not a key ({_EXAMPLES})")
    return "space" if base == " " else _character_to_key(base)


def _with_ctrl(text: str, base: str) -> str:
    if base in _SAME:
        raise ValueError(f"terminals send {_SAME[base]} for {text!r} (choose a different letter)")
    if not (base.isascii() and base.isalpha()):
        raise ValueError(f"not every terminal sends {text!r} (combine Ctrl with a letter)")
    return f"ctrl+{base}"


def _check_clashes(keys: Mapping[str, tuple[str, ...]], places: Mapping[str, str]) -> None:
    """Raise UsageError if one key would have two meanings in the same place."""
    for one, second in combinations(ACTIONS, 2):
        if not kinds_of(one) & kinds_of(second) or {*one.default_keys} & {*second.default_keys}:
            # The two are never available together, or they share a default key, as the ends of a list and of
            # a recording do.
            continue
        both = {*keys.get(one.name, one.default_keys)} & {*keys.get(second.name, second.default_keys)}
        if both and (one.name in keys or second.name in keys):
            mine, theirs = (one, second) if one.name in keys else (second, one)
            key = show_key(min(both))
            raise UsageError(
                f"{places[mine.name]}: {key} is already the key of {name_of(theirs)}",
                f"choose a different key, or give {name_of(theirs)} a different key in [keys]",
            )


COLOURS = (*BASIC, *GROUNDS, *OURS)
#: Minimum contrast to the background; text with less is unreadable.
_LEAST = 2.0


def chosen_theme(table: Mapping[str, Setting]) -> Theme | None:
    """Return the theme that ``[theme]`` names or defines, or None. Raises UsageError."""
    if not table:
        return None
    texts = {key: _theme_text(key, setting) for key, setting in table.items()}
    name, own_colours = texts.get("name", ""), {key: texts[key] for key in COLOURS if key in texts}
    base = _base_name(table, texts)
    if not own_colours:
        return named(base)
    for key in own_colours:
        with refused_at(_theme_place(table, key)):
            own_colours[key] = _colour(own_colours[key])
    colours = colours_of(named(base))
    if own_colours.keys() & {"background", "foreground", "primary"}:
        # Colours that were derived from the old ones are derived again from the new ones.
        colours |= derived(colours | own_colours)
        if "background" in own_colours:
            colours |= {"surface": own_colours["background"], "panel": colours["bar"]}
    colours |= own_colours
    _check_readable(table, colours)
    return make(f"own-{name}" if name in NAMES or not name else name, colours)


def cycle(first: Theme) -> tuple[Theme, ...]:
    """Return the themes that the theme key cycles through, ``first`` first."""
    return (first, *(theme for theme in THEMES if theme.name != first.name))


def _theme_place(table: Mapping[str, Setting], key: str) -> str:
    return f"{table_place(table[key].origin, 'theme')}: {key}"


def _theme_text(key: str, setting: Setting) -> str:
    place = f"{table_place(setting.origin, 'theme')}: {key}"
    if key not in ("name", "base", *COLOURS):
        raise UsageError(f"{place}: unknown theme key", suggestion(key, ["name", "base", *COLOURS]))
    assert isinstance(setting.value, tuple)
    if len(setting.value) != 1:
        raise UsageError(f"{place}: expected one string", "remove the brackets")
    return setting.value[0]


def _base_name(table: Mapping[str, Setting], texts: Mapping[str, str]) -> str:
    """Return the theme that provides the colours that are not set."""
    makes_one = any(key in COLOURS for key in texts)
    key = "base" if "base" in texts else "name"
    name = texts.get(key, "dark")
    if name in NAMES:
        return name
    if key == "name" and makes_one:
        return "dark"
    raise UsageError(f"{_theme_place(table, key)}: unknown theme {name!r}", suggestion(name, list(NAMES)))


def _colour(text: str) -> str:
    """Return a colour as #rrggbb. Raises ValueError."""
    try:
        colour = Color.parse(text)
    except ColorParseError:
        colour = Color.parse("transparent")
    if colour.a < 1 or colour.ansi is not None or colour.auto:
        raise ValueError(f"{text!r} is not a colour (write '#rrggbb', or a name such as 'steelblue')")
    return colour.hex6


def _check_readable(table: Mapping[str, Setting], colours: Mapping[str, str]) -> None:
    background = Color.parse(colours["background"])
    for name in (*BASIC, "foreground", "quiet"):
        if contrast(Color.parse(colours[name]), background) < _LEAST:
            key = name if name in table else "background" if "background" in table else "foreground"
            place = _theme_place(table, key)
            raise UsageError(
                f"{place}: {name} {colours[name]} can't be read on {colours['background']}",
                "choose colours with more contrast, or a different base",
            )


@dataclass(frozen=True)
class Choices:
    """The user's settings of the screens."""

    #: The screens are read-only.
    readonly: bool = False
    #: Keys that replace the default ones, by Textual's names of the actions.
    keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    #: The theme to start with; None: the session's.
    theme: Theme | None = None


def chosen(config: Config) -> Choices:
    """Return the settings of the screens from the configuration. Raises UsageError."""
    return Choices(
        bool(config.values["readonly"].value),
        chosen_keys(config.screens["keys"]),
        chosen_theme(config.screens["theme"]),
    )
