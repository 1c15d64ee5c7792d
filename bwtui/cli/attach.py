"""``bwtui attach``: open the screens for a running relay, or for all of them."""

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from bwtui.cli.inputs import relay_options
from bwtui.cli.inputs.relay_options import name_argument, only_relay, status_of
from bwtui.console import say
from bwtui.terminal import need_screens, shows_screens

if TYPE_CHECKING:
    from bwtui.tui.base.choices import Choices

#: Waiting time after which a message says what is being waited for (seconds).
_SLOW = 1.0

_EPILOG = """\b
Examples:
  bwtui attach              the running relay; a list if several run
  bwtui attach shop
  bwtui attach shop --readonly

\b
In the list, Enter attaches to a relay. F goes from a relay to the list, and Esc
back. Without a terminal, or with --plain, attach requires NAME if several relays
run.
"""


@click.command(epilog=_EPILOG)
@name_argument
@click.option(
    "--plain", is_flag=True, help="If several relays run, end with an error that names them: show no list."
)
@relay_options.takes("readonly")
def attach(name: str | None, plain: bool, **options: Any) -> None:
    """Open the screens of the running relay NAME, or the list of all running relays.

    Any number of terminals can attach to one relay; closing the screens leaves it running. With --readonly,
    the screens can't stop it.
    """
    from bwtui.cli.connect import show
    from bwtui.tui.base.choices import chosen

    choices = chosen(relay_options.load(options))
    if name is None and not plain and shows_screens() and _run_several():
        _show_all(choices)
        return
    with _notice_when_slow(name):
        name = status_of(only_relay(name)).name
    need_screens(f"'bwtui status {name}' works without one")
    if show(name, owned=False, fleet="named", choices=choices):
        _show_all(choices, name)


def _run_several() -> bool:
    """Return whether several relays run, answering or not; their locks show it without waiting."""
    from bwtui.relay.process.lock import is_held
    from bwtui.state_folder import relay_names

    return sum(map(is_held, relay_names())) > 1


def _show_all(choices: "Choices", selected: str | None = None) -> None:
    """Show the list of all relays, and each relay that the user attaches to, until the user leaves."""
    from bwtui.cli.connect import show
    from bwtui.tui.fleet import choose

    while (name := choose(selected, choices)) is not None:
        if not show(name, owned=False, fleet="listed", choices=choices):
            return
        selected = name


@contextlib.contextmanager
def _notice_when_slow(name: str | None) -> Iterator[None]:
    """Report on a terminal what is being waited for if it takes long: a relay may be suspended."""
    whose = "the relays to answer" if name is None else f"relay {name} to answer"
    timer = threading.Timer(_SLOW, lambda: say(f"bwtui: waiting for {whose}…", err=True))
    timer.daemon = True
    if sys.stderr.isatty():
        timer.start()
    try:
        yield
    finally:
        timer.cancel()
