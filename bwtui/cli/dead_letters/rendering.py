"""Dead letters as text and as JSON: keys and rows are masked unless requested."""

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bwtui.cli.output.table import columns
from bwtui.escaping import shorten

if TYPE_CHECKING:
    from bwtui.relay.dead_letters.letters import DeadLetterState
    from bwtui.sink.dead_letters import DeadLetter, Row

_HEAD = ("ID", "DROPPED", "TABLE", "CHANGE", "KEY", "STATE", "REASON")
_KEY, _REASON, _VALUE = 40, 120, 2_000
MASK = "…"


def as_table(
    letters: "Sequence[DeadLetter]", states: "Mapping[str, DeadLetterState]", *, values: bool
) -> list[str]:
    """Return a line for each letter, oldest first."""
    return columns(_HEAD, [_cells(one, states[one.id], values=values) for one in letters])


def _cells(letter: "DeadLetter", how: "DeadLetterState", *, values: bool) -> tuple[str, ...]:
    return (
        letter.id,
        moment(letter.time),
        letter.table,
        letter.operation,
        shorten(key_text(letter.key, values=values), _KEY),
        "requested" if how.state == "asked" else how.state,
        shorten(letter.error, _REASON),
    )


def moment(seconds: float) -> str:
    """Return a local date and time."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds)) if seconds else "unknown"


def key_text(key: Sequence[tuple[str, str | None]], *, values: bool) -> str:
    """Return a key on one line."""
    texts = (f"{name}={MASK if not values else 'NULL' if value is None else value}" for name, value in key)
    return ", ".join(texts) or "unknown"


def as_json(letter: "DeadLetter", how: "DeadLetterState", *, values: bool) -> dict[str, Any]:
    """Return a letter's JSON object, without its row."""
    return {
        "id": letter.id,
        "time": letter.time,
        "table": letter.table,
        "topic": letter.topic,
        "operation": letter.operation,
        "commit_lsn": letter.commit_lsn,
        "ordinal": letter.ordinal,
        "xid": letter.xid,
        "error": letter.error,
        "reason": letter.reason,
        "key": masked(dict(letter.key), values=values) if letter.key else None,
        "state": how.state,
        "detail": how.detail,
    }


def masked(row: "Row | None", *, values: bool) -> "Row | None":
    """Return a row, or its columns with masked values."""
    return row if values or row is None else dict.fromkeys(row, MASK)


def row_lines(title: str, row: "Row | None", *, values: bool) -> list[str]:
    """Return the columns of a row, one on each line."""
    if row is None:
        return []
    width = min(max(map(len, row), default=0), 24)
    lines = ["", title]
    for name, value in row.items():
        text = MASK if not values else "NULL" if value is None else shorten(value, _VALUE)
        lines.append(f"  {name:<{width}}  {text}")
    return lines
