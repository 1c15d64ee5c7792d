"""Find out which ALTER TABLE explains a difference between a topic's record and its table's row.

PostgreSQL publishes nothing for existing rows if a column is added with a default, or dropped and added
again. This module compares what the catalog still has of that with the record; the difference remains a
difference.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

#: For the table and its partitions, where the defaults of earlier rows are kept. The text is in the
#: database's encoding, and may not be valid text for a client.
HISTORY_SQL = """
select a.attname, a.attnum, a.attisdropped, a.attrelid <> %s, a.atthasmissing,
       pg_catalog.convert_to((a.attmissingval::pg_catalog.text::pg_catalog.text[])[1],
                             pg_catalog.current_setting('server_encoding'))
  from pg_catalog.pg_attribute a
 where a.attnum > 0
   and (a.attrelid = %s
        or a.atthasmissing and a.attrelid in (select relid from pg_catalog.pg_partition_tree(%s)))
"""
_ADDED = "earlier rows got its default without a message"
_AGAIN = "earlier rows lost its value without a message"


@dataclass(frozen=True, slots=True)
class ColumnHistory:
    """The catalog's information on columns that were added to a table or dropped from it."""

    #: Column → its values in rows from before it was added, in the form of `Shape.texts`.
    defaults: Mapping[str, frozenset[str | None]] = field(default_factory=dict)
    #: Column → its number; numbers are never reused.
    numbers: Mapping[str, int] = field(default_factory=dict)
    dropped: Sequence[int] = ()

    def explanation(
        self, row: Mapping[str, str | None], record: Sequence[str], differing: Sequence[str]
    ) -> str | None:
        """Return which of the ``differing`` columns an ALTER TABLE explains; None if it explains none.

        ``record`` has the record's columns, in its order.
        """
        added, perhaps, recreated, unexplained = list[str](), list[str](), list[str](), list[str]()
        for name in differing:
            if name not in record:
                # After a rewrite of the table, the catalog does not show the values of earlier rows.
                has_default, is_default = name in self.defaults, row[name] in self.defaults.get(name, ())
                (added if is_default else unexplained if has_default else perhaps).append(name)
            elif row[name] in self.defaults.get(name, {None}) and self._is_another(name, record):
                recreated.append(name)
            else:
                unexplained.append(name)
        explanations = [
            *([f"ADD COLUMN explains {', '.join(added)}: {_ADDED}"] if added else []),
            *([f"ADD COLUMN may explain {', '.join(perhaps)}: {_ADDED}"] if perhaps else []),
            *(
                [f"DROP COLUMN and ADD COLUMN may explain {', '.join(recreated)}: {_AGAIN}"]
                if recreated
                else []
            ),
        ]
        if explanations and unexplained:
            explanations.append(f"no ALTER TABLE explains {', '.join(unexplained)}")
        return "; ".join(explanations) or None

    def _is_another(self, name: str, record: Sequence[str]) -> bool:
        """Return whether the record's column may be a dropped one whose place is now free in the table."""
        earlier = [self.numbers[one] for one in record[: record.index(name)] if one in self.numbers]
        before = earlier[-1] if earlier else 0
        return any(before < number < self.numbers.get(name, 0) for number in self.dropped)
