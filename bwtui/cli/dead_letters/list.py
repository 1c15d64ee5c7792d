"""``bwtui dead-letters list``: list the rows that were dropped."""

from typing import Any

import click

from bwtui.cli.inputs.relay_options import json_option
from bwtui.cli.inputs.selected_letters import letter_options, opened
from bwtui.console import say, say_json
from bwtui.model.number_format import plural

_EPILOG = """\b
Examples:
  bwtui dead-letters list
  bwtui dead-letters list --table orders --since -2h --show-values
  bwtui dead-letters list --all --json | jq -r 'select(.state == "open").id'
  bwtui dead-letters list --from-topic --dead-letter-topic dead -b kafka:9092

\b
Exit codes: 0 no listed dead letter is open · 1 some are open · 2 usage or error ·
4 no relay found, or Kafka can't be reached
"""

_OPEN = (
    "an open letter stays open, even if its row has been sent in another way, until "
    "'bwtui dead-letters retry' has sent the row, or 'bwtui dead-letters drop' has set the letter aside"
)


@click.command("list", epilog=_EPILOG)
@letter_options
@click.option("--all", "shows_all", is_flag=True, help="Include dead letters that need no action.")
@json_option("Print one JSON object per dead letter.")
def list(shows_all: bool, as_json: bool, show_values: bool, **options: Any) -> None:
    """List the dead letters of a relay, oldest first, with id, key and reason.

    Omits those that need no action: the relay has sent their rows since, or they were set aside.
    """
    from bwtui.cli.dead_letters import rendering

    with opened(options) as source:
        open_ones = source.open()
        states = {one.id: source.states[one.id].state for one in source.letters}
        listed = [one for one in source.letters if shows_all or states[one.id] in ("open", "asked")]
        if as_json:
            for letter in listed:
                say_json(rendering.as_json(letter, source.states[letter.id], values=show_values))
        else:
            if listed:
                say(*rendering.as_table(listed, source.states, values=show_values), "")
            omitted = len(source.letters) - len(listed)
            more = f"; {plural(omitted, 'other')} need no action, see --all" if omitted else ""
            requested = sum(states[one.id] == "asked" for one in source.letters)
            waiting = f", {requested:,} requested" if requested else ""
            say(f"{plural(len(open_ones), 'letter')} open{waiting} in {source.place}{more}")
            if open_ones:
                say(_OPEN)
    raise click.exceptions.Exit(1 if open_ones else 0)
