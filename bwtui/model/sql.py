"""Quote names and texts in SQL, for PostgreSQL, and for DuckDB, which reads files."""

import glob
import re
from collections.abc import Iterable
from pathlib import Path

_IDENTIFIER = r'\s*(?:"((?:[^"]|"")+)"|([^\W\d][\w$]*))\s*'
_QUALIFIED = re.compile(rf"(?:{_IDENTIFIER}\.)?{_IDENTIFIER}")


def quote_identifier(name: str) -> str:
    """Return ``name`` as a quoted SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def quote_qualified(namespace: str, name: str) -> str:
    """Return ``"schema"."table"``, quoted for SQL."""
    return f"{quote_identifier(namespace)}.{quote_identifier(name)}"


def split_qualified(text: str) -> tuple[str, str] | None:
    """Return schema (or "") and name of ``[schema.]table`` as PostgreSQL parses it, or None if it is invalid.

    Parts without quotes become lower case, as PostgreSQL does for ASCII letters.
    """
    if (match := _QUALIFIED.fullmatch(text)) is None:
        return None
    schema, bare_schema, name, bare_name = (part or "" for part in match.groups())
    return _unquoted(schema) or _folded(bare_schema), _unquoted(name) or _folded(bare_name)


def _unquoted(name: str) -> str:
    return name.replace('""', '"')


def _folded(name: str) -> str:
    return "".join(one.lower() if one.isascii() else one for one in name)


def quote_literal(value: str) -> str:
    """Return ``value`` as an SQL string literal that is safe for any standard_conforming_strings."""
    escaped = value.replace("'", "''")
    if "\\" in value:
        return " E'" + escaped.replace("\\", "\\\\") + "'"
    return f"'{escaped}'"


def quoted(text: str) -> str:
    """Return a text as an SQL literal of DuckDB."""
    return "'" + text.replace("'", "''") + "'"


def exact(paths: Iterable[Path | str]) -> list[str]:
    """Escape paths so that none is taken for a pattern: a recording's name may look like one."""
    return [glob.escape(str(path)) for path in paths]


def parquet(paths: Iterable[Path | str]) -> str:
    """Return the SQL table of some Parquet files; folder names are not partition columns."""
    return f"read_parquet([{', '.join(map(quoted, exact(paths)))}], hive_partitioning = false)"
