"""``bwtui attach``: opens the screens on a relay that runs already."""

import click

from bwtui.cli.options.relay_name import name_argument, only_relay, status_of
from bwtui.terminal import need_screens

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
    need_screens(f"'bwtui status {name}' needs none")
    show(name, owned=False)
