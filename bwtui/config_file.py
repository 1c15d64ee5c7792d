"""Read and check one bwtui.toml: its keys, and those of its profiles."""

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bwtui.errors import UsageError
from bwtui.file_errors import file_failed
from bwtui.model.option_checks import check_property
from bwtui.options import (
    BY_NAME,
    OPTIONS,
    PAIR_OPTIONS,
    Option,
    Value,
    nearest,
    parse,
    refused_at,
)
from bwtui.setting_origins import place, table_place

FILE_NAME = "bwtui.toml"
_PROFILE_KEY = "profile"
#: Tables for the screens, which alone know their valid keys (bwtui.tui.choices).
SCREEN_TABLES = ("keys", "theme")
_TOML = "fix that line: quote strings, write key = value, and put table names in [brackets]"


@dataclass(slots=True)
class Layer:
    """All settings of one place; their values are already checked."""

    origin: str
    values: dict[str, Value] = field(default_factory=dict)
    #: By option name, then by property.
    pairs: dict[str, dict[str, str]] = field(default_factory=dict)
    #: By the screens' table, then by key.
    screens: dict[str, dict[str, tuple[str, ...]]] = field(default_factory=dict)


@dataclass(slots=True)
class ConfigFile:
    """One bwtui.toml, read and checked: its own layer and one for each profile."""

    path: Path
    base: Layer
    profiles: dict[str, Layer]


def read_file(path: Path) -> ConfigFile:
    """Read and check one bwtui.toml. Raises UsageError."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        reason = error if isinstance(error, tomllib.TOMLDecodeError) else "it is not UTF-8"
        raise UsageError(f"{path} is not valid TOML: {reason}", _TOML) from error
    except OSError as error:
        raise file_failed(f"can't read {path}", error, UsageError) from error
    profiles = data.pop(_PROFILE_KEY, {})
    if not _is_table_of_tables(profiles):
        raise UsageError(
            f"{path}: 'profile' may contain only [profile.NAME] tables",
            "write [profile.NAME] above the keys of each profile",
        )
    origin = f"./{path}" if not path.is_absolute() else str(path)
    return ConfigFile(
        path,
        _file_layer(origin, data),
        {name: _file_layer(f"{origin} [profile.{name}]", table) for name, table in profiles.items()},
    )


def _is_table_of_tables(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(table, dict) for table in value.values())


def suggestion(name: str, names: list[str]) -> str:
    """Return the hint for a name that is not one of ``names``: the nearest of them, or all."""
    close = nearest(name, names)
    if close is not None:
        return f"did you mean {close!r}?"
    return "valid names: " + (", ".join(names) or "none")


def _file_layer(origin: str, data: dict[str, Any]) -> Layer:
    layer = Layer(origin)
    for raw, value in data.items():
        key = raw.replace("_", "-")
        if key in PAIR_OPTIONS:
            layer.pairs[PAIR_OPTIONS[key].name] = _file_pairs(origin, PAIR_OPTIONS[key], value)
            continue
        if key in SCREEN_TABLES:
            layer.screens[key] = _screen_table(origin, key, value)
            continue
        option = BY_NAME.get(key)
        if option is None or option.kind == "pairs":
            names = [o.name for o in OPTIONS if o.kind != "pairs"] + [
                *PAIR_OPTIONS,
                *SCREEN_TABLES,
                _PROFILE_KEY,
            ]
            raise UsageError(f"{origin}: unknown key {raw!r}", suggestion(key, names))
        if key in layer.values:
            raise UsageError(f"{origin}: {key!r} is set twice, with '-' and with '_'", "keep one of the two")
        with refused_at(place(origin, key, {})):
            layer.values[key] = _file_value(option, value)
    return layer


def _file_value(option: Option, value: Any) -> Value:
    if option.kind == "list":
        items = [value] if isinstance(value, str) else value
        if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
            raise ValueError("expected a list of strings (such as ['public.orders', 'audit.*'])")
        for item in items:
            parse(option, item)
        return tuple(items)
    if option.kind == "switch":
        if not isinstance(value, bool):
            raise ValueError("expected true or false (without quotes)")
        return value
    if option.kind == "number" and isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        raise ValueError("expected a string (put it in quotes)")
    return parse(option, value)


def _check_table(origin: str, table: str, value: Any) -> None:
    if not isinstance(value, dict):
        raise UsageError(f"{origin}: {table!r} is not a table", f"write [{table}] above its keys")


def _screen_table(origin: str, table: str, value: Any) -> dict[str, tuple[str, ...]]:
    _check_table(origin, table, value)
    entries: dict[str, tuple[str, ...]] = {}
    for key, entry in value.items():
        texts = [entry] if isinstance(entry, str) else entry
        with refused_at(f"{table_place(origin, table)}: {key}"):
            if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
                raise ValueError("expected a string, or a list of strings (put it in quotes)")
        entries[key.replace("_", "-")] = tuple(texts)
    return entries


def _file_pairs(origin: str, option: Option, value: Any) -> dict[str, str]:
    _check_table(origin, option.table, value)
    with refused_at(place(origin, option.name, {})):
        return dict(_flatten(value, ""))


def _flatten(table: dict[str, Any], prefix: str) -> Iterator[tuple[str, str]]:
    # security.protocol = "SSL" without quotes is a nested table in TOML; it means the same here.
    for key, value in table.items():
        name = prefix + key
        if isinstance(value, dict):
            yield from _flatten(value, name + ".")
        elif isinstance(value, str | int | float):
            check_property(name)
            yield name, str(value).lower() if isinstance(value, bool) else str(value)
        else:
            raise ValueError(f"{name}: expected a string, a number, or true or false (one value a property)")
