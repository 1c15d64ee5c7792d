"""The commands' options are generated from bwtui/settings.py, and not defined twice."""

from types import SimpleNamespace

import click
import pytest

from bwtui.cli.inputs import relay_options
from bwtui.cli.main import cli
from bwtui.options import parse
from bwtui.settings import OPTIONS, Option, RelaySettings


def _parameters(*path: str) -> dict[str, click.Option]:
    command: click.Command | None = cli
    for name in path:
        assert isinstance(command, click.Group)
        command = command.get_command(click.Context(command), name)
    assert command is not None
    return {max(one.opts, key=len)[2:]: one for one in command.params if isinstance(one, click.Option)}


@pytest.mark.parametrize("path", [("connect",), ("doctor",), ("schema", "check")])
def test_what_a_relay_is_told_every_command_takes_that_needs_all_of_it(path: tuple[str, ...]) -> None:
    taken = _parameters(*path)
    assert {option.name for option in OPTIONS if option.help and not option.of_screens} <= set(taken)
    for option in OPTIONS:
        if option.help and not option.of_screens:
            parameter = taken[option.name]
            assert ([f"-{option.flag}"] if option.flag else []) == parameter.opts[:-1]
            assert (parameter.help or "").startswith(option.help)


def test_connect_names_its_options_that_are_not_settings() -> None:
    context = click.Context(cli)
    command = cli.get_command(context, "connect")
    assert command is not None and command.epilog is not None
    others = set(_parameters("connect")) - {option.name for option in OPTIONS}
    named = command.epilog.partition("except ")[2].partition(". ")[0]
    assert {word.strip(",").removeprefix("--") for word in named.split() if word.startswith("--")} == others


def test_verify_and_record_take_what_they_name() -> None:
    of_relay = {option.name for option in OPTIONS}
    assert of_relay & set(_parameters("verify")) == {
        *("postgres", "slot", "broker", "schema-registry", "topic-prefix", "kafka-config"),
        *("publication", "table", "exclude-table"),
        # This is verify's own option.
        "spark-master",
    }
    elsewhere = {"broker", "schema-registry", "kafka-config", "topic-config", "registry-config", "record"}
    assert of_relay - set(_parameters("record")) == elsewhere | {
        *("dead-letter-topic", "truncate-topic", "transaction-topic", "heal", "readonly"),
        *("exactly-once", "commit-rows", "commit-ms"),
    }


def test_the_help_says_the_default_that_holds() -> None:
    settings, taken = RelaySettings(), _parameters("connect")
    for name in ("slot", "broker", "schema-registry", "output-format", "on-error", "toast"):
        value = getattr(settings, name.replace("-", "_"))
        assert (taken[name].help or "").endswith(f"  [default: {value}]")
    assert (taken["segment-bytes"].help or "").endswith(f"  [default: {settings.segment_bytes >> 20}M]")


@pytest.mark.parametrize(
    ("value", "in_words", "told"),
    [
        *((300, "", "300"), (64 << 20, "", "64M"), (1, "", "1"), (0, "", "0"), (None, "", "")),
        *((None, "no limit", "no limit"), (0, "no limit", "no limit")),
    ],
)
def test_the_default_of_a_number_may_be_zero_or_none(
    monkeypatch: pytest.MonkeyPatch, value: int | None, in_words: str, told: str
) -> None:
    monkeypatch.setattr(relay_options, "_DEFAULTS", SimpleNamespace(limit=value))
    option = Option("limit", "limit", "A limit.", kind="number", shown_default=in_words)
    assert relay_options._default(option) == told


def test_a_command_can_not_take_what_no_relay_has() -> None:
    from bwtui.cli.inputs.relay_options import takes

    with pytest.raises(AssertionError, match="slott"):
        takes("slott")


@pytest.mark.parametrize("text", ["0", "33", "two", "64M", "-1"])
def test_a_number_that_is_bounded_is_told_its_bounds(text: str) -> None:
    bounded = {option.name: option for option in OPTIONS}
    with pytest.raises(ValueError, match=r"\(a whole number from 1 to 32\)"):
        parse(bounded["snapshot-workers"], text)
    if text != "33":
        with pytest.raises(ValueError, match=r"\(a whole number from 1 to 90\)"):
            parse(bounded["snapshot-share"], text)
