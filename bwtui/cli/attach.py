"""``bwtui attach``: opens the screens on a relay that runs already."""

import sys

import click

from bwtui.cli.relay_name import name_argument, only_relay, status_of
from bwtui.errors import UsageError

_EPILOG = """\b
Examples:
  bwtui attach              the only relay that runs
  bwtui attach shop
"""


@click.command(epilog=_EPILOG)
@name_argument
def attach(name: str | None) -> None:
    """Watch the relay NAME, which runs already.

    Any number of terminals may watch one relay; closing the screens leaves it running.
    """
    from bwtui.cli.connect import show

    name = status_of(only_relay(name)).name
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("there is no terminal for the screens", f"'bwtui status {name}' needs none")
    show(name, owned=False)
