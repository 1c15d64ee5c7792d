"""Compare messages with the row that PostgreSQL sent, by a second decoder.

Decoding and comparing costs some 30 µs a message, five times as much as the rest of the audit. So a sample
spread over each table is compared, unless all messages are requested.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bwtui.audit.decoding import Schemas, UndecodableMessage
from bwtui.audit.postgresql_text import differing, of_json, parse_row, says
from bwtui.recording.manifest import SealedFile

#: Number of messages in a sample, divided among the tables in proportion to their messages; and the minimum
#: for each table, since an encoder's error may affect a single table.
SOME, SOME_OF_EACH = 10_000, 250
COLUMNS = ("position", "part", "key", "value", "key_json", "after", "unchanged", "op")


@dataclass(frozen=True, slots=True)
class DecodeCheck:
    """Compares every message, or one of every n messages of each table."""

    #: The schemas that the recording contains, by ID.
    texts: Mapping[int, str]
    is_json: bool
    #: Table → n, if one of every n of its messages is compared.
    every: Mapping[str, int]

    def wrong(self, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the messages (with `COLUMNS`) that differ from what PostgreSQL sent."""
        schemas = Schemas(self.texts)
        return [row for row in rows if _is_wrong(row, schemas, self.is_json)]


def one_of(files: Iterable[SealedFile]) -> dict[str, int]:
    """Return table → n, if one of every n of its messages is compared."""
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
        # A table without a key, or a key with a large value that was not sent.
        if row["key_json"] is None:
            return False
        return row["key"] is None or bool(_key(row, schemas, is_json))
    except UndecodableMessage:
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
    # A key's schema lacks the original names, but its fields are in the order of the key's columns.
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
        decoded = json.loads(data, parse_int=str, parse_float=str, parse_constant=str)
    except ValueError as error:
        raise UndecodableMessage("it is not valid JSON") from error
    return [
        name
        for name in {*decoded, *texts} - set(unsent)
        if not _json_says(decoded.get(name), texts.get(name))
    ]


def _json_says(value: Any, text: str | None) -> bool:
    if isinstance(value, str):
        value = of_json(value).removesuffix("\0")
    if isinstance(value, bool):
        return text == ("t" if value else "f")
    if value is None or text is None or value == text:
        return bool(value == text)
    # JSON writes negative zero with a decimal point, and money without currency sign and commas.
    if text.lstrip("-").startswith("$"):
        return bool(value == text.replace("$", "").replace(",", ""))
    return (value, text) == ("-0.0", "-0")
