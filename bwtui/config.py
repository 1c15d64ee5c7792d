"""Merge the layers of settings, and record where each of them came from.

Precedence, highest first: the command line, ``BWTUI_*`` variables, the chosen profile (``[profile.NAME]`` of
``./bwtui.toml``, then of the user's file), ``./bwtui.toml``, ``bwtui.toml`` in the user's config folder, and
the defaults of `RelaySettings`. Tables (``[kafka]``, ``[topic]``, ``[registry]``, ``[keys]``, ``[theme]``)
are merged key by key, any other value replaces the one of the lower layer. An unknown key is an error that
names the nearest known one.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import platformdirs

from bwtui.config_file import FILE_NAME, SCREEN_TABLES, ConfigFile, Layer, read_file, suggestion
from bwtui.errors import UsageError
from bwtui.masking import mask_connection, mask_property
from bwtui.model.option_checks import SettingEntry
from bwtui.options import (
    BY_NAME,
    OPTIONS,
    PAIR_OPTIONS,
    Option,
    Value,
    nearest,
    parse,
    parse_pair,
    refused_at,
)
from bwtui.setting_origins import COMMAND_LINE, DEFAULT, ENVIRONMENT, place
from bwtui.settings import RelaySettings

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
    "heal": "omit one of them; 'bwtui slots drop' lets the next start create the slot and take a snapshot",
    "snapshot-by": "omit it: the snapshot is one Kafka transaction",
    "snapshot-workers": "omit it: a single producer sends the snapshot in one Kafka transaction",
    "spark-master": "omit it: a single producer sends the snapshot in one Kafka transaction",
}


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
        """Return where option ``name`` was set, for an error message; see `bwtui.setting_origins`."""
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
        """Raise UsageError for settings that exclude each other, whatever further options are given."""
        settings = self.merged()
        if settings.heal and settings.skip_snapshot:
            both = f"{self.place('heal')} and {self.place('skip-snapshot')}"
            raise UsageError(
                f"{both} are mutually exclusive",
                "omit one of them: --heal sends the rows that --skip-snapshot omits",
            )
        self._check_exactly_once(settings)
        if settings.output_format == "json" and (settings.namespace or settings.connect_names):
            place = self.place("namespace" if settings.namespace else "connect-names")
            raise UsageError(
                f"{place} requires Avro: JSON messages have no schema", "omit it, or set --output-format avro"
            )
        if settings.end_lsn is not None and settings.until_caught_up:
            both = f"{self.place('endpos')} and {self.place('until-caught-up')}"
            raise UsageError(f"{both} are mutually exclusive", "omit one of them")

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
                    _WITHOUT[name],
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
        raise UsageError(f"there is no profile {profile!r}", suggestion(profile, profiles))
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
