"""The query language: which of a recording's changes are meant. docs/query.md is its page.

::

    query = parse("table = orders and op = update and after.status = 'paid'")
    found = [change for change in view.changes() if query.matches(change)]

A query is asked of each message of a change by itself, with the change's other fields, and of a change
without a message as a whole; a change matches when one answer is true. Answers are true, false or unknown,
as in SQL: whatever is compared with a null is unknown, and ``not`` leaves that unknown.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from bwtui.recording.change import Change
from bwtui.recording.query.fields import FIELDS, FieldName, Ref
from bwtui.recording.query.match import compiled, whole
from bwtui.recording.query.parser import parse_tree
from bwtui.recording.query.sql import condition
from bwtui.recording.query.syntax import And, Compare, Node, Not, Or
from bwtui.recording.query.tokens import QueryError

__all__ = ["FIELDS", "FieldName", "Query", "QueryError", "parse", "to_sql"]


@dataclass(frozen=True, slots=True)
class Query:
    """A query that was understood."""

    text: str
    tree: Node
    #: Whether a change has a message, or is a row, that the query finds.
    matches: Callable[[Change], bool] = field(repr=False, compare=False)

    def __str__(self) -> str:
        return self.text


def parse(text: str, end: int | None = None) -> Query:
    """Return the query that ``text`` writes; times like ``-5m`` count from ``end``, in Unix microseconds.

    Raises QueryError.
    """
    tree = parse_tree(text, end)
    return Query(text, tree, whole(compiled(tree), any(ref.field.of_message for ref in _refs(tree))))


def to_sql(query: Query) -> str:
    """Return the condition on a sealed recording's columns, for DuckDB, that finds what ``query`` finds."""
    return condition(query.tree)


def fields_of(query: Query) -> list[str]:
    """Return the names of the fields that a query asks about."""
    return list(dict.fromkeys(ref.field.name for ref in _refs(query.tree)))


def _refs(node: Node) -> Iterator[Ref]:
    if isinstance(node, And | Or):
        for part in node.parts:
            yield from _refs(part)
    elif isinstance(node, Not):
        yield from _refs(node.part)
    else:
        yield node.ref
        if isinstance(node, Compare) and isinstance(node.operand, Ref):
            yield node.operand
