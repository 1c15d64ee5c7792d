"""Messages of commands that need no service: choosing a relay, ended relays, and empty results."""

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace

import click
import pytest
from click.testing import CliRunner

from bwtui.cli import slots, stop
from bwtui.cli.inputs import relay_options
from bwtui.cli.main import cli, guarded
from bwtui.cli.snapshot import snapshot


@pytest.mark.parametrize(
    ("command", "args", "hint"),
    [
        (stop.stop, ["stop"], "choose one, as in 'bwtui stop one': one, two"),
        (snapshot, ["snapshot", "orders"], "choose one with --relay: one, two"),
    ],
)
def test_the_hint_names_how_a_relay_is_chosen(
    monkeypatch: pytest.MonkeyPatch, command: click.Command, args: list[str], hint: str
) -> None:
    running = [SimpleNamespace(name=name) for name in ("one", "two")]
    monkeypatch.setattr(relay_options, "all_running", lambda: (running, []))
    ran = CliRunner().invoke(cli, args, prog_name="bwtui")
    assert (ran.exit_code, ran.stderr.splitlines()) == (
        2,
        ["bwtui: error: 2 relays are running", f"hint: {hint}"],
    )


def test_a_server_without_slots_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextlib.contextmanager
    def connected(options: object) -> Iterator[None]:
        yield None

    monkeypatch.setattr(slots, "_connected", connected)
    monkeypatch.setattr(slots, "_read", lambda _: [])
    assert CliRunner().invoke(cli, ["slots", "list"]).exit_code == 0
    assert CliRunner().invoke(cli, ["slots", "list", "--json"]).stdout == "[]\n"


def test_a_path_that_can_not_be_read_is_named_without_a_placeholder(
    capsys: pytest.CaptureFixture[str],
) -> None:
    argument = click.Argument(["files"], type=click.Path(), nargs=-1, metavar="[FILE]...")

    def refuse() -> None:
        raise click.BadParameter(
            "Path '/x' is not readable.", click.Context(click.Command("check")), argument
        )

    assert guarded(refuse) == 2
    assert capsys.readouterr().err.splitlines()[0] == "bwtui: error: path '/x' is not readable"


def test_a_missing_argument_shows_the_usage() -> None:
    ran = CliRunner().invoke(cli, ["recording", "info"], prog_name="bwtui")
    assert ran.stderr.splitlines() == [
        "bwtui: error: missing argument 'RECORDING'",
        "hint: usage: bwtui recording info [OPTIONS] RECORDING",
    ]


@pytest.mark.parametrize(
    ("plugin", "says"),
    [
        (None, "is a physical slot, which a standby may use. It "),
        ("wal2json", "uses plugin wal2json, so it is not a relay's. It "),
        ("pgoutput", ""),
    ],
)
def test_a_slot_that_is_not_a_relays_is_dropped_with_a_warning(plugin: str | None, says: str) -> None:
    assert slots._foreign({"plugin": plugin}) == says
