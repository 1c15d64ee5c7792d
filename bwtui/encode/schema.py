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

from bwtui.encode.names import ESCAPED_FIELD, RecordNames
from bwtui.settings import RelaySettings
from bwtui.types.codec import Codec, Schema


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


@dataclass(frozen=True, slots=True)
class SchemaStyle:
    """What may be chosen of schemas, and changes no byte behind their ids.

    ``namespace`` is that of records which are named after their tables; empty: see `record_names`.
    ``connect_names``: types of values are named as Debezium does for Kafka Connect.
    """

    namespace: str = ""
    connect_names: bool = False

    @classmethod
    def of(cls, settings: RelaySettings) -> "SchemaStyle":
        """Return what a relay's settings choose."""
        return cls(settings.namespace, settings.connect_names)


def key_schema(names: RecordNames, plans: Sequence[FieldPlan]) -> str:
    """Return the key's schema as JSON text. It never has the escape field: no codec of a key escapes."""
    fields = [_field(plan, plan.codec.avro) for plan in plans]
    return _record(names.key, names.namespace, fields, escape=False)


def value_schema(
    names: RecordNames, plans: Sequence[FieldPlan], *, escape: bool, connect_names: bool = False
) -> str:
    """Return the row's schema as JSON text; ``escape`` adds the field of what columns can't hold."""
    fields = []
    for plan in plans:
        avro, name = plan.codec.avro, plan.codec.connect_name
        entry = _field(plan, _connect_named(avro, name) if connect_names and name else avro)
        entry["pgType"] = plan.codec.pg_type
        if plan.name != plan.column:
            entry["pgName"] = plan.column
        fields.append(entry)
    return _record(names.value, names.namespace, fields, escape=escape)


def needs_escape(plans: Sequence[FieldPlan]) -> bool:
    """Say whether a record of these columns has the escape field: one of their values may need it.

    So does a record without columns: Confluent's clients take a message without a byte of Avro for damaged.
    """
    return not plans or any(plan.codec.escapes for plan in plans)


def _field(plan: FieldPlan, avro: Schema) -> dict[str, Any]:
    return {"name": plan.name, "type": ["null", avro], "default": None}


def _connect_named(avro: Schema, name: str) -> Schema:
    """Return the type with what Connect's converters read; of an array, that of its elements."""
    if isinstance(avro, str):
        avro = {"type": avro}
    elif avro["type"] == "array":
        null, element = avro["items"]
        return {**avro, "items": [null, _connect_named(element, name)]}
    return {**avro, "connect.version": 1, "connect.name": name}


def _record(name: str, namespace: str, fields: list[dict[str, Any]], *, escape: bool) -> str:
    if escape:
        texts = {"type": "map", "values": "string"}
        fields = [*fields, {"name": ESCAPED_FIELD, "type": ["null", texts], "default": None}]
    record = {"type": "record", "name": name, "namespace": namespace, "fields": fields}
    return json.dumps(record, separators=(",", ":"), ensure_ascii=True)
