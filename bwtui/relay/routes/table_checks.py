"""Check schemas and topics of every table before a relay does, without registering or creating anything."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg2

from bwtui.encode.avro import TableEncoder, build_encoder
from bwtui.encode.names import RecordOwners, colliding_topics, subject_names, topic_name
from bwtui.encode.registry import SchemaCheck, SchemaRefused, SchemaRegistry
from bwtui.encode.schema import SchemaStyle
from bwtui.errors import BwtuiError, RefusedError
from bwtui.pgoutput.messages import Relation
from bwtui.relay.routes.routing import (
    claim_records,
    name_topics,
    refuse_shared,
    topic_refusal,
    topics_collide,
)
from bwtui.relay.state.run_state import RunState
from bwtui.settings import RelaySettings
from bwtui.sink.destination import kind_of
from bwtui.source import publication, replica_identity
from bwtui.source.catalog import (
    TableFilter,
    TableInfo,
    attributes,
    former_primary_key,
    list_tables,
    load_relation,
    load_types,
)
from bwtui.source.connection import Connection, holds_any_bytes, statement_failed
from bwtui.source.ddl import after_script
from bwtui.source.preflight import selected_tables


@dataclass(slots=True)
class TableCheck:
    """One table: its topic, and the registry's verdict on its schemas or an earlier refusal."""

    table: str
    topic: str
    encoder: TableEncoder | None = None
    refusal: BwtuiError | None = None
    #: Keyed by "key" and "value"; an unkeyed table has no "key".
    parts: dict[str, SchemaCheck] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """True if the relay could continue."""
        return self.refusal is None and all(part.state != "incompatible" for part in self.parts.values())

    def to_json(self) -> dict[str, Any]:
        """Return the object of ``--json``."""
        parts: dict[str, Any] = dict.fromkeys(("key", "value"))
        for name, part in self.parts.items():
            parts[name] = {
                "subject": part.subject,
                "result": part.state,
                "rule": part.rule,
                "reasons": list(part.reasons),
            }
        error = self.refusal.message if self.refusal else None
        return {"topic": self.topic, "ok": self.ok, **parts, "error": error}


def check_schemas(settings: RelaySettings, registry: SchemaRegistry, script: str = "") -> list[TableCheck]:
    """Return the registry's verdict on every table that the relay of ``settings`` carries.

    With a ``script``, check the tables as they would be after it, with the tables that it creates, which are
    not published yet. The script is rolled back before the registry is queried, so that its locks are held
    only while the catalog is read. Raises ConnectionFailed or RefusedError.
    """
    registry.check()
    try:
        with after_script(settings.postgres, "") as connection:
            before = {table.oid for table in list_tables(connection)}
        with after_script(settings.postgres, script) as connection:
            created = [table for table in list_tables(connection) if table.oid not in before]
            checks = _tables(connection, settings, created)
    except psycopg2.Error as error:
        raise statement_failed(error) from error
    for check in checks:
        if check.encoder is not None:
            _ask(registry, check, check.encoder, is_named=bool(settings.namespace))
    return checks


def _tables(
    connection: Connection, settings: RelaySettings, created: Sequence[TableInfo]
) -> list[TableCheck]:
    names = publication.existing(connection, settings.publication_name)
    published = publication.published_tables(connection, names) if names else []
    columns = {(table.namespace, table.name): table.columns for table in published}
    checks, records = [], RecordOwners(settings.namespace)
    carried = selected_tables(connection, settings)
    chosen = TableFilter(settings)
    joining = [table for table in created if table not in carried and chosen(table)]
    for table in (*carried, *joining):
        topic = topic_name(settings.topic_prefix, table.namespace, table.name)
        check = TableCheck(table.qualified_name, topic)
        relation = load_relation(connection, table, columns.get((table.namespace, table.name)))
        try:
            refuse_shared(settings, topic, table.qualified_name)
            claim_records(records, table)
            check.encoder = _encoder(connection, settings, relation)
        except BwtuiError as error:
            check.refusal = error
        checks.append(check)
    _refuse_collisions(checks)
    return checks


def _encoder(connection: Connection, settings: RelaySettings, relation: Relation) -> TableEncoder:
    """Return the encoder that the relay would build for the table.

    Raises BwtuiError if it would refuse it.
    """
    missing, _ = replica_identity.missing_columns(connection, settings, relation, ())
    if missing:
        raise replica_identity.refusal(connection, settings, relation.oid, relation.qualified_name, missing)
    keys: Sequence[str] | None = [column.name for column in relation.columns if column.is_key]
    if relation.replica_identity == "f":
        keys = former_primary_key(relation, attributes(connection, relation.oid))
    if not keys and not settings.allow_unkeyed:
        raise replica_identity.unkeyed_refusal(connection, [relation])
    types = load_types(connection, [column.type_oid for column in relation.columns])
    any_bytes, placeholders = holds_any_bytes(connection), settings.toast == "placeholder"
    style = SchemaStyle.of(settings)
    return build_encoder(relation, tuple(keys or ()), types, any_bytes, placeholders, style)


def _refuse_collisions(checks: Sequence[TableCheck]) -> None:
    by_topic = {check.topic: check for check in checks}
    for group in colliding_topics(by_topic):
        for topic in group:
            by_topic[topic].refusal = topics_collide([by_topic[member].table for member in group], group)


def _ask(registry: SchemaRegistry, check: TableCheck, encoder: TableEncoder, *, is_named: bool) -> None:
    key, value = subject_names(check.topic)
    schemas = {"value": (value, encoder.value_schema)}
    if encoder.key_schema is not None:
        schemas = {"key": (key, encoder.key_schema), **schemas}
    for part, (subject, schema) in schemas.items():
        try:
            if is_named:
                registry.refuse_renamed(subject, schema)
        except SchemaRefused as error:
            check.refusal = error
        else:
            check.parts[part] = registry.verdict(subject, schema)


def topic_refusals(
    connection: Connection, settings: RelaySettings, tables: Sequence[TableInfo]
) -> list[RefusedError]:
    """Return the errors of tables that can't use their existing topics; a relay creates missing topics.

    Raises RefusedError for topics that can't be distinguished, and ConnectionFailed.
    """
    report = RunState()
    name_topics(settings, report, tables)
    topics = {report.table(table.qualified_name).topic: table for table in tables}
    limits = kind_of(settings).present_limits(settings, list(topics))
    refusals = [
        topic_refusal(topic, limits[topic], table.qualified_name, keyed=_is_keyed(connection, table))
        for topic, table in topics.items()
        if topic in limits
    ]
    return [refusal for refusal in refusals if refusal is not None]


def _is_keyed(connection: Connection, table: TableInfo) -> bool:
    """Return whether the table's messages have a key, as those of a root do whose leaves lack an identity."""
    return table.has_key or any(one.in_identity for one in attributes(connection, table.oid))
