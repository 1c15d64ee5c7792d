"""``bwtui config``: show the origin of every setting, and check the files."""

import functools
import os
import stat
from pathlib import Path

import click

from bwtui import config as layers
from bwtui.cli.inputs import relay_options
from bwtui.cli.inputs.relay_options import json_option
from bwtui.cli.output.table import columns
from bwtui.config import ConfigFile, read_file
from bwtui.console import say, say_json
from bwtui.errors import UsageError
from bwtui.masking import is_secret, mask_connection
from bwtui.options import place

_EPILOG = """\b
Examples:
  bwtui config show --profile production
  bwtui config show --json
  bwtui config validate
  bwtui config validate deploy/bwtui.toml

\b
Precedence: the command line, BWTUI_* variables, [profile.NAME] (--profile or
BWTUI_PROFILE), ./bwtui.toml, bwtui.toml in the user's config folder, defaults.
"""


@click.group(epilog=_EPILOG)
def config() -> None:
    """Show every setting and its origin, and check configuration files."""


@config.command(epilog="\b\nExample:\n  bwtui config show --profile production")
@relay_options.profile_option
@json_option("Print one JSON object: setting → value and origin.")
def show(profile: str | None, as_json: bool) -> None:
    """Show each setting, its value and its origin; secrets are masked."""
    merged = layers.load(profile=profile)
    settings = layers.listed(merged.merged(), of_screens=True) + layers.listed_of_screens(merged)
    if as_json:
        say_json({one.name: {"value": one.value, "origin": one.origin} for one in settings}, indent=2)
        return
    rows = [(one.name, one.text, one.origin) for one in settings]
    say(*columns(("SETTING", "VALUE", "ORIGIN"), rows), "")
    for path in reversed(layers.file_paths()):
        say(f"{'read' if path in merged.files else 'not there'}: {path}")


@config.command(epilog="\b\nExamples:\n  bwtui config validate\n  bwtui config validate deploy/bwtui.toml")
@click.argument("files", nargs=-1, type=click.Path(path_type=Path), metavar="[FILE]...")
def validate(files: tuple[Path, ...]) -> None:
    """Check each configuration FILE.

    Without FILE, check the files that apply in this folder, and the environment. The first error ends the
    check with exit code 2. Warnings are written to stderr.
    """
    there = [path for path in layers.file_paths() if path.is_file()]
    for path in files or there:
        checked = read_file(path)
        _check_properties(checked)
        for alone in layers.of_file(checked):
            _check_alone(alone)
        for doubt in _doubts(checked):
            say(f"bwtui: warning: {doubt}", err=True)
        say(f"{path}: fine")
    if not files:
        _validate_environment()
        for path in layers.file_paths():
            if path not in there:
                say(f"not there: {path}")


def _check_properties(checked: ConfigFile) -> None:
    from bwtui.cli.inputs.relay_options import check_properties
    from bwtui.settings import RelaySettings

    for layer in (checked.base, *checked.profiles.values()):
        settings = RelaySettings(
            kafka_config=tuple(layer.pairs.get("kafka-config", {}).items()),
            topic_config=tuple(layer.pairs.get("topic-config", {}).items()),
            registry_config=tuple(layer.pairs.get("registry-config", {}).items()),
        )
        check_properties(settings, functools.partial(_place, layer.origin))


def _check_alone(merged: layers.Config) -> None:
    from bwtui.source.hosts import parsed

    merged.check()
    try:
        parsed(merged.text("postgres"))
    except UsageError as error:
        raise UsageError(f"{merged.place('postgres')}: {error.message}", error.hint) from error
    _check_screens(merged)


def _check_screens(merged: layers.Config) -> None:
    if any(merged.screens.values()):
        from bwtui.tui.base.choices import chosen

        chosen(merged)


def _place(origin: str, name: str, key: str) -> str:
    return place(origin, name, {})


def _doubts(checked: ConfigFile) -> list[str]:
    if not _holds_secrets(checked) or not checked.path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
        return []
    return [f"{checked.path} contains secrets and is readable by other users; run 'chmod 600 {checked.path}'"]


def _holds_secrets(checked: ConfigFile) -> bool:
    for layer in (checked.base, *checked.profiles.values()):
        if any(is_secret(key) for properties in layer.pairs.values() for key in properties):
            return True
        if any(isinstance(v, str) and mask_connection(v) != v for v in layer.values.values()):
            return True
    return False


def _validate_environment() -> None:
    merged = layers.load()
    _check_alone(merged)
    for name, close in layers.unknown_variables(os.environ).items():
        suggestion = f"; did you mean {close}?" if close else ""
        say(f"bwtui: warning: unknown environment variable {name}{suggestion}", err=True)
    say("environment: fine")
