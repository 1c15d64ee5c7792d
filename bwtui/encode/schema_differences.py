"""Describe how two Avro schemas of one table differ: a registry only reports that they are incompatible.

Readability follows "Schema Resolution" of the Avro specification, as far as bwtui's schemas use it.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

#: With BACKWARD the new schema reads old rows, with FORWARD the old schema reads new rows.
Direction = Literal["BACKWARD", "FORWARD"]
_NEITHER: frozenset[Direction] = frozenset()
_BACKWARD: frozenset[Direction] = frozenset({"BACKWARD"})
_FORWARD: frozenset[Direction] = frozenset({"FORWARD"})
_BOTH = _BACKWARD | _FORWARD
# Reader's type by the other types of a writer that it accepts.
_WIDENS = {
    "long": ("int",),
    "float": ("int", "long"),
    "double": ("int", "long", "float"),
    "string": ("bytes",),
    "bytes": ("string",),
}


@dataclass(frozen=True, slots=True)
class SchemaDifference:
    """One difference between two schemas of a record."""

    #: Empty for a difference of the record itself.
    field: str
    #: "added", "removed", "type", or an attribute's name: "default", "pgType" …; for a record also "order".
    kind: str
    #: In words, or as JSON; empty if absent.
    before: str
    after: str
    breaks: frozenset[Direction]
    #: A sentence.
    reason: str


def directions(rule: str) -> frozenset[Direction]:
    """Return the directions that one of Confluent's levels requires; none for NONE."""
    if rule.startswith("FORWARD"):
        return _FORWARD
    if rule.startswith("FULL"):
        return _BOTH
    return _NEITHER if rule == "NONE" else _BACKWARD


def incompatibilities(before: str, after: str, rule: str) -> list[str]:
    """Return why ``after`` violates ``rule`` (one of Confluent's levels) with respect to ``before``.

    Every reason names the field. An empty list does not prove compatibility.
    """
    old, new = as_record(before), as_record(after)
    if old is None:
        return ["the subject's schema is not a record"]
    if new is None:
        return []
    demanded = directions(rule) or _BACKWARD
    return sorted(one.reason for one in _of_records(old, new) if one.breaks & demanded)


def misread(before: str, after: str) -> list[str]:
    """Return the fields whose values readers of one schema misinterpret in the other, and why.

    Avro's rules, and so a registry's, compare only the types that carry logical types: a decimal of a
    different scale, or days instead of a number, is compatible for them. Decimals of one scale are read
    correctly.
    """
    old, new = as_record(before), as_record(after)
    if old is None or new is None:
        return []
    then = {str(field["name"]): field["type"] for field in old["fields"]}
    return [
        f'field "{field["name"]}" changed from {described(then[field["name"]])} to {described(field["type"])}'
        for field in new["fields"]
        if field["name"] in then and _meaning(then[field["name"]]) != _meaning(field["type"])
    ]


def _meaning(avro: Any) -> list[tuple[str, Any]]:
    """Return the logical types within a type, with a decimal's scale. A UUID is sent as its text."""
    if isinstance(avro, list):
        return [one for branch in avro for one in _meaning(branch)]
    if not isinstance(avro, dict):
        return []
    logical = avro.get("logicalType")
    if logical is not None and logical != "uuid":
        return [(str(logical), avro.get("scale", 0))]
    return _meaning(avro.get("items", avro.get("values", [])))


def as_record(schema: str) -> dict[str, Any] | None:
    """Parse an Avro record's schema; return None for any other: a subject may belong to a different tool."""
    try:
        data = json.loads(schema)
    except (ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) and data.get("type") == "record" else None


def differences(before: str, after: str) -> list[SchemaDifference]:
    """Return the differences between two schemas, in the order of the later one's fields, removed ones last.

    Raises ValueError when one of them is not an Avro record.
    """
    try:
        old, new = json.loads(before), json.loads(after)
        if old["type"] == new["type"] == "record":
            return list(_of_records(old, new))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError("not a record") from error
    raise ValueError("not a record")


def _of_records(old: dict[str, Any], new: dict[str, Any]) -> Iterator[SchemaDifference]:
    if old["name"] != new["name"]:
        reason = f"the record was renamed from {old['name']} to {new['name']}"
        yield SchemaDifference("", "name", str(old["name"]), str(new["name"]), _BOTH, reason)
    yield from _attributes("", old, new, {"type", "name", "fields"})
    then = {str(field["name"]): field for field in old["fields"]}
    now = {str(field["name"]): field for field in new["fields"]}
    for name, field in now.items():
        if name in then:
            yield from _changes(name, then[name], field)
        else:
            breaks = _NEITHER if "default" in field else _BACKWARD
            reason = f'field "{name}" is new and has no default'
            yield SchemaDifference(name, "added", "", described(field["type"]), breaks, reason)
    for name, field in then.items():
        if name not in now:
            breaks = _NEITHER if "default" in field else _FORWARD
            reason = f'field "{name}" was removed and had no default'
            yield SchemaDifference(name, "removed", described(field["type"]), "", breaks, reason)
    if [name for name in then if name in now] != [name for name in now if name in then]:
        reason = "the common fields are in a different order"
        yield SchemaDifference("", "order", "", "", _NEITHER, reason)


def _changes(name: str, then: dict[str, Any], now: dict[str, Any]) -> Iterator[SchemaDifference]:
    was, is_now = then["type"], now["type"]
    if was != is_now:
        backward = _NEITHER if _reads(is_now, was) else _BACKWARD
        forward = _NEITHER if _reads(was, is_now) else _FORWARD
        before, after = described(was), described(is_now)
        reason = f'field "{name}" changed from {before} to {after}'
        if before == after:
            # The description omits the difference, such as null.
            before, after = json.dumps(was), json.dumps(is_now)
        yield SchemaDifference(name, "type", before, after, backward | forward, reason)
    yield from _attributes(name, then, now, {"type", "name"})


def _attributes(
    name: str, then: dict[str, Any], now: dict[str, Any], but: set[str]
) -> Iterator[SchemaDifference]:
    """Yield differences that do not affect compatibility while both have the field: default, pgType, doc …"""
    for key in sorted((then.keys() | now.keys()) - but):
        before, after = (json.dumps(one[key]) if key in one else "" for one in (then, now))
        if before != after:
            reason = f"{key} changed from {before or 'missing'} to {after or 'missing'}"
            yield SchemaDifference(name, key, before, after, _NEITHER, reason)


def described(avro: Any) -> str:
    """Describe an Avro type in a few words, a nullable one without the null."""
    if isinstance(avro, str):
        return avro
    if isinstance(avro, list):
        return " or ".join(described(branch) for branch in avro if branch != "null")
    kind, logical = avro["type"], avro.get("logicalType")
    if kind in ("array", "map"):
        return f"{kind} of {described(avro['items' if kind == 'array' else 'values'])}"
    if logical == "decimal":
        return f"decimal({avro['precision']},{avro.get('scale', 0)})"
    return str(logical or avro.get("name") or kind)


def _reads(reader: Any, writer: Any) -> bool:
    """Return whether a reader of one type accepts every value of a writer's type."""
    if isinstance(writer, list):
        return all(_reads(reader, branch) for branch in writer)
    if isinstance(reader, list):
        return any(_reads(branch, writer) for branch in reader)
    reader, writer = _plain(reader), _plain(writer)
    if isinstance(reader, str) or isinstance(writer, str):
        return bool(reader == writer or writer in _WIDENS.get(str(reader), ()))
    if reader["type"] != writer["type"]:
        return False
    if reader["type"] in ("array", "map"):
        inner = "items" if reader["type"] == "array" else "values"
        return _reads(reader[inner], writer[inner])
    if "decimal" in (reader.get("logicalType"), writer.get("logicalType")):
        return all(reader.get(k) == writer.get(k) for k in ("logicalType", "precision", "scale"))
    return bool(reader == writer)


def _plain(avro: Any) -> Any:
    """Return a simple type's name without its attributes; decimals keep theirs."""
    if (
        isinstance(avro, dict)
        and avro["type"] not in ("array", "map")
        and avro.get("logicalType") != "decimal"
    ):
        return avro["type"]
    return avro
