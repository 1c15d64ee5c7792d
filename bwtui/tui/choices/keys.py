"""``[keys]`` of bwtui.toml: user-defined keys for actions, by stable names.

An action's name there describes what it does, such as ``pause``, ``show-changes`` or ``step-back``;
docs/keys.md lists them. A key is a character, or the name of a key, with Ctrl or Shift before it.
"""

import re
from collections.abc import Mapping
from itertools import combinations

from textual.keys import _character_to_key

from bwtui.config import Setting
from bwtui.config_file import suggestion
from bwtui.errors import UsageError
from bwtui.options import refused_at
from bwtui.setting_origins import table_place
from bwtui.tui.actions import ACTIONS, kinds_of
from bwtui.tui.keys import NAMED_KEYS, name_of, show_key

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
            raise UsageError(f"{place}: there is no such action", suggestion(name, list(by_name)))
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
    named = NAMED_KEYS.get(base.lower())
    if named is not None and (len(base) > 1 or not (ctrl or shift)):
        return "".join(f"{modifier.lower()}+" for modifier in (ctrl, shift) if modifier) + named
    if len(base) != 1:
        raise ValueError(f"there is no key {text!r} ({_EXAMPLES})")
    if shift:
        raise ValueError(f"{text!r} can't be told from the character that it types (write 'G')")
    if ctrl:
        return _with_ctrl(text, base.lower())
    if not base.isprintable():
        raise ValueError(f"{text!r} is no key ({_EXAMPLES})")
    return "space" if base == " " else _character_to_key(base)


def _with_ctrl(text: str, base: str) -> str:
    if base in _SAME:
        raise ValueError(f"a terminal sends {_SAME[base]} for {text!r} (choose another letter)")
    if not (base.isascii() and base.isalpha()):
        raise ValueError(f"not every terminal sends {text!r} (Ctrl goes with a letter)")
    return f"ctrl+{base}"


def _check_clashes(chosen: Mapping[str, tuple[str, ...]], places: Mapping[str, str]) -> None:
    """Raise UsageError if one key would have two meanings in the same place."""
    for one, other in combinations(ACTIONS, 2):
        if not kinds_of(one) & kinds_of(other) or {*one.default_keys} & {*other.default_keys}:
            # The two are never available together, or they share a default key, as the ends of a list and of
            # a recording do.
            continue
        both = {*chosen.get(one.name, one.default_keys)} & {*chosen.get(other.name, other.default_keys)}
        if both and (one.name in chosen or other.name in chosen):
            mine, theirs = (one, other) if one.name in chosen else (other, one)
            key = show_key(min(both))
            raise UsageError(
                f"{places[mine.name]}: {key} is also the key of {name_of(theirs)}",
                f"choose another one, or give {name_of(theirs)} another one in [keys]",
            )
