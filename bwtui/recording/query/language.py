"""The query language, which selects changes of a recording; see docs/query.md.

::

    query = parse("table = orders and op = update and after.status = 'paid'")
    found = [change for change in view.changes() if query.matches(change)]

A query is evaluated for each message of a change, together with the change's other fields; a change without a
message is evaluated once. A change matches when one result is true. Results are true, false or unknown, as in
SQL: a comparison with null is unknown, and ``not`` leaves unknown unchanged.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from bwtui.recording.change import Change
from bwtui.recording.query.fields import FIELDS, FieldName, FieldRef
from bwtui.recording.query.match import compiled, whole
from bwtui.recording.query.parser import parse_tree
from bwtui.recording.query.sql import condition
from bwtui.recording.query.syntax import And, Compare, Node, Not, Or
from bwtui.recording.query.tokens import QueryError

__all__ = ["FIELDS", "FieldName", "Query", "QueryError", "parse", "to_sql"]


@dataclass(frozen=True, slots=True)
class Query:
    """A parsed query."""

    text: str
    tree: Node
    #: Returns whether any row of a change, in the sense of `query.rows`, matches.
    matches: Callable[[Change], bool] = field(repr=False, compare=False)

    def __str__(self) -> str:
        return self.text


def parse(text: str, end: int | None = None) -> Query:
    """Parse ``text``; times like ``-5m`` are relative to ``end``, in Unix microseconds.

    Raises QueryError.
    """
    tree = parse_tree(text, end)
    return Query(text, tree, whole(compiled(tree), any(ref.field.of_message for ref in _refs(tree))))


def to_sql(query: Query) -> str:
    """Return an equivalent SQL condition on a sealed recording's columns, for DuckDB."""
    return condition(query.tree)


def fields_of(query: Query) -> list[str]:
    """Return the names of the fields that a query uses."""
    return list(dict.fromkeys(ref.field.name for ref in _refs(query.tree)))


def _refs(node: Node) -> Iterator[FieldRef]:
    if isinstance(node, And | Or):
        for part in node.parts:
            yield from _refs(part)
    elif isinstance(node, Not):
        yield from _refs(node.part)
    else:
        yield node.ref
        if isinstance(node, Compare) and isinstance(node.operand, FieldRef):
            yield node.operand
