"""How two Avro schemas of one table differ, in words: a registry says only that they are incompatible.

What counts as reading is "Schema Resolution" of the Avro specification, as far as our schemas use it.
"""

import json
from typing import Any

# Reader's type by the types of a writer that it takes beside its own.
_WIDENS = {
    "long": ("int",),
    "float": ("int", "long"),
    "double": ("int", "long", "float"),
    "string": ("bytes",),
    "bytes": ("string",),
}


def incompatibilities(before: str, after: str, rule: str) -> list[str]:
    """Return what makes ``after`` break ``rule`` (a level of Confluent's) towards ``before``.

    Every reason names the field. Empty when no reason is found, which is no proof of compatibility.
    """
    old, new = json.loads(before), json.loads(after)
    if old.get("type") != "record" or new.get("type") != "record":
        return ["the subject holds something else than a record"] if old.get("type") != "record" else []
    backward, forward = not rule.startswith("FORWARD"), rule.startswith(("FORWARD", "FULL"))
    reasons = []
    if old["name"] != new["name"]:
        reasons.append(f"the record is called {new['name']}, and was {old['name']}")
    then = {field["name"]: field for field in old["fields"]}
    now = {field["name"]: field for field in new["fields"]}
    for name in then.keys() & now.keys():
        was, is_now = then[name]["type"], now[name]["type"]
        if (backward and not _reads(is_now, was)) or (forward and not _reads(was, is_now)):
            reasons.append(f'field "{name}" was {described(was)} and is {described(is_now)}')
    if backward:
        added = (name for name in now if name not in then and "default" not in now[name])
        reasons += [f'field "{name}" is new and has no default' for name in added]
    if forward:
        gone = (name for name in then if name not in now and "default" not in then[name])
        reasons += [f'field "{name}" is gone and had no default' for name in gone]
    return sorted(reasons)


def described(avro: Any) -> str:
    """Return an Avro type in a few words: a nullable one by its type alone."""
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
    """Say whether a reader of one type takes every value of a writer's."""
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
    """Return the name of a type that is one, whatever attributes it has; decimals are told apart by them."""
    if (
        isinstance(avro, dict)
        and avro["type"] not in ("array", "map")
        and avro.get("logicalType") != "decimal"
    ):
        return avro["type"]
    return avro
