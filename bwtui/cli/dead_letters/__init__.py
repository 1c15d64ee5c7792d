"""``bwtui dead-letters``: one file for each subcommand, imported when it is called."""

import click

from bwtui.cli.lazy import LazyGroup, Table

SUBCOMMANDS: Table = {
    "list": ("bwtui.cli.dead_letters.list", "List dropped rows with the reason for each."),
    "show": ("bwtui.cli.dead_letters.show", "Show dead letters in full, with the actions taken on them."),
    "retry": ("bwtui.cli.dead_letters.retry", "Have the relay send the current rows of dead letters."),
    "drop": ("bwtui.cli.dead_letters.drop", "Set dead letters aside, without sending their rows."),
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
    """List the rows that --on-error log dropped, and have them sent.

    The stored row itself is never sent, because it could overwrite a newer one. Instead, the relay reads the
    current row and sends it in the order of its stream, or a tombstone if the row no longer exists.
    """
