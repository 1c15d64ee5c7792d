"""How a dropped row gets into its topic after all: by an UPDATE of it that changes nothing.

Sent by anybody but the relay's stream, the row of a letter could stand behind a newer one of the same key. An
UPDATE makes PostgreSQL write the row, as it is by then, into its WAL: the relay sends it in its place.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from bwtui.model.sql import quote_identifier, quote_literal, quote_qualified
from bwtui.sink.letters import Letter, Rows

#: Keys of one statement.
_KEYS = 500


@dataclass(slots=True)
class Plan:
    """The statements that have rows sent again, and how many letters there are none for, by the reason."""

    statements: list[str] = field(default_factory=list)
    #: Rows that the statements name: a row with several letters is sent once.
    rows: int = 0
    refused: dict[str, int] = field(default_factory=dict)


def plan(letters: Iterable[tuple[Letter, Rows | None]]) -> Plan:
    """Return what has the rows of ``letters`` sent again."""
    made = Plan()
    groups: dict[tuple[str, tuple[str, ...]], dict[tuple[str, ...], str]] = {}
    for letter, rows in letters:
        why = refusal(letter, rows)
        if why:
            made.refused[why] = made.refused.get(why, 0) + 1
            continue
        assert rows is not None and rows.after is not None
        names = tuple(name for name, _ in letter.key)
        values = tuple(value or "" for _, value in letter.key)
        spare = next((name for name in rows.after if name not in names), names[0])
        groups.setdefault((letter.table, names), {}).setdefault(values, spare)
    for (table, names), keys in groups.items():
        made.rows += len(keys)
        made.statements += _statements(table, names, keys)
    return made


def refusal(letter: Letter, rows: Rows | None) -> str:
    """Return why no statement has the row of ``letter`` sent again, or nothing."""
    if letter.operation == "delete":
        return "a row that was deleted: there is nothing left that an UPDATE could have sent"
    if rows is None or rows.after is None:
        return "the letter holds no row"
    if not letter.key:
        return "its table has no key, or is not one of this run, so that the row can't be named"
    if letter.table.count(".") != 1:
        return "the name of its table or schema has a dot, so that it can't be told which is which"
    texts = [letter.table, *(part for pair in letter.key for part in pair)]
    if any(text is None or not text.isprintable() for text in texts):
        return "its key holds what can't be printed"
    return ""


def _statements(table: str, names: Sequence[str], keys: dict[tuple[str, ...], str]) -> list[str]:
    target = quote_qualified(*table.split("."))
    columns = ", ".join(map(quote_identifier, names))
    if len(names) > 1:
        columns = f"({columns})"
    spare = quote_identifier(next(iter(keys.values())))
    every = list(keys)
    return [
        f"UPDATE {target} SET {spare} = {spare} WHERE {columns} IN ({_values(every[at : at + _KEYS])});"
        for at in range(0, len(every), _KEYS)
    ]


def _values(keys: Sequence[tuple[str, ...]]) -> str:
    return ", ".join(
        quote_literal(key[0]).strip()
        if len(key) == 1
        else f"({', '.join(quote_literal(v).strip() for v in key)})"
        for key in keys
    )
