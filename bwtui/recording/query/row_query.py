"""Queries on a table's rows as of a position: the same language, restricted to the fields of a row."""

from bwtui.recording.query.language import Query, fields_of, parse
from bwtui.recording.query.tokens import QueryError, tokens

#: The fields of a row; all other fields belong to changes.
ROW_FIELDS = ("after", "key", "table", "schema", "position")


def parse_row_query(text: str) -> Query:
    """Parse a query on rows. Raises QueryError, also for fields that only changes have."""
    query = parse(text)
    for name in fields_of(query):
        if name not in ROW_FIELDS:
            heads = ((token.text.partition(".")[0].lower(), token.column) for token in tokens(text))
            column = next((column for head, column in heads if head == name), 0)
            raise QueryError(
                f"rows have no field {name!r}",
                text,
                column,
                f"rows have {', '.join(ROW_FIELDS)}",
            )
    return query
