"""``bwtui dead-letters``: one file for each subcommand, imported when it is called."""

import click

from bwtui.cli.lazy import LazyGroup, Table

SUBCOMMANDS: Table = {
    "list": ("bwtui.cli.dead_letters.list", "List the rows that were dropped, each with its reason."),
    "show": ("bwtui.cli.dead_letters.show", "Show letters in full, and what was done about them."),
    "retry": ("bwtui.cli.dead_letters.retry", "Have the relay send their rows, as they are by then."),
    "drop": ("bwtui.cli.dead_letters.drop", "Set letters aside: nothing is to be done about them."),
}

_EPILOG = """\b
Examples:
  bwtui dead-letters list
  bwtui dead-letters show 3f9a01c2b7d4 --show-values
  bwtui dead-letters retry --table orders
  bwtui dead-letters drop 3f9a01 --note "a test row"
"""


@click.group(cls=LazyGroup, table=SUBCOMMANDS, epilog=_EPILOG)
def dead_letters() -> None:
    """List the rows that --on-error log has dropped, and have them sent after all.

    A letter's own row is never sent: it is old, and could stand behind a newer one. The relay reads the row
    as it is by then and puts it at its right place; where it is gone, its key gets a tombstone.
    """
