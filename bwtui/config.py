"""Read bwtui.toml, merge the layers of settings, and record where each of them came from.

Precedence, highest first: the command line, ``BWTUI_*`` variables, the chosen profile (``[profile.NAME]`` of
``./bwtui.toml``, then of the user's file), ``./bwtui.toml``, ``bwtui.toml`` in the user's config folder, and
the defaults of `RelaySettings`. Tables (``[kafka]``, ``[topic]``, ``[registry]``, ``[keys]``, ``[theme]``)
are merged key by key, any other value replaces the one of the lower layer. An unknown key is an error that
names the nearest known one.
"""

import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import platformdirs

from bwtui.errors import UsageError, mutually_exclusive
from bwtui.file_errors import file_failed
from bwtui.masking import mask_connection, mask_property
from bwtui.model.service_views import SettingEntry
from bwtui.option_checks import check_property
from bwtui.options import (
    BY_NAME,
    COMMAND_LINE,
    COMMAND_LINE_ONLY,
    DEFAULT,
    ENVIRONMENT,
    PAIR_OPTIONS,
    Value,
    nearest,
    parse,
    parse_pair,
    place,
    refused_at,
    table_place,
)
from bwtui.settings import OPTIONS, Option, RelaySettings

#: Variables that control bwtui but are not options of a relay.
OTHER_VARIABLES = (
    "BWTUI_PROFILE",
    "BWTUI_STATE_HOME",
    "BWTUI_DEBUG",
    "BWTUI_CACHE_HOME",
    "BWTUI_SANDBOX_HOME",
    "BWTUI_SANDBOX_KAFKA_HEAP",
    "BWTUI_IVY_SETTINGS",
    "BWTUI_FAILPOINT",
)

#: The alternative to each option that --exactly-once excludes.
_WITHOUT = {
    "heal": "omit one of them; '{drop}' lets the next start create the slot and take a snapshot",
    "snapshot-by": "omit it: the snapshot is one Kafka transaction",
    "snapshot-workers": "omit it: a single producer sends the snapshot in one Kafka transaction",
    "spark-master": "omit it: a single producer sends the snapshot in one Kafka transaction",
}
FILE_NAME = "bwtui.toml"
_PROFILE_KEY = "profile"
#: Tables for the screens, which alone know their valid keys (bwtui.tui.base.choices).
SCREEN_TABLES = ("keys", "theme")
_TOML = "fix that line: write key = value, put strings in quotes, and put names of tables in [brackets]"
#: Hints by the begin of tomllib's message.
_TOML_HINTS = {
    "Invalid value": "put strings in quotes, write true or false in lower case, and close every [ and {",
    "Cannot overwrite a value": "a key is set twice in the same table: keep one of the two",
    "Cannot declare": "a table is declared twice: merge its keys under one [heading]",
    "Unescaped '\\'": "put a string with backslashes, such as a regular expression, in single quotes",
}


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
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path} is not valid TOML: {error}", _toml_hint(str(error))) from error
    except UnicodeDecodeError as error:
        reason = f"byte {error.start + 1} is not UTF-8"
        raise UsageError(f"{path} is not valid TOML: {reason}", "save the file as UTF-8") from error
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


def _toml_hint(message: str) -> str:
    """Return the hint for a message of tomllib."""
    return next((hint for begin, hint in _TOML_HINTS.items() if message.startswith(begin)), _TOML)


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
            hint = suggestion(key, names)
            if key in COMMAND_LINE_ONLY:
                hint = f"--{key} can be given on the command line only"
            raise UsageError(f"{origin}: unknown key {raw!r}", hint)
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


@dataclass(frozen=True, slots=True)
class Setting:
    """One value, and the place where it was set."""

    value: Value
    origin: str


@dataclass(frozen=True, slots=True)
class Config:
    """The merged settings."""

    values: dict[str, Setting]
    #: By option name ("kafka-config" …), then by property.
    pairs: dict[str, dict[str, Setting]]
    profile: str | None
    files: tuple[Path, ...]
    #: Options as they were typed, by name.
    typed: Mapping[str, str] = field(default_factory=dict)
    #: By the screens' table, then by key: lists of texts, as they were written.
    screens: Mapping[str, Mapping[str, Setting]] = field(default_factory=dict)

    def text(self, name: str) -> str:
        """Return the value of the text option ``name``."""
        return str(self.values[name].value)

    def place(self, name: str) -> str:
        """Return where option ``name`` was set, for an error message; see `bwtui.options`."""
        return place(self.values[name].origin, name, self.typed)

    def property_place(self, name: str, key: str) -> str:
        """Return the place where property ``key`` of option ``name`` was set."""
        return place(self.pairs[name][key].origin, name, self.typed)

    def settings(self) -> RelaySettings:
        """Return the relay's settings. Raises UsageError for combinations that are not allowed."""
        settings = self.merged()
        self.check()
        if len(settings.publication_name.encode()) > 63:
            too_long = "is too long for a publication name"
            raise UsageError(
                f"{self.place('slot')}: {settings.publication_name!r} {too_long}",
                "set a name of at most 63 bytes with --publication",
            )
        if settings.on_record_error != "stop" and not (settings.record or settings.record_only):
            raise UsageError(f"{self.place('on-record-error')} requires --record", "add --record DIR")
        return settings

    def merged(self) -> RelaySettings:
        """Return the settings without checking their combinations."""
        fields: dict[str, Any] = {}
        origins: dict[str, str] = {}
        for name, setting in self.values.items():
            fields[BY_NAME[name].field] = setting.value
            origins[name] = setting.origin
        for name, properties in self.pairs.items():
            option = BY_NAME[name]
            fields[option.field] = tuple((key, str(s.value)) for key, s in properties.items())
            origins |= {f"{option.table}.{key}": s.origin for key, s in properties.items()}
        explicit = tuple((name, origin) for name, origin in origins.items() if origin != DEFAULT)
        return RelaySettings(**fields, origins=explicit)

    def check(self) -> None:
        """Raise UsageError for mutually exclusive settings, whatever further options are given."""
        settings = self.merged()
        if settings.heal and settings.skip_snapshot:
            raise mutually_exclusive(
                self.place("heal"),
                self.place("skip-snapshot"),
                "omit one of them: --heal sends the rows that --skip-snapshot omits",
            )
        self._check_exactly_once(settings)
        if settings.output_format == "json" and (settings.namespace or settings.connect_names):
            place = self.place("namespace" if settings.namespace else "connect-names")
            raise UsageError(
                f"{place} requires Avro: JSON messages have no schema", "omit it, or set --output-format avro"
            )
        if settings.end_lsn is not None and settings.until_caught_up:
            raise mutually_exclusive(self.place("endpos"), self.place("until-caught-up"), "omit one of them")

    def _check_exactly_once(self, settings: RelaySettings) -> None:
        """Reject options that --exactly-once does not support."""
        if not settings.exactly_once:
            return
        excluded = {
            "heal": settings.heal,
            "snapshot-by": settings.snapshot_by != "export",
            "snapshot-workers": (settings.snapshot_workers or 1) > 1,
            "spark-master": bool(settings.spark_master),
        }
        for name, is_set in excluded.items():
            if is_set:
                raise UsageError(
                    f"{self.place('exactly-once')} can't be combined with {self.place(name)} yet",
                    _WITHOUT[name].format(drop=settings.drop_command),
                )


def load(
    command_line: Mapping[str, Any] | None = None,
    profile: str | None = None,
    environ: Mapping[str, str] | None = None,
    typed: Mapping[str, str] | None = None,
) -> Config:
    """Merge all layers.

    ``command_line`` has the values given there by option name: text, booleans, and sequences of text; None
    and empty sequences count as not given. ``typed`` has the options as they were typed. Raises UsageError.
    """
    environ = os.environ if environ is None else environ
    profile = profile or environ.get("BWTUI_PROFILE") or None
    files = [read_file(path) for path in file_paths() if path.is_file()]
    layers = [_defaults(), *(file.base for file in files), *_profile_layers(files, profile)]
    layers.append(_environment(environ))
    layers.append(_command_line(command_line or {}, typed or {}))
    return _merge(layers, profile, tuple(file.path for file in files), typed or {})


def of_command_line(options: Mapping[str, Any], typed: Mapping[str, str]) -> Config:
    """Return the settings of the command line over the defaults, without variables and files.

    ``options`` is as for `load`. Raises UsageError.
    """
    return _merge([_defaults(), _command_line(options, typed)], None, (), typed)


def of_file(file: ConfigFile) -> Iterator[Config]:
    """Yield the settings of a single file: without a profile, and with each of its profiles."""
    for profile in (None, *file.profiles):
        layers = [_defaults(), file.base] + ([file.profiles[profile]] if profile is not None else [])
        yield _merge(layers, profile, (file.path,), {})


def file_paths() -> tuple[Path, ...]:
    """Return the paths of bwtui.toml, lowest precedence first; the files need not exist."""
    return Path(platformdirs.user_config_dir("bwtui")) / FILE_NAME, Path(FILE_NAME)


def _defaults() -> Layer:
    defaults = RelaySettings()
    values = {o.name: getattr(defaults, o.field) for o in OPTIONS if o.kind != "pairs"}
    return Layer(DEFAULT, values)


def _profile_layers(files: list[ConfigFile], profile: str | None) -> list[Layer]:
    if profile is None:
        return []
    layers = [file.profiles[profile] for file in files if profile in file.profiles]
    if not layers:
        profiles = sorted({name for file in files for name in file.profiles})
        none = f"no {FILE_NAME} defines one: add [profile.NAME] and the keys that it sets"
        raise UsageError(
            f"there is no profile {profile!r}", suggestion(profile, profiles) if profiles else none
        )
    return layers


def _environment(environ: Mapping[str, str]) -> Layer:
    layer = Layer(ENVIRONMENT)
    for option in OPTIONS:
        text = environ.get(option.variable)
        if not text:
            continue
        lines = [line for line in text.splitlines() if line]
        with refused_at(option.variable):
            _set_text(layer, option, lines if option.kind in ("list", "pairs") else text)
    return layer


def _command_line(options: Mapping[str, Any], typed: Mapping[str, str]) -> Layer:
    layer = Layer(COMMAND_LINE)
    for name, value in options.items():
        option = BY_NAME[name]
        if value is None or value == ():
            continue
        if isinstance(value, bool):
            layer.values[name] = value
            continue
        with refused_at(place(COMMAND_LINE, name, typed)):
            _set_text(layer, option, value)
    return layer


def _set_text(layer: Layer, option: Option, text: Any) -> None:
    if option.kind == "pairs":
        layer.pairs[option.name] = dict(parse_pair(item) for item in text if item.strip())
    elif option.kind == "list":
        for item in text:
            parse(option, item)
        layer.values[option.name] = tuple(text)
    else:
        layer.values[option.name] = parse(option, text)


def _merge(
    layers: list[Layer], profile: str | None, files: tuple[Path, ...], typed: Mapping[str, str]
) -> Config:
    values: dict[str, Setting] = {}
    pairs: dict[str, dict[str, Setting]] = {option.name: {} for option in PAIR_OPTIONS.values()}
    screens: dict[str, dict[str, Setting]] = {table: {} for table in SCREEN_TABLES}
    for layer in layers:
        for name, value in layer.values.items():
            values[name] = Setting(value, _origin(layer, name))
        for name, properties in layer.pairs.items():
            for key, text in properties.items():
                pairs[name][key] = Setting(text, _origin(layer, name))
        for table, chosen in layer.screens.items():
            screens[table] |= {key: Setting(texts, layer.origin) for key, texts in chosen.items()}
    return Config(values, pairs, profile, files, typed, screens)


def _origin(layer: Layer, name: str) -> str:
    return BY_NAME[name].variable if layer.origin == ENVIRONMENT else layer.origin


def listed(settings: RelaySettings, *, of_screens: bool = False) -> tuple[SettingEntry, ...]:
    """Return every setting for display, with its origin; secrets are masked.

    Those of the screens are included only with ``of_screens``: a relay does not have them.
    """
    origins = dict(settings.origins)
    entries: list[SettingEntry] = []
    for option in OPTIONS:
        if option.of_screens and not of_screens:
            continue
        value = getattr(settings, option.field)
        if option.kind != "pairs":
            shown = mask_connection(value) if isinstance(value, str) else value
            entries.append(SettingEntry(option.name, shown, origins.get(option.name, DEFAULT)))
            continue
        for key, text in value:
            name = f"{option.table}.{key}"
            entries.append(SettingEntry(name, mask_property(key, text), origins.get(name, DEFAULT)))
    return tuple(entries)


def listed_of_screens(config: Config) -> tuple[SettingEntry, ...]:
    """Return the settings of the screens' tables in bwtui.toml."""
    return tuple(
        SettingEntry(f"{table}.{key}", setting.value, setting.origin)
        for table, chosen in config.screens.items()
        for key, setting in chosen.items()
    )


def unknown_variables(environ: Mapping[str, str]) -> dict[str, str | None]:
    """Return the ``BWTUI_*`` variables that nothing reads, each with the nearest known name."""
    read = {option.variable for option in OPTIONS} | set(OTHER_VARIABLES)
    return {name: nearest(name, read) for name in environ if name.startswith("BWTUI_") and name not in read}
