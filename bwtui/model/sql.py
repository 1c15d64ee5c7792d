"""Names and texts in PostgreSQL's SQL."""


def quote_identifier(name: str) -> str:
    """Return ``name`` as a quoted SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def quote_qualified(namespace: str, name: str) -> str:
    """Return ``"schema"."table"``, as SQL takes it."""
    return f"{quote_identifier(namespace)}.{quote_identifier(name)}"


def quote_literal(value: str) -> str:
    """Return ``value`` as an SQL string literal, safe whatever standard_conforming_strings says."""
    escaped = value.replace("'", "''")
    if "\\" in value:
        return " E'" + escaped.replace("\\", "\\\\") + "'"
    return f"'{escaped}'"
