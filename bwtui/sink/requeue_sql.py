"""Re-send a dropped row to its topic by an UPDATE that changes nothing.

If anything but the relay's stream sent a dead letter's row, it could be placed after a newer row of the same
key. An UPDATE makes PostgreSQL write the present row into its WAL, and the relay sends it in the correct
order.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count

from bwtui.model.sql import quote_identifier, quote_literal, quote_qualified
from bwtui.sink.dead_letter_file import DeadLetter, DeadLetterRows

#: Maximum number of keys in one statement.
_KEYS = 500


@dataclass(slots=True)
class RequeuePlan:
    """The statements that re-send rows, and the number of letters without one, by the reason."""

    statements: list[str] = field(default_factory=list)
    #: Number of rows that the statements name: a row with several letters is sent once.
    rows: int = 0
    refused: dict[str, int] = field(default_factory=dict)


def requeue_plan(letters: Iterable[tuple[DeadLetter, DeadLetterRows | None]]) -> RequeuePlan:
    """Return the statements that re-send the rows of ``letters``."""
    plan = RequeuePlan()
    groups: dict[tuple[str, tuple[str, ...]], dict[tuple[str, ...], None]] = {}
    for letter, rows in letters:
        why = refusal(letter, rows)
        if why:
            plan.refused[why] = plan.refused.get(why, 0) + 1
            continue
        names = tuple(name for name, _ in letter.key)
        values = tuple(value or "" for _, value in letter.key)
        groups.setdefault((letter.table, names), {})[values] = None
    for (table, names), keys in groups.items():
        plan.rows += len(keys)
        plan.statements += _statements(table, names, list(keys))
    return plan


def refusal(letter: DeadLetter, rows: DeadLetterRows | None) -> str:
    """Return why no statement can re-send the row of ``letter``, or ""."""
    if letter.operation == "delete":
        return "the row was deleted: no UPDATE can re-send it"
    if rows is None or rows.after is None:
        return "the dead letter does not contain the row"
    if not letter.key:
        return "the row can't be identified: its table has no key, or does not belong to this run"
    if letter.table.count(".") != 1:
        return "the name of its table or schema contains a dot, so the two can't be separated"
    texts = [letter.table, *(part for pair in letter.key for part in pair)]
    if any(text is None or not text.isprintable() for text in texts):
        return "its key contains unprintable characters"
    return ""


#: A letter does not say which columns an UPDATE may not set. The children of a table that is not partitioned
#: are tables of their own.
_STATEMENT = """DO {quote}
DECLARE spare text; these text;
BEGIN
  SELECT pg_catalog.quote_ident(attname), CASE relkind WHEN 'p' THEN '' ELSE 'ONLY ' END INTO spare, these
    FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_class c ON c.oid = a.attrelid
   WHERE attrelid = {literal}::regclass AND attnum > 0 AND NOT attisdropped
     AND attgenerated = '' AND attidentity <> 'a' ORDER BY attname IN ({names}), attnum LIMIT 1;
  IF spare IS NULL THEN
    RAISE 'the table has no column that an UPDATE may set' USING HINT = 'run: bwtui dead-letters retry';
  END IF;
  EXECUTE 'UPDATE ' || these || {literal} || ' SET ' || spare || ' = ' || spare || {where};
END {quote};"""


def _statements(table: str, names: Sequence[str], keys: Sequence[tuple[str, ...]]) -> list[str]:
    literal = quote_literal(quote_qualified(*table.split(".")))
    columns = ", ".join(map(quote_identifier, names))
    if len(names) > 1:
        columns = f"({columns})"
    listed = ", ".join(map(quote_literal, names))
    statements = []
    for at in range(0, len(keys), _KEYS):
        where = f" WHERE {columns} IN ({_values(keys[at : at + _KEYS])})"
        quote = _quote(where)
        where = f"{quote}{where}{quote}"
        outer = _quote(table, where, listed)
        statements.append(_STATEMENT.format(quote=outer, literal=literal, names=listed, where=where))
    return statements


def _quote(*texts: str) -> str:
    """Return a dollar quote that does not occur in any of ``texts``."""
    return next(quote for n in count(1) if not any((quote := f"$q{n}$") in text for text in texts))


def _values(keys: Sequence[tuple[str, ...]]) -> str:
    return ", ".join(
        quote_literal(key[0]).strip()
        if len(key) == 1
        else f"({', '.join(quote_literal(v).strip() for v in key)})"
        for key in keys
    )
