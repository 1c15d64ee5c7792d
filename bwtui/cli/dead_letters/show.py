"""``bwtui dead-letters show``: show dead letters in full."""

import time
from typing import TYPE_CHECKING, Any

import click

from bwtui.cli.inputs.relay_options import json_option
from bwtui.cli.inputs.selected_letters import letter_options, opened
from bwtui.console import say, say_json
from bwtui.errors import ConnectionFailed, UsageError

if TYPE_CHECKING:
    from bwtui.cli.inputs.selected_letters import SelectedLetters
    from bwtui.sink.dead_letters import DeadLetter, DeadLetterRows

_EPILOG = """\b
Examples:
  bwtui dead-letters show 3f9a01c2b7d4
  bwtui dead-letters show 3f9a 77c0 --show-values --json
"""
#: Timeout and poll interval while the running relay searches its topic (seconds).
_LOOK_SECONDS, _PAUSE_SECONDS = 5.0, 0.1
_WORDS = {
    "retry": "requested",
    "sent": "sent with the row's current state, or as a tombstone for a missing row",
    "refused": "rejected again",
    "failed": "not sent",
    "drop": "set aside",
}


@click.command(epilog=_EPILOG)
@click.argument("ids", nargs=-1, metavar="ID...")
@letter_options
@json_option("Print one JSON object per dead letter.")
def show(ids: tuple[str, ...], as_json: bool, show_values: bool, **options: Any) -> None:
    """Show dead letters in full: reason, position, columns, place in the topic, and the actions taken."""
    if not ids:
        raise UsageError("no dead letter was given", "'bwtui dead-letters list' shows the ids")
    with opened(options) as source:
        for number, letter in enumerate(source.of_ids(ids)):
            if as_json:
                say_json(_as_json(source, letter, values=show_values))
            else:
                say(*([""] if number else []), *_lines(source, letter, values=show_values))


def _rows(source: "SelectedLetters", letter: "DeadLetter") -> "DeadLetterRows | None":
    from bwtui.file_errors import file_failed

    try:
        return source.file.rows(letter)
    except OSError as error:
        raise file_failed(f"the dead letter in {source.place} can't be read", error) from error


def _as_json(source: "SelectedLetters", letter: "DeadLetter", *, values: bool) -> dict[str, Any]:
    from dataclasses import asdict

    from bwtui.cli.dead_letters import rendering

    rows, state = _rows(source, letter), source.states[letter.id]
    return {
        **rendering.as_json(letter, state, values=values),
        "before": rendering.masked(rows.before, values=values) if rows else None,
        "after": rendering.masked(rows.after, values=values) if rows else None,
        "places": [{"partition": p, "offset": o} for p, o in _places(source, letter)],
        "notes": [asdict(note) for note in state.notes],
    }


def _lines(source: "SelectedLetters", letter: "DeadLetter", *, values: bool) -> list[str]:
    from bwtui.cli.dead_letters import rendering
    from bwtui.relay.dead_letters.retry import refusal

    state, rows = source.states[letter.id], _rows(source, letter)
    change = f"transaction {letter.xid}" if letter.xid else "no transaction"
    facts = [
        ("letter", letter.id),
        ("state", f"{state.state}: {state.detail}" if state.detail else state.state),
        ("reason", f"{letter.error} ({letter.reason})"),
        ("change", f"{letter.operation} on {letter.table}"),
        ("key", rendering.key_text(letter.key, values=values)),
        *([("old key", rendering.key_text(letter.former_key, values=values))] if letter.former_key else []),
        ("place", f"{letter.commit_lsn} #{letter.ordinal}, {change}"),
        ("topic", letter.topic),
        ("dropped", rendering.moment(letter.time)),
    ]
    if places := _places(source, letter):
        facts.append(("in Kafka", "partition@offset " + ", ".join(f"{p}@{o}" for p, o in places)))
    if why := refusal(letter):
        facts.append(("no retry", why))
    facts += [("done", _note(note)) for note in state.notes]
    lines = [f"{name:<9} {text}" for name, text in facts]
    if rows is None:
        return [*lines, "", f"the row ({letter.size:,} bytes) is not available"]
    lines += rendering.row_lines("row to send", rows.after, values=values)
    lines += rendering.row_lines("row before the change", rows.before, values=values)
    return lines if values else [*lines, "", "values are masked; use --show-values to show them"]


def _note(note: Any) -> str:
    from bwtui.cli.dead_letters.rendering import moment

    action = " ".join(filter(None, (_WORDS[note.what], f"as {note.task}" if note.task else "")))
    text = f": {note.text}" if note.text else ""
    new = f", new dead letter {', '.join(note.new)}" if note.new else ""
    return f"{moment(note.time)} {action}{new}{text}, by {note.by}"


def _places(source: "SelectedLetters", letter: "DeadLetter") -> list[tuple[int, int]]:
    """Return where in its topic the running relay finds the letter, as far as it has searched."""
    from bwtui.model.service_views import DeadLetterTopic, look_from_json
    from bwtui.relay.process.control import request

    until = time.monotonic() + _LOOK_SECONDS
    while source.relay:
        try:
            if not (request(source.relay, {"request": "settings"}) or {}).get("dead_letter_topic"):
                break
            answer = request(source.relay, {"request": "letters", "about": [letter.identity]})
        except ConnectionFailed:
            break
        view = look_from_json("letters", answer)
        assert isinstance(view, DeadLetterTopic)
        if view.failure or view.time or time.monotonic() >= until:
            return [(place.partition, place.offset) for place in view.places]
        time.sleep(_PAUSE_SECONDS)
    return []
