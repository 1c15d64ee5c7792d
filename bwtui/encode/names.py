"""Names that Avro and Kafka accept, for any identifier that PostgreSQL accepts; no two identifiers share one.

A character that the target does not allow becomes ``_x``, its code point in hexadecimal, ``_``: ``größe`` is
``gr_xf6__xdf_e``. An underscore that would begin such a sequence by chance, because ``x`` and a hexadecimal
digit follow it, is escaped itself (``is_xact`` is ``is_x5f_xact``). So every name has one reading.

A sequence ``_x`` + digit that is not such an escape is never produced, so names of our own can't collide
either.
"""

import re
from collections import defaultdict
from collections.abc import Iterable
from hashlib import sha256

from bwtui.errors import UsageError

# The extra field of a record, for the text of values that a column's type can't hold.
ESCAPED_FIELD = "__escaped"

# The key in that field under which --toast placeholder lists columns that were not sent. It holds a space,
# as no Avro name does, so it can't be a column's.
UNCHANGED_KEY = "unchanged TOAST"

# Kafka's limit (org.apache.kafka.common.internals.Topic, MAX_NAME_LENGTH).
MAX_TOPIC = 249

_NOT_AVRO = re.compile(r"[^A-Za-z0-9_]|_(?=x[0-9a-f])")
_NOT_TOPIC_PART = re.compile(r"[^A-Za-z0-9_-]|_(?=x[0-9a-f])")
_TOPIC = re.compile(r"[A-Za-z0-9._-]*")

# Never the beginning of an escape, for no code point is written with a leading zero and without the
# underscore.
_HASH_MARK = "_x0"
_HASH_DIGITS = 40


def _escape(match: re.Match[str]) -> str:
    return f"_x{ord(match[0]):x}_"


def _escape_first(name: str) -> str:
    return f"_x{ord(name[0]):x}_{name[1:]}"


def avro_name(identifier: str) -> str:
    """Return a legal Avro name for an identifier: itself where it's legal. It must not be empty."""
    name = _NOT_AVRO.sub(_escape, identifier)
    if name[0].isdigit() or name == ESCAPED_FIELD:
        return _escape_first(name)
    return name


def topic_name(prefix: str, namespace: str, table: str) -> str:
    """Return ``[prefix.][schema.]table``, without the schema ``public``; at most 249 characters.

    The dot separates: in an identifier it is escaped. A name that would be too long keeps its beginning and
    ends in a hash. Raises UsageError for a prefix that Kafka does not accept.
    """
    if not _TOPIC.fullmatch(prefix) or len(prefix) > 100:
        raise UsageError(
            f"the topic prefix {prefix!r} is not legal in Kafka",
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
    """Return the registry's subjects of the topic's key and value (Confluent's TopicNameStrategy)."""
    return f"{topic}-key", f"{topic}-value"


def colliding_topics(topics: Iterable[str]) -> list[tuple[str, ...]]:
    """Return the groups of topics that one Kafka cluster does not take side by side.

    Kafka refuses to create a topic that differs from another one only in dots against underscores, for its
    metrics can't tell them apart (Topic.hasCollision): ``a.b`` of schema a, and ``a_b`` of public.
    """
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for topic in dict.fromkeys(topics):
        groups[topic.replace(".", "_")].append(topic)
    return [tuple(group) for group in groups.values() if len(group) > 1]
