"""``bwtui dead-letters drop``: set dead letters aside."""

from typing import Any

import click

from bwtui.cli.inputs.relay_options import dry_run_option, json_option
from bwtui.cli.inputs.selected_letters import check_choice, choice_options, opened
from bwtui.console import say, say_json
from bwtui.model.number_format import plural

_EPILOG = """\b
Examples:
  bwtui dead-letters drop 3f9a01c2b7d4 --note "a test row"
  bwtui dead-letters drop --table 'scratch\\..*'

\b
Exit codes: 0 success · 2 usage or error · 4 no relay found
"""


@click.command(epilog=_EPILOG)
@choice_options
@click.option("--note", metavar="TEXT", default="", help="Reason, stored for later readers.")
@dry_run_option("Only show which dead letters would be set aside.")
@json_option("Print one JSON object per dead letter.")
def drop(
    ids: tuple[str, ...],
    takes_all: bool,
    note: str,
    dry_run: bool,
    as_json: bool,
    show_values: bool,
    **options: Any,
) -> None:
    """Set dead letters aside, without sending their rows.

    Nothing is deleted: the dead letters stay in the relay's file and in the topic. The user, the time and the
    reason are stored in dead-letters-handled.jsonl. 'retry' still sends their rows.
    """
    from bwtui.cli.dead_letters import rendering
    from bwtui.relay.dead_letters.letters import DeadLetterAction, DeadLetterActionLog, dead_letter_state

    check_choice(ids, options, all=takes_all)
    with opened(options, needs_relay=True) as source:
        letters = source.of_ids(ids) if ids else source.open()
        aside = [one for one in letters if source.states[one.id].state != "dropped"]
        done = DeadLetterAction("drop", tuple(one.id for one in aside), text=note)
        if aside and not dry_run:
            DeadLetterActionLog(source.relay).add([done])
        for one in aside if as_json else ():
            state = source.states[one.id] if dry_run else dead_letter_state([done], {})
            say_json(rendering.as_json(one, state, values=show_values))
        if as_json:
            return
        if dry_run and aside:
            say(*rendering.as_table(aside, source.states, values=show_values), "")
        would = "would be" if dry_run else "is" if len(aside) == 1 else "are"
        already = len(letters) - len(aside)
        more = f"; {already:,} were set aside before" if already else ""
        say(f"{plural(len(aside), 'letter')} {would} set aside{more}")
