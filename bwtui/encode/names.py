"""Names that Avro and Kafka accept for any identifier that PostgreSQL accepts; no two identifiers share one.

A character that the target does not allow becomes ``_x``, its code point in hexadecimal, ``_``: ``größe``
becomes ``gr_xf6__xdf_e``. An underscore that would begin such a sequence by coincidence, because ``x`` and a
hexadecimal digit follow it, is escaped itself (``is_xact`` becomes ``is_x5f_xact``). So every name has a
unique meaning.

A sequence ``_x`` + digit that is not such an escape is never produced, so bwtui's own names can't collide
either.
"""

import re
from collections import defaultdict
from collections.abc import Iterable
from hashlib import sha256
from typing import NamedTuple, Protocol

from bwtui.errors import UsageError

# The additional field of a record for the text of values that a column's type can't hold.
ESCAPED_FIELD = "__escaped"

# The key in that field under which --toast placeholder lists columns that were not sent. It contains a space,
# as no Avro name does, so it can't be a column's.
UNCHANGED_KEY = "unchanged TOAST"

# Kafka's limit (org.apache.kafka.common.internals.Topic, MAX_NAME_LENGTH).
MAX_TOPIC = 249

_NOT_AVRO = re.compile(r"[^A-Za-z0-9_]|_(?=x[0-9a-f])")
_NOT_TOPIC_PART = re.compile(r"[^A-Za-z0-9_-]|_(?=x[0-9a-f])")
_BETWEEN_WORDS = re.compile(r"[_ .-]+")
_TOPIC = re.compile(r"[A-Za-z0-9._-]*")

# Never the beginning of an escape, because no code point is written with a leading zero or without the
# trailing underscore.
_HASH_MARK = "_x0"
_HASH_DIGITS = 40


def _escape(match: re.Match[str]) -> str:
    return f"_x{ord(match[0]):x}_"


def _escape_first(name: str) -> str:
    return f"_x{ord(name[0]):x}_{name[1:]}"


def avro_name(identifier: str) -> str:
    """Return a legal Avro name for a non-empty identifier, unchanged if it is legal."""
    name = _NOT_AVRO.sub(_escape, identifier)
    if name[0].isdigit() or name == ESCAPED_FIELD:
        return _escape_first(name)
    return name


class RecordNames(NamedTuple):
    """The names of a table's two Avro records."""

    namespace: str
    value: str
    key: str


class QualifiedName(Protocol):
    """A table or relation."""

    @property
    def namespace(self) -> str:
        """The schema's name."""

    @property
    def name(self) -> str:
        """The table's own name."""


def record_names(table: QualifiedName, namespace: str = "") -> RecordNames:
    """Return the names of a table's records: ``Key`` and ``Value`` in the table's own namespace.

    With a ``namespace`` they are named after the table: ``order_items`` becomes ``OrderItems``. Tables of
    schemas other than ``public`` use a sub-namespace with the schema's name. Different tables may then have
    the same name (see `RecordOwners`).
    """
    if not namespace:
        return RecordNames(f"{avro_name(table.namespace)}.{avro_name(table.name)}", "Value", "Key")
    if table.namespace != "public":
        namespace = f"{namespace}.{avro_name(table.namespace)}"
    words = [word for word in _BETWEEN_WORDS.split(table.name) if word] or [table.name]
    record = avro_name("".join(word[0].upper() + word[1:] for word in words))
    return RecordNames(namespace, record, f"{record}Key")


class RecordOwners:
    """The table that owns each record name, in a namespace that tables share.

    Names are compared case-insensitively: a class is a file, and some file systems do not distinguish ``Ab``
    and ``AB``, nor do code generators for Go.
    """

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._owners: dict[str, str] = {}

    def claim(self, table: QualifiedName) -> tuple[str, str] | None:
        """Assign a table its names, or return the table that has one of them, and that name."""
        if not self._namespace:
            return None
        names, taker = record_names(table, self._namespace), f"{table.namespace}.{table.name}"
        full_names = [f"{names.namespace}.{record}" for record in (names.value, names.key)]
        for full in full_names:
            owner = self._owners.get(full.lower(), taker)
            if owner != taker:
                return owner, full
        self._owners.update({full.lower(): taker for full in full_names})
        return None


def topic_name(prefix: str, namespace: str, table: str) -> str:
    """Return ``[prefix.][schema.]table``, without the schema ``public``; at most 249 characters.

    The dot is a separator, so it is escaped in identifiers. A name that would be too long keeps its beginning
    and ends with a hash. Raises UsageError for a prefix that Kafka does not accept.
    """
    if not _TOPIC.fullmatch(prefix) or len(prefix) > 100:
        raise UsageError(
            f"the topic prefix {prefix!r} is not valid in Kafka",
            "use at most 100 letters, digits, dots, underscores and hyphens",
        )
    identifiers = (table,) if namespace == "public" else (namespace, table)
    name = ".".join(_NOT_TOPIC_PART.sub(_escape, identifier) for identifier in identifiers)
    if prefix:
        name = f"{prefix}.{name}"
    elif name.startswith("__") or name == "_schemas":
        # Kafka's own topics begin with two underscores; _schemas belongs to Confluent's registry.
        name = _escape_first(name)
    if len(name) <= MAX_TOPIC:
        return name
    digest = sha256(name.encode()).hexdigest()[:_HASH_DIGITS]
    return name[: MAX_TOPIC - len(_HASH_MARK) - _HASH_DIGITS] + _HASH_MARK + digest


def subject_names(topic: str) -> tuple[str, str]:
    """Return the registry's subjects for the topic's key and value (Confluent's TopicNameStrategy)."""
    return f"{topic}-key", f"{topic}-value"


def colliding_topics(topics: Iterable[str]) -> list[tuple[str, ...]]:
    """Return the groups of topics that can't exist together in one Kafka cluster.

    Kafka refuses to create a topic whose name differs from an existing one only in dots and underscores,
    because its metrics can't distinguish them (Topic.hasCollision): ``a.b`` of schema a, and ``a_b`` of
    public.
    """
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for topic in dict.fromkeys(topics):
        groups[topic.replace(".", "_")].append(topic)
    return [tuple(group) for group in groups.values() if len(group) > 1]
