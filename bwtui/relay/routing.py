"""From a relation to its route: topic, registered schemas, and the generated encoder.

A route is built once for every RELATION that differs from the last one of its table. Building asks the
catalog, Kafka and the registry; each of them may be down for a while, and is then waited for.
"""

import time
from collections.abc import Callable, Sequence
from typing import NoReturn, TypeVar

import psycopg2

from bwtui.encode.avro import BoundEncoder, TableEncoder, build_encoder
from bwtui.encode.json import JsonEncoder
from bwtui.encode.local_registry import LocalRegistry
from bwtui.encode.names import colliding_topics, subject_names, topic_name
from bwtui.encode.registry import RegisteredSchema, SchemaRegistry
from bwtui.errors import BwtuiError, ConnectionFailed, RefusedError
from bwtui.pgoutput.messages import Field, Relation
from bwtui.pgoutput.tuples import splitter
from bwtui.relay.catalog_memory import CatalogMemory
from bwtui.relay.report import Report, TableCounters
from bwtui.relay.status import SchemaEntry
from bwtui.settings import RelaySettings
from bwtui.sink.base import MessageTuple, Sink, TopicLimits
from bwtui.source.catalog import TableFilter, load_types
from bwtui.source.connection import Connection, connect, execute, holds_any_bytes
from bwtui.source.history import attributes, primary_key_then
from bwtui.types.registry import TypeInfo, is_built_in

_WAIT_FIRST, _WAIT_LAST = 0.2, 5.0

T = TypeVar("T")


class Route:
    """Where the rows of one table go, as long as its schema stays the same.

    ``refusal`` is set when the table as a whole can't be relayed; every row of it then fails with it.
    """

    __slots__ = (
        "both",
        "both_filled",
        "bytes",
        "column_names",
        "counters",
        "key",
        "key_columns",
        "key_indexes",
        "key_schema_id",
        "max_message_bytes",
        "messages",
        "positions",
        "refusal",
        "relation",
        "split",
        "topic",
        "value_schema_id",
    )
    key: Callable[[Sequence[Field]], bytes | None]
    both: Callable[[Sequence[Field]], tuple[bytes | None, bytes]]
    both_filled: Callable[[Sequence[Field]], tuple[bytes | None, bytes]]

    def __init__(
        self,
        relation: Relation,
        topic: str,
        keys: tuple[str, ...],
        counters: TableCounters,
        bound: BoundEncoder | JsonEncoder | None,
        limits: TopicLimits | None,
        refusal: BwtuiError | None = None,
    ) -> None:
        self.relation = relation
        self.topic = topic
        self.key_columns = keys
        self.counters = counters
        self.key_schema_id = counters.key_schema_id
        self.value_schema_id = counters.value_schema_id
        self.refusal = refusal
        self.max_message_bytes = limits.max_message_bytes if limits else 0
        #: Messages of the batch that is being filled, and their bytes.
        self.messages: list[MessageTuple] = []
        self.bytes = 0
        #: While recording, which of the batch's frames each message was made of.
        self.positions: list[int] = []
        #: Where the key's columns stand in a row.
        self.key_indexes = [i for i, column in enumerate(relation.columns) if column.name in keys]
        self.column_names = [column.name for column in relation.columns]
        self.split = splitter(len(relation.columns))
        if bound is not None:
            self.key, self.both, self.both_filled = bound.key, bound.both, bound.both_filled
        else:
            self.key = self.both = self.both_filled = self._refused

    def _refused(self, fields: Sequence[Field]) -> NoReturn:
        assert self.refusal is not None
        raise self.refusal


class Router:
    """Builds routes, and waits for services that are down."""

    def __init__(
        self,
        settings: RelaySettings,
        sink: Sink,
        registry: SchemaRegistry | LocalRegistry,
        report: Report,
        pulse: Callable[[float], None],
        catalog_memory: CatalogMemory | None = None,
    ) -> None:
        """``pulse(seconds)`` waits that long, keeps the stream alive, and raises to stop the relay."""
        self._catalog_memory = catalog_memory or CatalogMemory()
        self._settings = settings
        self._sink = sink
        self._registry = registry
        self._report = report
        self._pulse = pulse
        self._filter = TableFilter(settings)
        self._topics: dict[str, str] = {}
        self._routes: dict[str, Route] = {}
        self._catalog: Connection | None = None

    def route(self, relation: Relation, *, placeholders: bool = False) -> Route | None:
        """Return the route of ``relation``, or None when its table is filtered out.

        ``placeholders``: its schema shall have room for them, whatever --toast says. Never raises for what is
        wrong with the table itself: that stands in `Route.refusal`.
        """
        if not self._filter(relation.namespace, relation.name):
            return None
        counters = self._report.table(relation.qualified_name)
        try:
            return self._build(relation, counters, placeholders or self._settings.toast == "placeholder")
        except ConnectionFailed:
            raise
        except BwtuiError as error:
            return Route(relation, counters.topic, (), counters, None, None, error)

    def close(self) -> None:
        """Close the connection to the catalog."""
        if self._catalog is not None:
            self._catalog.close()
            self._catalog = None

    def patiently(self, what: str, action: Callable[[], T]) -> T:
        """Run ``action`` until it does not raise ConnectionFailed, telling what is waited for."""
        pause = _WAIT_FIRST
        before = self._report.detail
        while True:
            try:
                result = action()
            except ConnectionFailed as error:
                self._report.detail = f"waiting for {what}: {error.message}"
                self._report.error("outage", error)
            else:
                self._report.detail = before
                return result
            until = time.monotonic() + pause
            while (left := until - time.monotonic()) > 0:
                self._pulse(min(left, 0.5))
            pause = min(pause * 2, _WAIT_LAST)

    def _build(self, relation: Relation, counters: TableCounters, placeholders: bool) -> Route:
        settings = self._settings
        name = relation.qualified_name
        topic = topic_name(settings.topic_prefix, relation.namespace, relation.name)
        counters.topic = topic
        self._claim(topic, name)
        keys = self.patiently("PostgreSQL", lambda: self._keys(relation))
        if not keys and not settings.allow_unkeyed:
            if self.patiently("PostgreSQL", lambda: self.ask(lambda c: attributes(c, relation.oid))):
                raise unkeyed_refusal(name)
            counters.note("the table is gone, and its key with it: its messages have a null key")
        types = self.patiently("PostgreSQL", lambda: self._types(relation))
        limits = self.patiently("Kafka", lambda: self._sink.ensure_topic(topic, keyed=bool(keys)))
        if limits.compacted and not keys:
            raise RefusedError(
                f"topic {topic} is compacted, but {name} has no key",
                f"set cleanup.policy=delete on topic {topic}, or give the table a primary key",
            )
        counters.key_columns = keys
        counters.schema_notes = _notes(relation, keys)
        if settings.output_format == "json":
            bound: BoundEncoder | JsonEncoder = JsonEncoder(relation, keys, types)
        else:
            bound = self._bind_avro(relation, keys, topic, types, counters, placeholders)
        route = Route(relation, topic, keys, counters, bound, limits)
        before = self._routes.get(topic)
        if before is not None and (before.key_columns, before.key_schema_id) != (
            keys,
            counters.key_schema_id,
        ):
            counters.note("the key changed: rows from before stand in the topic under their old keys")
        self._routes[topic] = route
        return route

    def _claim(self, topic: str, name: str) -> None:
        """Give ``topic`` to table ``name``. Raises RefusedError when another table stands in the way."""
        owner = self._topics.get(topic, name)
        if owner != name:
            raise RefusedError(f"tables {owner} and {name} would share topic {topic}", "rename one of them")
        for group in colliding_topics([*self._topics, topic]):
            if topic in group and topic not in self._topics:
                owners = [self._topics.get(member, name) for member in group]
                raise topics_collide(owners, group)
        self._topics[topic] = name

    def known(self, topic: str) -> Route:
        """Return the newest route into ``topic``. Raises KeyError."""
        return self._routes[topic]

    def _bind_avro(
        self,
        relation: Relation,
        keys: tuple[str, ...],
        topic: str,
        types: dict[int, TypeInfo],
        counters: TableCounters,
        placeholders: bool,
    ) -> BoundEncoder:
        any_bytes = self.patiently("PostgreSQL", lambda: self.ask(holds_any_bytes))
        encoder = build_encoder(relation, keys, topic, types, any_bytes, placeholders)
        if encoder.text_columns:
            counters.schema_notes += (f"sent as text: {', '.join(encoder.text_columns)}",)
        return self._register(encoder, relation.qualified_name, counters)

    def _register(self, encoder: TableEncoder, table: str, counters: TableCounters) -> BoundEncoder:
        key_subject, value_subject = subject_names(encoder.topic)
        key = None
        if encoder.key_schema is not None:
            key = self._registered(table, encoder.topic, "key", key_subject, encoder.key_schema)
        value = self._registered(table, encoder.topic, "value", value_subject, encoder.value_schema)
        counters.key_schema_id = key.id if key else None
        counters.value_schema_id = value.id
        return encoder.bind(key.id if key else None, value.id)

    def _registered(self, table: str, topic: str, part: str, subject: str, schema: str) -> RegisteredSchema:
        found = self.patiently("the schema registry", lambda: self._registry.register(subject, schema))
        entry = SchemaEntry(subject, found.id, found.version, table, topic, part, schema, time.time())
        self._report.schemas = {**self._report.schemas, (subject, found.id): entry}
        return found

    def _keys(self, relation: Relation) -> tuple[str, ...]:
        marked = tuple(column.name for column in relation.columns if column.is_key)
        if relation.replica_identity == "f":
            # Under FULL the RELATION marks every column, so the primary key must come from the catalog.
            now = self.ask(lambda connection: attributes(connection, relation.oid))
            key = primary_key_then(relation, now) if now else None
            if key is None:
                # The table is gone or its key was renamed beyond recognition, after the rows that come now.
                known = self._catalog_memory.key(relation.oid)
                return known if set(known) <= {column.name for column in relation.columns} else ()
            marked = key
        self._catalog_memory.remember_key(relation.oid, marked)
        return marked

    def _types(self, relation: Relation) -> dict[int, TypeInfo]:
        oids = [c.type_oid for c in relation.columns if not is_built_in(c.type_oid)]
        if not oids:
            return {}
        return self._catalog_memory.types(self.ask(lambda connection: load_types(connection, oids)))

    def ask(self, question: Callable[[Connection], T]) -> T:
        """Ask PostgreSQL over a session that is kept, and made again after a failure.

        Raises ConnectionFailed, which is worth another try, or RefusedError.
        """
        try:
            if self._catalog is None:
                self._catalog = connect(self._settings.postgres)
                # A policy that hides rows must make a question fail: a row not found counts as deleted.
                execute(self._catalog, "set row_security = off")
                # Behind somebody's lock the question is asked again, and the stream kept alive in between.
                execute(self._catalog, "set lock_timeout = '2s'")
            return question(self._catalog)
        except (psycopg2.OperationalError, psycopg2.InterfaceError) as error:
            self.close()
            reason = " ".join(str(error).split())
            raise ConnectionFailed(f"PostgreSQL does not answer: {reason}") from error
        except psycopg2.DataError as error:
            # Its words may quote a row's value.
            raise RefusedError(f"PostgreSQL refuses a value of the row (SQLSTATE {error.pgcode})") from None
        except psycopg2.Error as error:
            raise RefusedError(f"PostgreSQL: {error.diag.message_primary}") from error


def topics_collide(tables: Sequence[str], topics: Sequence[str]) -> RefusedError:
    """Return the refusal of tables whose topics Kafka does not take side by side."""
    return RefusedError(
        f"Kafka can't hold topics {' and '.join(topics)} side by side, for tables {' and '.join(tables)}",
        "leave one out with --exclude-table, and relay it with a slot and a --topic-prefix of its own",
    )


def unkeyed_refusal(table: str) -> RefusedError:
    """Return the refusal of a table without a key."""
    return RefusedError(
        f"table {table} has no primary key and no replica identity index",
        f"add a primary key, leave out with --exclude-table '{table}', or allow with -u",
    )


def _notes(relation: Relation, keys: tuple[str, ...]) -> tuple[str, ...]:
    """Return what people should know of a table with this schema."""
    if keys:
        return ()
    order = "unkeyed: messages have a null key, and keep no order"
    if relation.replica_identity == "f":
        return (order,)
    return order, "unkeyed: updates and deletes are not captured (REPLICA IDENTITY FULL captures them)"
