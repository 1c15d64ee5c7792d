"""Records whose schema the registry does not have, so that their rows are unknown.

The registry may have lost schemas, or not be the relay's. Without the schemas of its keys, each row of a
table would count as missing, and each record as an extra key. A single such record is more likely damaged, or
another producer's.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

import duckdb

_RECORDS = """
select topic, part, ('0x' || substr(head, 3))::bigint as number, count(*) as n
  from (select topic, 'key' as part, substr(key, 13, 10) as head
          from latest where value is not null and starts_with(key, 'undecodable 00')
        union all
        select w.topic, 'value', substr(hex(l.value), 1, 10)
          from wrong as w join latest as l using (topic, key, partition_id, log_offset)
         where w.class = 'different_row' and starts_with(hex(l.value), '00'))
 where length(head) = 10
 group by all having n > 1 order by all
"""
#: The keys, and the rows that may be under one of them; the values.
_OF_KEYS = """
topic = $topic and (class = 'extra_key' and starts_with(key, 'undecodable 00' || $head)
                    or class = 'missing_key' and
                       $keys >= (select count(*) from wrong where topic = $topic and class = 'missing_key'))
"""
_OF_VALUES = """
topic = $topic and class = 'different_row'
and (partition_id, log_offset) in (
    select (partition_id, log_offset) from latest
     where topic = $topic and starts_with(hex(value), '00' || upper($head)))
"""


@dataclass(frozen=True, slots=True)
class UnknownSchema:
    """The number of keys, or values, of a topic that name a schema which the registry does not have."""

    topic: str
    part: Literal["key", "value"]
    number: int
    records: int

    @property
    def note(self) -> str:
        """The note for the report."""
        return (
            f"the schema registry has no schema {self.number}, to which {self.records:,} {self.part}s of "
            f"{self.topic} refer, so they can't be decoded; restore the schema, or check -r/--schema-registry"
        )


def undecide_unknown(store: duckdb.DuckDBPyConnection, unknown: Collection[int]) -> list[UnknownSchema]:
    """Move differences caused by a missing schema from ``wrong`` to ``undecided``; return those schemas.

    If more rows are missing than there are such keys, the rows stay in ``wrong``.
    """
    if not unknown:
        return []
    rows = store.execute(_RECORDS).fetchall()
    schemas = [UnknownSchema(*row) for row in rows if row[2] in unknown]
    for one in schemas:
        keys = sum(schema.records for schema in schemas if (schema.topic, schema.part) == (one.topic, "key"))
        where = _OF_KEYS if one.part == "key" else _OF_VALUES
        parameters: dict[str, str | int] = {"topic": one.topic, "head": f"{one.number:08x}"}
        parameters |= {"keys": keys} if one.part == "key" else {}
        store.execute(f"insert into undecided select * from wrong where {where}", parameters)
        store.execute(f"delete from wrong where {where}", parameters)
    return schemas
