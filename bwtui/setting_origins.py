"""Name the place where a setting came from, in the user's terms, for errors.

A place is an option as it was typed (``-s``, ``--slot``), a variable (``BWTUI_SLOT``), or a key of a file
(``./bwtui.toml: slot``, ``./bwtui.toml [profile.prod]: slot``); for a property it is the table
(``./bwtui.toml [profile.prod.kafka]``).
"""

from collections.abc import Callable, Mapping

from bwtui.options import BY_NAME

COMMAND_LINE = "command line"
ENVIRONMENT = "environment"
DEFAULT = "default"

#: Returns the place where a property of an option's table was set: option name, property → place.
OfProperty = Callable[[str, str], str]


def place(origin: str, name: str, typed: Mapping[str, str]) -> str:
    """Return the place of option ``name`` by its ``origin``; ``typed`` has the options as typed."""
    option = BY_NAME[name]
    if origin in (COMMAND_LINE, DEFAULT):
        return typed.get(name) or usual_place(name)
    if origin in (ENVIRONMENT, option.variable):
        return option.variable
    return table_place(origin, option.table) if option.kind == "pairs" else f"{origin}: {name}"


def table_place(origin: str, table: str) -> str:
    """Return the place of a table in a file, or in a profile of it."""
    if origin.endswith("]"):
        return f"{origin.removesuffix(']')}.{table}]"
    return f"{origin} [{table}]"


def usual_place(name: str, key: str = "") -> str:
    """Return the usual way to set option ``name``, for callers that don't know its origin."""
    option = BY_NAME[name]
    if option.kind == "pairs":
        return f"-{option.flag}" if option.flag else f"[{option.table}]"
    return f"--{name}"
