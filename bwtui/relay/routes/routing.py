"""From a relation to its route: topic, registered schemas, and the generated encoder.

A route is built once for every RELATION that differs from the last one of its table. Building queries the
catalog, Kafka and the registry; each of them may be down for a while, and the relay then waits for it. Routes
that are built together share the wait: their topics are created in one request, and their schemas are
registered concurrently.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from bwtui.durable_files import write_atomically
from bwtui.encode.avro import BoundEncoder, TableEncoder, build_encoder
from bwtui.encode.json import JsonEncoder
from bwtui.encode.names import QualifiedName, RecordOwners, colliding_topics, subject_names, topic_name
from bwtui.encode.registry import LocalRegistry, RegisteredSchema, SchemaRegistry
from bwtui.encode.schema import SchemaStyle
from bwtui.errors import BwtuiError, RefusedError, RowError, ServiceRefused
from bwtui.model.status import SchemaEntry
from bwtui.pgoutput.messages import Relation
from bwtui.relay.history.coverage_ledger import Coverage, SentSchemas
from bwtui.relay.routes.route import EncoderRecipe, TableRoute
from bwtui.relay.state.run_state import RunState, TableCounters
from bwtui.relay.state.service_retry import ServiceRetry
from bwtui.settings import RelaySettings
from bwtui.sink.destination import Limits, SinkService, TopicLimits
from bwtui.source import replica_identity
from bwtui.source.catalog import (
    TableFilter,
    TableInfo,
    attributes,
    former_identity,
    former_primary_key,
    load_types,
)
from bwtui.source.connection import holds_any_bytes
from bwtui.types.registry import TypeInfo, is_built_in


@dataclass(slots=True)
class _RouteDraft:
    """A route under construction, and what has been determined so far."""

    relation: Relation
    counters: TableCounters
    with_room: bool
    any_bytes: bool = False
    keys: tuple[str, ...] = ()
    #: True if the table has columns that are not published.
    in_part: bool = False
    types: dict[int, TypeInfo] = field(default_factory=dict)
    limits: TopicLimits | None = None
    encoder: TableEncoder | None = None
    bound: BoundEncoder | JsonEncoder | None = None
    refusal: BwtuiError | None = None

    @property
    def name(self) -> str:
        return self.relation.qualified_name

    @property
    def topic(self) -> str:
        return self.counters.topic


#: From this number on, a list of all subjects costs less than two requests for each.
_SUBJECTS_MANY = 16


class Router:
    """Builds routes; see `bwtui.relay.state.service_retry` for the waiting."""

    def __init__(
        self,
        settings: RelaySettings,
        service: SinkService,
        registry: SchemaRegistry | LocalRegistry,
        report: RunState,
        patience: ServiceRetry,
        catalog_memory: "CatalogCache | None" = None,
        on_topics: Callable[[Limits], None] = lambda limits: None,
        coverage: Coverage | None = None,
    ) -> None:
        """``on_topics`` gets topics and their limits before the first row goes to them."""
        self._on_topics = on_topics
        self._coverage = coverage or Coverage()
        self._catalog_memory = catalog_memory or CatalogCache()
        self._settings = settings
        self._service = service
        self._registry = registry
        self._report = report
        self._patience = patience
        self._filter = TableFilter(settings)
        self._style = SchemaStyle.of(settings)
        self._records = RecordOwners(settings.namespace)
        self._topics: dict[str, str] = {}

    def route(self, relation: Relation, *, with_room: bool = False) -> TableRoute | None:
        """Return the route of ``relation``, or None if its table is filtered out; see `routes`."""
        return self.routes([relation], with_room=with_room)[0]

    def routes(self, relations: Sequence[Relation], *, with_room: bool = False) -> list[TableRoute | None]:
        """Return the routes of ``relations``, of different tables; None if a table is filtered out.

        ``with_room`` gives their schemas room for values that their columns can't hold, regardless of
        --toast. Never raises for an error of a table itself, which is in `TableRoute.refusal`. Raises
        ServiceRefused.
        """
        drafts = [self._draft(relation, with_room) for relation in relations]
        chosen = [draft for draft in drafts if draft is not None]
        for stage in (self._look_up, self._make_topics, self._make_encoders, self._register):
            stage([draft for draft in chosen if draft.refusal is None])
            for draft in chosen:
                if isinstance(draft.refusal, ServiceRefused):
                    raise draft.refusal
        routes = [None if draft is None else self._finish(draft) for draft in drafts]
        self._coverage.record_schemas(
            {
                route.relation.qualified_name: SentSchemas(
                    route.key_columns, route.counters.key_schema_id, route.counters.value_schema_id
                )
                for route in routes
                if route is not None and route.refusal is None
            }
        )
        return routes

    def still_holds(self, route: TableRoute) -> bool:
        """Whether ``route`` is still valid for its relation after a repeated announcement.

        Under REPLICA IDENTITY FULL a RELATION does not identify the key columns, and it never identifies the
        unpublished columns. It contains everything else.
        """
        if route.refusal is not None:
            return False
        draft = _RouteDraft(route.relation, route.counters, with_room=False)
        try:
            keys = self._keys(draft)
        except ServiceRefused:
            raise
        except (RefusedError, RowError):
            # Building the route again reports why.
            return False
        route.in_part = draft.in_part
        return keys == route.key_columns

    # -- the stages of building ----------------------------------------------------------------------------

    def _draft(self, relation: Relation, with_room: bool) -> _RouteDraft | None:
        # Record excluded tables, too: what is written under their names is in no topic.
        self._coverage.sends(relation)
        if not self._filter(relation):
            return None
        counters = self._report.table(relation.qualified_name)
        counters.topic = topic_name(self._settings.topic_prefix, relation.namespace, relation.name)
        return _RouteDraft(relation, counters, with_room or self._settings.toast == "placeholder")

    def _look_up(self, drafts: Sequence[_RouteDraft]) -> None:
        """Query the catalog for what the relations do not contain."""
        for draft in drafts:
            try:
                self._claim(draft.topic, draft.name)
                claim_records(self._records, draft.relation)
                draft.keys = self._keys(draft)
                if not draft.keys and not self._settings.allow_unkeyed:
                    if self._patience.query(partial(attributes, oid=draft.relation.oid)):
                        raise self._unkeyed(draft.relation)
                    text = "the table was dropped, so its key is unknown: its messages have a null key"
                    draft.counters.note(text)
                draft.types = self._types(draft.relation)
            except (RefusedError, RowError) as error:
                draft.refusal = error

    def _make_topics(self, drafts: Sequence[_RouteDraft]) -> None:
        is_keyed = {draft.topic: bool(draft.keys) for draft in drafts}
        if not is_keyed:
            return
        service = self._service
        limits_of = self._patience.call(service.name, lambda: service.ensure_topics(is_keyed))
        service.take_limits(limits_of)
        self._on_topics(limits_of)
        for draft in drafts:
            limits = limits_of[draft.topic]
            draft.refusal = topic_refusal(draft.topic, limits, draft.name, keyed=bool(draft.keys))
            if isinstance(limits, TopicLimits):
                draft.limits = limits

    def _make_encoders(self, drafts: Sequence[_RouteDraft]) -> None:
        for draft in drafts:
            relation, keys = draft.relation, draft.keys
            draft.counters.key_columns = keys
            draft.counters.schema_notes = _notes(relation, keys)
            try:
                if self._settings.output_format == "json":
                    draft.bound = JsonEncoder(relation, keys, draft.types)
                    continue
                draft.any_bytes = self._patience.query(holds_any_bytes)
                encoder = build_encoder(
                    relation, keys, draft.types, draft.any_bytes, draft.with_room, self._style
                )
            except (RefusedError, RowError) as error:
                draft.refusal = error
                continue
            draft.encoder = encoder
            if encoder.text_columns:
                draft.counters.schema_notes += (f"sent as text: {', '.join(encoder.text_columns)}",)

    def _register(self, drafts: Sequence[_RouteDraft]) -> None:
        """Register every key and value schema concurrently."""
        schemas = [
            (draft, part, subject, schema)
            for draft in drafts
            if draft.encoder is not None
            for part, subject, schema in _schemas(draft.topic, draft.encoder)
        ]
        new = self._new_subjects([subject for _, _, subject, _ in schemas])
        calls = [
            partial(self._register_one, subject, schema, subject in new) for *_, subject, schema in schemas
        ]
        ids: dict[tuple[str, str], int] = {}
        results = self._patience.call_all("the schema registry", calls)
        for (draft, part, _, _), answer in zip(schemas, results, strict=True):
            if isinstance(answer, BwtuiError):
                draft.refusal = draft.refusal or answer
            else:
                self._note_schema(draft, part, answer)
                ids[draft.topic, part] = answer.id
        for draft in drafts:
            if draft.encoder is not None and draft.refusal is None:
                key = draft.counters.key_schema_id = ids.get((draft.topic, "key"))
                value = draft.counters.value_schema_id = ids[draft.topic, "value"]
                draft.bound = draft.encoder.bind(key, value)

    def _new_subjects(self, subjects: Sequence[str]) -> set[str]:
        """Return the subjects without a schema so far; skip the query if there are only a few."""
        if len(subjects) < _SUBJECTS_MANY or not isinstance(self._registry, SchemaRegistry):
            return set()
        return set(subjects).difference(self._patience.call("the schema registry", self._registry.subjects))

    def _register_one(self, subject: str, schema: str, is_new: bool) -> RegisteredSchema:
        if isinstance(self._registry, SchemaRegistry):
            if is_new:
                return self._registry.register_new(subject, schema)
            if self._settings.namespace:
                self._registry.refuse_renamed(subject, schema)
        return self._registry.register(subject, schema)

    def _note_schema(self, draft: _RouteDraft, part: str, registered: RegisteredSchema) -> None:
        subject, now = registered.subject, time.time()
        entry = SchemaEntry(
            subject, registered.id, registered.version, draft.name, draft.topic, part, registered.schema, now
        )
        self._report.schema(entry)

    def _finish(self, draft: _RouteDraft) -> TableRoute:
        relation, counters, topic = draft.relation, draft.counters, draft.topic
        if draft.refusal is not None:
            return TableRoute(relation, topic, draft.keys, counters, None, None, draft.refusal)
        route = TableRoute(relation, topic, draft.keys, counters, draft.bound, draft.limits)
        route.in_part = draft.in_part
        route.recipe = EncoderRecipe(draft.types, draft.any_bytes, draft.with_room)
        return route

    def _claim(self, topic: str, name: str) -> None:
        """Assign ``topic`` to table ``name``.

        Raises RefusedError if a different table is in conflict with it.
        """
        refuse_shared(self._settings, topic, name)
        owner = self._topics.get(topic, name)
        if owner != name:
            raise RefusedError(f"tables {owner} and {name} would share topic {topic}", "rename one of them")
        for group in colliding_topics([*self._topics, topic]):
            if topic in group and topic not in self._topics:
                owners = [self._topics.get(member, name) for member in group]
                raise topics_collide(owners, group)
        self._topics[topic] = name

    def _keys(self, draft: _RouteDraft) -> tuple[str, ...]:
        """Return the key columns. Raises RefusedError if they are not all published."""
        relation, oid = draft.relation, draft.relation.oid
        refused = self._catalog_memory.refused_key(oid)
        missing, draft.in_part = self._patience.query(
            lambda c: replica_identity.missing_columns(c, self._settings, relation, refused)
        )
        if missing:
            self._catalog_memory.refuse_key(oid, missing)
            raise self._patience.query(
                lambda c: replica_identity.refusal(c, self._settings, oid, draft.name, missing)
            )
        marked = tuple(column.name for column in relation.columns if column.is_key)
        if relation.replica_identity == "f":
            # Under FULL the RELATION marks every column, so the primary key must come from the catalog.
            now = self._patience.query(partial(attributes, oid=oid))
            key = former_primary_key(relation, now) if now else None
            if key is None:
                # The table was dropped, or its key was renamed beyond recognition, after the rows that follow
                # now.
                former = self._catalog_memory.key(oid)
                return former if set(former) <= {column.name for column in relation.columns} else ()
            marked = key
        elif not marked:
            # Rows that were inserted before the table got its key, perhaps in the transaction that created
            # both.
            now = self._patience.query(partial(attributes, oid=oid))
            if marked := former_identity(relation, now) or ():
                self._coverage.mark(draft.name, "got its key after rows were written")
        self._catalog_memory.remember_key(oid, marked)
        return marked

    def _unkeyed(self, relation: Relation) -> RefusedError:
        return self._patience.query(
            lambda connection: replica_identity.unkeyed_refusal(connection, [relation])
        )

    def _types(self, relation: Relation) -> dict[int, TypeInfo]:
        oids = [c.type_oid for c in relation.columns if not is_built_in(c.type_oid)]
        if not oids:
            return {}
        return self._catalog_memory.types(self._patience.query(partial(load_types, oids=oids)))


def name_topics(settings: RelaySettings, report: RunState, tables: Sequence[TableInfo]) -> None:
    """Report every table before its first row. Raises RefusedError for topics that can't be distinguished."""
    topics, records = {}, RecordOwners(settings.namespace)
    for table in tables:
        claim_records(records, table)
        counters = report.table(table.qualified_name)
        counters.topic = topic_name(settings.topic_prefix, table.namespace, table.name)
        refuse_shared(settings, counters.topic, table.qualified_name)
        topics[counters.topic] = table.qualified_name
    for group in colliding_topics(topics):
        raise topics_collide([topics[topic] for topic in group], group)


def topic_refusal(
    topic: str, limits: TopicLimits | RefusedError, table: str, *, keyed: bool
) -> RefusedError | None:
    """Return the error if rows of ``table`` can't be sent to ``topic``, whose limits were read."""
    if isinstance(limits, RefusedError):
        return limits
    if keyed or not limits.compacted:
        return None
    return RefusedError(
        f"topic {topic} is compacted, but {table} has no key",
        f"set cleanup.policy=delete on topic {topic}, or give the table a primary key",
    )


def refuse_shared(settings: RelaySettings, topic: str, table: str) -> None:
    """Raise RefusedError if messages of an option would go into ``topic``, among the rows of ``table``."""
    for option, chosen in settings.side_topics.items():
        if chosen == topic:
            raise RefusedError(
                f"--{option} {topic} is the topic of table {table}", "choose a topic that no table uses"
            )


def topics_collide(tables: Sequence[str], topics: Sequence[str]) -> RefusedError:
    """Return the error for tables whose topics can't coexist in Kafka."""
    return RefusedError(
        f"Kafka does not allow topics {' and '.join(topics)} in one cluster, for tables "
        f"{' and '.join(tables)}",
        "exclude one with --exclude-table, and relay it with a separate slot and --topic-prefix",
    )


def claim_records(records: RecordOwners, table: QualifiedName) -> None:
    """Assign the record names of a table. Raises RefusedError if a different table has one of them."""
    taken = records.claim(table)
    if taken is not None:
        owner, name = taken
        raise RefusedError(
            f"tables {owner} and {table.namespace}.{table.name} would share the record name {name}, "
            "ignoring case",
            "exclude one with --exclude-table, and relay it with a separate slot and --namespace",
        )


def _schemas(topic: str, encoder: TableEncoder) -> list[tuple[str, str, str]]:
    """Return part, subject and schema of everything to register."""
    key, value = subject_names(topic)
    keys = [] if encoder.key_schema is None else [("key", key, encoder.key_schema)]
    return [*keys, ("value", value, encoder.value_schema)]


def _notes(relation: Relation, keys: tuple[str, ...]) -> tuple[str, ...]:
    """Return what users should know about a table with this schema."""
    if keys:
        return ()
    order = "unkeyed: messages have a null key and no guaranteed order"
    if relation.replica_identity == "f":
        return (order,)
    return order, "unkeyed: updates and deletes are not captured (REPLICA IDENTITY FULL captures updates)"


class CatalogCache:
    """Types by oid and, by the table's oid, its key columns and those that a publication once left out.

    The replication stream identifies a column's type by its number alone, and under REPLICA IDENTITY FULL it
    does not identify the key. PostgreSQL's catalog describes the present: a domain or a table that was
    dropped since is no longer in it. So the relay keeps earlier answers in its state folder, across restarts.
    """

    def __init__(self, path: Path | None = None, system_identifier: str = "", database: str = "") -> None:
        """Open the file, ignoring one of a different server or database. Without a path nothing is stored."""
        self._path = path
        self._identity = [system_identifier, database]
        self._types: dict[int, TypeInfo] = {}
        self._keys: dict[int, tuple[str, ...]] = {}
        self._refused: dict[int, tuple[str, ...]] = {}
        if path is not None:
            self._load(path)

    def types(self, present: Mapping[int, TypeInfo]) -> dict[int, TypeInfo]:
        """Store the ``present`` types, and return all types ever seen; the present ones take precedence."""
        merged = self._types | dict(present)
        if merged != self._types:
            self._types = merged
            self._write()
        return merged

    def key(self, oid: int) -> tuple[str, ...]:
        """Return the key columns that the table had when it was last seen; none if it was never seen."""
        return self._keys.get(oid, ())

    def remember_key(self, oid: int, columns: tuple[str, ...]) -> None:
        """Store a table's key columns."""
        if self._keys.get(oid) != columns:
            self._keys[oid] = columns
            self._write()

    def refused_key(self, oid: int) -> tuple[str, ...]:
        """Return the key columns whose absence made the relay refuse rows of the table; usually none."""
        return self._refused.get(oid, ())

    def refuse_key(self, oid: int, missing: tuple[str, ...]) -> None:
        """Store that rows lacked these columns: the catalog may not show a trace of it any more."""
        if self._refused.get(oid) != missing:
            self._refused[oid] = missing
            self._write()

    def _load(self, path: Path) -> None:
        try:
            data: dict[str, Any] = json.loads(path.read_text())
            if data["identity"] == self._identity:
                self._types = {row[0]: TypeInfo(*row) for row in data["types"]}
                self._keys = {int(oid): tuple(columns) for oid, columns in data["keys"].items()}
                refused = data.get("refused", {})
                self._refused = {int(oid): tuple(columns) for oid, columns in refused.items()}
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            # The cache is optional: the catalog is queried again for whatever is lost here.
            self._types, self._keys, self._refused = {}, {}, {}

    def _write(self) -> None:
        if self._path is None:
            return
        types = [astuple(info) for info in self._types.values()]
        tables = {"keys": self._keys, "refused": self._refused}
        text = json.dumps({"identity": self._identity, "types": types, **tables})
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomically(self._path, text)
        except OSError:
            # The slot checkpoint is in the same folder, and its own error ends the relay with a clear
            # message.
            return
