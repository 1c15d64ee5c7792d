"""Does the message say what PostgreSQL said? A second decoder's word, for some messages or for all.

Decoding and comparing costs some 30 µs a message, five times what the rest of the audit costs; so it is
done for so many messages, spread over each table, unless all are asked for.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bwtui.audit.decoding import Schemas, Undecodable
from bwtui.audit.texts import differing, of_json, parse_row, says
from bwtui.recording.manifest import SealedFile

#: So many messages are compared when not all are asked for, shared out among the tables by their numbers; but
#: at least so many of each, since a fault of an encoder is one table's.
SOME, SOME_OF_EACH = 10_000, 250
COLUMNS = ("position", "part", "key", "value", "key_json", "after", "unchanged", "op")


@dataclass(frozen=True, slots=True)
class Comparison:
    """Compares every message, or one of so many of each table."""

    #: The schemas that the recording knows, by id.
    texts: Mapping[int, str]
    is_json: bool
    #: Table → one of how many of its messages is compared.
    every: Mapping[str, int]

    def wrong(self, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return those of the messages, which have `COLUMNS`, that do not say what PostgreSQL said."""
        schemas = Schemas(self.texts)
        return [row for row in rows if _is_wrong(row, schemas, self.is_json)]


def one_of(files: Iterable[SealedFile]) -> dict[str, int]:
    """Return one of how many messages of each table is compared."""
    rows: Counter[str] = Counter()
    for file in files:
        rows[file.table] += file.rows
    total = max(1, rows.total())
    return {table: max(1, count // max(SOME_OF_EACH, SOME * count // total)) for table, count in rows.items()}


def _is_wrong(row: dict[str, Any], schemas: Schemas, is_json: bool) -> bool:
    if row["value"] is None and row["op"] in ("insert", "snapshot", "backfill"):
        return True
    try:
        if row["value"] is not None and _value(row, schemas, is_json):
            return True
        # A table has none, or one that holds a large value which was not sent.
        if row["key_json"] is None:
            return False
        return row["key"] is None or bool(_key(row, schemas, is_json))
    except Undecodable:
        return True


def _value(row: dict[str, Any], schemas: Schemas, is_json: bool) -> list[str]:
    texts, unsent = parse_row(row["after"]), row["unchanged"] or ()
    if is_json:
        return _json_differs(row["value"], texts, unsent)
    schema, decoded = schemas.decode(row["value"])
    return differing(schema, decoded, texts, unsent)


def _key(row: dict[str, Any], schemas: Schemas, is_json: bool) -> list[str]:
    texts = parse_row(row["key_json"])
    if is_json:
        return _json_differs(row["key"], texts, ())
    schema, decoded = schemas.decode(row["key"])
    escaped = decoded.get("__escaped") or {}
    names = [name for name in decoded if name != "__escaped"]
    # A key's schema has no original names, but its fields are in the order of the key's columns.
    if len(names) != len(texts):
        return names
    return [
        column
        for name, (column, text) in zip(names, texts.items(), strict=True)
        if (
            escaped[name] != text
            if name in escaped
            else not says(decoded[name], text, schema.columns[name][1])
        )
    ]


def _json_differs(data: bytes, texts: Mapping[str, str | None], unsent: Sequence[str]) -> list[str]:
    try:
        found = json.loads(data, parse_int=str, parse_float=str, parse_constant=str)
    except ValueError as error:
        raise Undecodable("it is no JSON") from error
    return [
        name for name in {*found, *texts} - set(unsent) if not _json_says(found.get(name), texts.get(name))
    ]


def _json_says(value: Any, text: str | None) -> bool:
    if isinstance(value, str):
        value = of_json(value).removesuffix("\0")
    if isinstance(value, bool):
        return text == ("t" if value else "f")
    if value is None or text is None or value == text:
        return bool(value == text)
    # A negative zero has a point in JSON, and money neither sign nor commas.
    if text.lstrip("-").startswith("$"):
        return bool(value == text.replace("$", "").replace(",", ""))
    return (value, text) == ("-0.0", "-0")
