"""What a consumer read, as a text that PostgreSQL can cast back to the column's type."""

from datetime import date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID


def to_text(value: Any, delimiter: str = ",") -> str:
    """Return the text of a value that fastavro decoded."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return "\\x" + value.hex()
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, date | datetime | time):
        return value.isoformat()
    if isinstance(value, list):
        return "{" + delimiter.join("NULL" if e is None else _quoted(to_text(e)) for e in value) + "}"
    if isinstance(value, dict):
        pairs = (f"{_quoted(k)}=>{'NULL' if v is None else _quoted(v)}" for k, v in value.items())
        return ",".join(pairs)
    if isinstance(value, float):
        return repr(value)
    assert isinstance(value, str | int | UUID)
    return str(value)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
