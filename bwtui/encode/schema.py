"""Avro schemas of a table: one for its key, one for its row (Avro specification, "Schema Declaration").

Every column is ``["null", T]`` with default null, so that adding and dropping columns stays compatible both
ways. The key's schema holds nothing but names and types: its id is part of every key's bytes, and a new id
would move the keys to other partitions. The value's schema also says the PostgreSQL type, and the column's
name where Avro's is another.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bwtui.encode.names import ESCAPED_FIELD, avro_name
from bwtui.types.codec import Codec


@dataclass(frozen=True, slots=True)
class FieldPlan:
    """A column on its way: its place in the row, its names, its codec.

    ``variables`` marks its variables in generated code, where the key encodes the column in another way.
    """

    index: int
    column: str
    name: str
    codec: Codec
    variables: str = ""


def record_namespace(namespace: str, table: str) -> str:
    """Return the Avro namespace of a table's two records, which are called Key and Value."""
    return f"{avro_name(namespace)}.{avro_name(table)}"


def key_schema(namespace: str, plans: Sequence[FieldPlan]) -> str:
    """Return the key's schema as JSON text. It never has the escape field: no codec of a key escapes."""
    return _record("Key", namespace, [_field(plan) for plan in plans], escape=False)


def value_schema(namespace: str, plans: Sequence[FieldPlan], *, escape: bool) -> str:
    """Return the row's schema as JSON text; ``escape`` adds the field of what columns can't hold."""
    fields = []
    for plan in plans:
        entry = _field(plan) | {"pgType": plan.codec.pg_type}
        if plan.name != plan.column:
            entry["pgName"] = plan.column
        fields.append(entry)
    return _record("Value", namespace, fields, escape=escape)


def needs_escape(plans: Sequence[FieldPlan]) -> bool:
    """Say whether a record of these columns has the escape field: one of their values may need it.

    So does a record without columns: Confluent's clients take a message without a byte of Avro for damaged.
    """
    return not plans or any(plan.codec.escapes for plan in plans)


def _field(plan: FieldPlan) -> dict[str, Any]:
    return {"name": plan.name, "type": ["null", plan.codec.avro], "default": None}


def _record(name: str, namespace: str, fields: list[dict[str, Any]], *, escape: bool) -> str:
    if escape:
        texts = {"type": "map", "values": "string"}
        fields = [*fields, {"name": ESCAPED_FIELD, "type": ["null", texts], "default": None}]
    record = {"type": "record", "name": name, "namespace": namespace, "fields": fields}
    return json.dumps(record, separators=(",", ":"), ensure_ascii=True)
