"""Collect the keys that the stream sends of a table while a chunk of it is read.

This prevents older rows from being sent after newer ones. Let S be the snapshot in which the chunk is read,
and p the place in the stream where its rows are added. A row of the chunk would be older than what was sent
of its key if a transaction that S does not show was sent before p. A commit is streamed as soon as its WAL is
flushed, and becomes visible to others only later: with a synchronous standby much later. So the window is
opened before S is taken, and S is taken only once everything that was sent before the window was opened is
visible (`bwtui.relay.backfill.sent_transactions`). If a key is sent while the window is open, the chunk's row
of that key is left out.
"""

from collections.abc import Collection, Sequence

from bwtui.relay.routes.route import TableRoute

#: Maximum number of keys that are collected before the chunk's own keys are known.
_MOST_KEYS = 500_000


#: The inputs of a key's bytes in addition to its values: its columns, their types and its schema.
Form = tuple[tuple[str, ...], tuple[int, ...], int | None]


class ChunkWindow:
    """The keys of one table that are sent while it is open; the relay's main thread owns it."""

    def __init__(self, table: str) -> None:
        """``table`` is the qualified name of the table."""
        self.table = table
        #: Why the chunk must be read again, or "".
        self.broken = ""
        self._keys: set[bytes | None] = set()
        self._only: frozenset[bytes | None] | None = None
        self._forms: set[Form] = set()

    def note_batch(self, routes: Sequence[TableRoute]) -> None:
        """Collect the keys of a batch that is handed over."""
        for route in routes:
            if route.relation.qualified_name == self.table:
                self._forms.add(form_of(route))
                self.collect({message[0] for message in route.messages})
        if self._only is None and len(self._keys) > _MOST_KEYS:
            self.broken = "too many rows were written while the chunk was read"

    def collect(self, keys: Collection[bytes | None]) -> None:
        """Collect keys of which something newer was sent."""
        self._keys.update(keys if self._only is None else self._only.intersection(keys))

    def narrow(self, keys: Collection[bytes | None]) -> None:
        """Collect only ``keys`` from now on: those of the chunk."""
        self._only = frozenset(keys)
        self._keys &= self._only

    def fits(self, route: TableRoute) -> bool:
        """True if the keys of ``route`` can be compared with those that were sent."""
        return self._forms <= {form_of(route)}

    def truncate(self, tables: Collection[str]) -> None:
        """Break the window if the stream has truncated its table."""
        if self.table in tables:
            self.broken = "the table was truncated"

    def __contains__(self, key: bytes | None) -> bool:
        """Whether something newer of ``key`` may have been sent."""
        return key in self._keys


def form_of(route: TableRoute) -> Form:
    """Return the inputs that make keys of ``route`` comparable byte by byte."""
    types = tuple(route.relation.columns[index].type_oid for index in route.key_indexes)
    return route.key_columns, types, route.key_schema_id
