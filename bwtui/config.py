"""Settings in layers, and where each of them came from.

Precedence, highest first: the command line, ``BWTUI_*`` variables, the chosen profile (``[profile.NAME]`` of
``./bwtui.toml``, then of the user's file), ``./bwtui.toml``, ``bwtui.toml`` in the user's config folder, and
the defaults of `RelaySettings`. Tables of properties (``[kafka]``, ``[topic]``, ``[registry]``) merge key by
key, every other value replaces the one below it. An unknown key is an error that names the nearest known one.
"""

import dataclasses
import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import platformdirs

from bwtui.errors import UsageError
from bwtui.file_errors import file_failed
from bwtui.options import (
    BY_NAME,
    OPTIONS,
    PAIR_OPTIONS,
    Option,
    Value,
    check_property,
    nearest,
    parse,
    parse_pair,
    parse_switch,
    said,
)
from bwtui.settings import RelaySettings

FILE_NAME = "bwtui.toml"
COMMAND_LINE = "command line"
DEFAULT = "default"
_PROFILE_KEY = "profile"
#: Variables that steer bwtui without being an option of a relay.
OTHER_VARIABLES = (
    "BWTUI_PROFILE",
    "BWTUI_STATE_HOME",
    "BWTUI_DEBUG",
    "BWTUI_CACHE_HOME",
    "BWTUI_SANDBOX_HOME",
    "BWTUI_SANDBOX_KAFKA_HEAP",
    "BWTUI_IVY_SETTINGS",
)


@dataclass(frozen=True, slots=True)
class Setting:
    """One value, and the place where it was set."""

    value: Value
    origin: str


@dataclass(slots=True)
class Layer:
    """Everything that one place sets; values are checked already."""

    origin: str
    values: dict[str, Value] = field(default_factory=dict)
    #: By option name, then by property.
    pairs: dict[str, dict[str, str]] = field(default_factory=dict)


@dataclass(slots=True)
class ConfigFile:
    """One bwtui.toml, read and checked: its own layer and one for each profile."""

    path: Path
    base: Layer
    profiles: dict[str, Layer]


@dataclass(frozen=True, slots=True)
class Config:
    """The merged settings."""

    values: dict[str, Setting]
    #: By option name ("kafka-config" …), then by property.
    pairs: dict[str, dict[str, Setting]]
    profile: str | None
    files: tuple[Path, ...]

    def text(self, name: str) -> str:
        """Return the value of the text option ``name``."""
        return str(self.values[name].value)

    def settings(self) -> RelaySettings:
        """Return what the relay is told to do."""
        fields: dict[str, Any] = {BY_NAME[name].field: setting.value for name, setting in self.values.items()}
        for name, properties in self.pairs.items():
            fields[BY_NAME[name].field] = tuple((key, str(s.value)) for key, s in properties.items())
        settings = RelaySettings(**fields)
        _check_together(settings)
        return settings


def load(
    command_line: Mapping[str, Any] | None = None,
    profile: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> Config:
    """Merge all layers.

    ``command_line`` holds what was given there, by option name: text, booleans, and sequences of text; None
    and empty sequences count as not given. Raises UsageError.
    """
    environ = os.environ if environ is None else environ
    profile = profile or environ.get("BWTUI_PROFILE") or None
    files = [read_file(path) for path in file_paths() if path.is_file()]
    layers = [_defaults(), *(file.base for file in files), *_profile_layers(files, profile)]
    layers.append(_environment(environ))
    layers.append(_command_line(command_line or {}))
    return _merge(layers, profile, tuple(file.path for file in files))


def of_command_line(given: Mapping[str, Any]) -> Config:
    """Return what the command line says, over the defaults: no variable and no file is asked.

    ``given`` is as for `load`. Raises UsageError.
    """
    return _merge([_defaults(), _command_line(given)], None, ())


_TOML = "mend it at that place: texts stand in quotes, keys before an equals sign, tables in [brackets]"


def file_paths() -> tuple[Path, ...]:
    """Return where bwtui.toml is looked for, lowest precedence first; the files need not exist."""
    return Path(platformdirs.user_config_dir("bwtui")) / FILE_NAME, Path(FILE_NAME)


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
            f"{path}: 'profile' holds something else than [profile.NAME] tables",
            "write [profile.NAME] above the keys of each profile",
        )
    origin = f"./{path}" if not path.is_absolute() else str(path)
    return ConfigFile(
        path,
        _file_layer(path, origin, data),
        {name: _file_layer(path, f"{origin} [profile.{name}]", table) for name, table in profiles.items()},
    )


def _is_table_of_tables(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(table, dict) for table in value.values())


def _defaults() -> Layer:
    defaults = RelaySettings()
    values = {o.name: getattr(defaults, o.field) for o in OPTIONS if o.kind != "pairs"}
    return Layer(DEFAULT, values)


def _profile_layers(files: list[ConfigFile], profile: str | None) -> list[Layer]:
    if profile is None:
        return []
    layers = [file.profiles[profile] for file in files if profile in file.profiles]
    if not layers:
        known = sorted({name for file in files for name in file.profiles})
        raise UsageError(f"there is no profile {profile!r}", _suggestion(profile, known))
    return layers


def _suggestion(word: str, known: list[str]) -> str:
    close = nearest(word, known)
    if close is not None:
        return f"did you mean {close!r}?"
    return "known: " + (", ".join(known) or "none")


def _file_layer(path: Path, origin: str, data: dict[str, Any]) -> Layer:
    layer = Layer(origin)
    for raw, value in data.items():
        key = raw.replace("_", "-")
        if key in PAIR_OPTIONS:
            layer.pairs[PAIR_OPTIONS[key].name] = _file_pairs(path, key, value)
            continue
        option = BY_NAME.get(key)
        if option is None or option.kind == "pairs":
            known = [o.name for o in OPTIONS if o.kind != "pairs"] + [*PAIR_OPTIONS, _PROFILE_KEY]
            raise UsageError(f"{path}: unknown key {raw!r}", _suggestion(key, known))
        if key in layer.values:
            raise UsageError(f"{path}: {key!r} is set twice, with '-' and with '_'", "keep one of the two")
        try:
            layer.values[key] = _file_value(option, value)
        except ValueError as error:
            problem, advice = said(error)
            raise UsageError(f"{path}: {raw}: {problem}", advice) from error
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


def _file_pairs(path: Path, table: str, value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise UsageError(f"{path}: {table!r} is not a table", f"write [{table}] above its keys")
    try:
        return dict(_flatten(value, ""))
    except ValueError as error:
        problem, advice = said(error)
        raise UsageError(f"{path}: [{table}]: {problem}", advice) from error


def _flatten(table: dict[str, Any], prefix: str) -> Iterator[tuple[str, str]]:
    # security.protocol = "SSL" without quotes is a nested table to TOML; it means the same here.
    for key, value in table.items():
        name = prefix + key
        if isinstance(value, dict):
            yield from _flatten(value, name + ".")
        elif isinstance(value, bool):
            yield name, str(value).lower()
        elif isinstance(value, str | int | float):
            check_property(name)
            yield name, str(value)
        else:
            raise ValueError(f"{name}: expected a string, a number, or true or false (one value a property)")


def _environment(environ: Mapping[str, str]) -> Layer:
    layer = Layer("environment")
    for option in OPTIONS:
        text = environ.get(option.variable)
        if not text:
            continue
        try:
            _set_text(layer, option, text.splitlines() if option.kind in ("list", "pairs") else text)
        except ValueError as error:
            problem, advice = said(error)
            raise UsageError(f"{option.variable}: {problem}", advice) from error
    return layer


def _command_line(given: Mapping[str, Any]) -> Layer:
    layer = Layer(COMMAND_LINE)
    for name, value in given.items():
        option = BY_NAME[name]
        if value is None or value == ():
            continue
        if isinstance(value, bool):
            layer.values[name] = value
            continue
        try:
            _set_text(layer, option, value)
        except ValueError as error:
            problem, advice = said(error)
            raise UsageError(f"--{name}: {problem}", advice) from error
    return layer


def _set_text(layer: Layer, option: Option, text: Any) -> None:
    if option.kind == "pairs":
        layer.pairs[option.name] = dict(parse_pair(item) for item in text if item.strip())
    elif option.kind == "list":
        for item in text:
            parse(option, item)
        layer.values[option.name] = tuple(item for item in text if item)
    elif option.kind == "switch":
        layer.values[option.name] = parse_switch(text)
    else:
        layer.values[option.name] = parse(option, text)


def _merge(layers: list[Layer], profile: str | None, files: tuple[Path, ...]) -> Config:
    values: dict[str, Setting] = {}
    pairs: dict[str, dict[str, Setting]] = {option.name: {} for option in PAIR_OPTIONS.values()}
    for layer in layers:
        for name, value in layer.values.items():
            values[name] = Setting(value, _origin(layer, name))
        for name, properties in layer.pairs.items():
            for key, text in properties.items():
                pairs[name][key] = Setting(text, _origin(layer, name))
    return Config(values, pairs, profile, files)


def _origin(layer: Layer, name: str) -> str:
    return BY_NAME[name].variable if layer.origin == "environment" else layer.origin


def _check_together(settings: RelaySettings) -> None:
    if len(settings.publication_name.encode()) > 63:
        raise UsageError(
            f"{settings.publication_name!r} is too long for the name of a publication",
            "give it a name of at most 63 bytes with --publication",
        )
    if settings.on_record_error != "stop" and not (settings.record or settings.record_only):
        raise UsageError("--on-record-error goes with --record", "add --record DIR")
    if settings.end_lsn is not None and settings.until_caught_up:
        raise UsageError("--endpos and --until-caught-up exclude each other", "give the one that you mean")


def unknown_variables(environ: Mapping[str, str]) -> dict[str, str | None]:
    """Return the ``BWTUI_*`` variables that nothing reads, each with the nearest known name."""
    known = {option.variable for option in OPTIONS} | set(OTHER_VARIABLES)
    names = (name for name in environ if name.startswith("BWTUI_") and name not in known)
    return {name: nearest(name, known) for name in names}


def field_defaults() -> dict[str, Any]:
    """Return the defaults of `RelaySettings` by option name, for help texts."""
    by_field = {f.name: f.default for f in dataclasses.fields(RelaySettings)}
    return {option.name: by_field[option.field] for option in OPTIONS}
