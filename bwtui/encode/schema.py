"""Avro schemas of a table: one for its key, one for its row (Avro specification, "Schema Declaration").

Every column is ``["null", T]`` with default null, so that adding and dropping columns stays compatible in
both directions. The key's schema has only names and types: its id is part of every key's bytes, and a new id
would move the keys to other partitions. The value's schema also has the PostgreSQL type, and the column's
name if that differs from the Avro name.
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
    """The encoding of a column: its index in the row, its names, its codec.

    ``variables`` is a prefix of its variables in generated code, for columns that the key encodes
    differently.
    """

    index: int
    column: str
    name: str
    codec: Codec
    variables: str = ""


@dataclass(frozen=True, slots=True)
class SchemaStyle:
    """The user's choices about schemas, which do not affect the encoded rows.

    ``namespace`` is for records that are named after their tables; empty otherwise (see `record_names`). With
    ``connect_names`` the types of values have Debezium's names for Kafka Connect.
    """

    namespace: str = ""
    connect_names: bool = False

    @classmethod
    def of(cls, settings: RelaySettings) -> "SchemaStyle":
        """Return the choices in a relay's settings."""
        return cls(settings.namespace, settings.connect_names)


def key_schema(names: RecordNames, plans: Sequence[FieldPlan]) -> str:
    """Return the key's schema as JSON text. It never has the escape field: no key codec escapes."""
    fields = [_field(plan, plan.codec.avro) for plan in plans]
    return _record(names.key, names.namespace, fields, escape=False)


def value_schema(
    names: RecordNames, plans: Sequence[FieldPlan], *, escape: bool, connect_names: bool = False
) -> str:
    """Return the row's schema as JSON text; ``escape`` adds the field for values that columns can't hold."""
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
    """Return whether a record of these columns has the escape field, because one of their values may need it.

    A record without columns has it too: Confluent's clients treat a message without any Avro byte as damaged.
    """
    return not plans or any(plan.codec.escapes for plan in plans)


def _field(plan: FieldPlan, avro: Schema) -> dict[str, Any]:
    return {"name": plan.name, "type": ["null", avro], "default": None}


def _connect_named(avro: Schema, name: str) -> Schema:
    """Return the type with the attributes for Connect's converters; for an array, on its elements."""
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
