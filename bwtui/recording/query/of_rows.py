"""Queries about rows, as a table has them at some moment: the same language, with what a row has."""

from bwtui.recording.query.language import Query, fields_of, parse
from bwtui.recording.query.tokens import QueryError, tokens

#: What a row has; all other fields are a change's.
ROW_FIELDS = ("after", "key", "table", "schema", "position")


def parse_row_query(text: str) -> Query:
    """Return the query that ``text`` writes. Raises QueryError, also for what only a change has."""
    query = parse(text)
    for name in fields_of(query):
        if name not in ROW_FIELDS:
            heads = ((token.text.partition(".")[0].lower(), token.column) for token in tokens(text))
            column = next((column for head, column in heads if head == name), 0)
            raise QueryError(
                f"a row has no {name!r}: ask for after.column, key or position",
                text,
                column,
                f"rows have {', '.join(ROW_FIELDS)}",
            )
    return query
