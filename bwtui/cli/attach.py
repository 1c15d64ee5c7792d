"""``bwtui attach``: opens the screens on a relay that runs already."""

from typing import Any

import click

from bwtui.cli.options import relay_options
from bwtui.cli.options.relay_name import name_argument, only_relay, status_of
from bwtui.terminal import need_screens

_EPILOG = """\b
Examples:
  bwtui attach              the only relay that runs
  bwtui attach shop
  bwtui attach shop --readonly
"""


@click.command(epilog=_EPILOG)
@name_argument
@relay_options.takes("readonly")
def attach(name: str | None, **given: Any) -> None:
    """Watch the relay NAME, which runs already.

    Any number of terminals may watch one relay; closing the screens leaves it running. With --readonly they
    can't stop it either: leaving only detaches.
    """
    from bwtui.cli.connect import show
    from bwtui.tui.choices.chosen import chosen

    choices = chosen(relay_options.load(given))
    name = status_of(only_relay(name)).name
    need_screens(f"'bwtui status {name}' needs none")
    show(name, owned=False, choices=choices)
