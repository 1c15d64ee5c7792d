"""Convert a name in Avro or Kafka back to PostgreSQL's identifier, which proves that this is possible."""

import re

_ESCAPE = re.compile(r"_x([0-9a-f]+)_")


def unescape(name: str) -> str:
    """Return the identifier behind the result of ``avro_name`` or a part of ``topic_name``."""
    return _ESCAPE.sub(lambda match: chr(int(match[1], 16)), name)
