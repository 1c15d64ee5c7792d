"""The way back from a name in Avro or Kafka to PostgreSQL's identifier, which proves that there is one."""

import re

_ESCAPE = re.compile(r"_x([0-9a-f]+)_")


def unescape(name: str) -> str:
    """Return the identifier that ``avro_name`` or a part of ``topic_name`` was made of."""
    return _ESCAPE.sub(lambda match: chr(int(match[1], 16)), name)
