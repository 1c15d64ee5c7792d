"""Look up the relay's options, parse their texts, and name the place where a setting came from.

`parse` converts text to the value of an option's field, or raises a plain sentence about the problem; it
never does any I/O. A place is an option as it was typed (``-s``, ``--slot``), a variable (``BWTUI_SLOT``), or
a key of a file (``./bwtui.toml: slot``, ``./bwtui.toml [profile.prod]: slot``); for a property it is the
table (``./bwtui.toml [profile.prod.kafka]``).
"""

import contextlib
import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping

from bwtui.errors import UsageError
from bwtui.model.lsn import parse_lsn
from bwtui.option_checks import check_characters, check_property, parse_number
from bwtui.settings import OPTIONS, Option

Value = str | bool | int | None | tuple[str, ...]

_TRUE = {"1", "true", "yes", "on"}
_FALSE = {"0", "false", "no", "off"}


BY_NAME = {option.name: option for option in OPTIONS}
PAIR_OPTIONS = {option.table: option for option in OPTIONS if option.kind == "pairs"}
COMMAND_LINE = "command line"
ENVIRONMENT = "environment"
DEFAULT = "default"

#: Returns the place where a property of an option's table was set: option name, property → place.
OfProperty = Callable[[str, str], str]
#: Options of commands that no file and no environment variable sets.
COMMAND_LINE_ONLY = frozenset({"config-help", "detach", "headless", "json", "plain", "show-values", "yes"})


def nearest(text: str, candidates: Iterable[str]) -> str | None:
    """Return the candidate that ``text`` was probably meant to be, or None."""
    matches = difflib.get_close_matches(text, list(candidates), n=1, cutoff=0.6)
    return matches[0] if matches else None


def split_advice(error: ValueError) -> tuple[str, str]:
    """Return the problem, and the advice in parentheses at its end."""
    problem, _, advice = str(error).rpartition(" (")
    return (problem, advice.removesuffix(")")) if problem and advice.endswith(")") else (str(error), "")


@contextlib.contextmanager
def refused_at(place: str) -> Iterator[None]:
    """Turn a ValueError of the block into a UsageError about ``place``; its advice becomes the hint."""
    try:
        yield
    except ValueError as error:
        problem, advice = split_advice(error)
        raise UsageError(f"{place}: {problem}", advice) from error


def parse_switch(text: str) -> bool:
    """Return the boolean that ``text`` means; raises ValueError if it means none."""
    answer = text.strip().lower()
    if answer in _TRUE:
        return True
    if answer in _FALSE:
        return False
    raise ValueError(f"{text!r} is neither true nor false (use true or false, yes or no, on or off, 1 or 0)")


def parse_pair(text: str) -> tuple[str, str]:
    """Return the key and value of ``K=V``; the ValueError does not contain the value, which may be a
    secret.
    """
    key, equals, value = text.partition("=")
    key = key.strip()
    if not equals:
        raise ValueError("a property must have the form KEY=VALUE, but '=' is missing (such as linger.ms=20)")
    check_property(key)
    check_characters(value)
    return key, value.strip()


def parse(option: Option, text: str) -> Value:
    """Convert ``text`` to a value of ``option``; raises ValueError with a plain sentence."""
    if not option.is_path:
        check_characters(text)
    if option.kind == "switch":
        return parse_switch(text)
    if option.kind == "lsn":
        return parse_lsn(text)
    if option.choices:
        _check_choice(option.choices, text)
    if option.check is not None and (text or not option.optional):
        option.check(text)
    if option.kind == "number":
        return parse_number(text, "64M" if option.name.endswith("-bytes") else "300")
    return text


def _check_choice(choices: tuple[str, ...], text: str) -> None:
    if text not in choices:
        close = nearest(text.lower(), choices)
        advice = f"did you mean {close}?" if close else f"use {' or '.join(choices)}"
        raise ValueError(f"{text!r} is not one of {', '.join(choices)} ({advice})")


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
