"""What the stream sends of one table while a chunk of it is read, so that nothing older is put behind it.

Let S be the snapshot in which the chunk is read, and p the place in the stream where its rows are put. A row
of the chunk would be older than what was sent of its key if a transaction that S does not show was sent
before p. A commit is streamed as soon as its WAL is flushed, and is visible to others only later: with a
synchronous standby much later. So the window is open from before S was taken, S is taken once everything is
visible that was sent before the window was opened (`bwtui.relay.backfill.streamed`), and of every key that is
sent while the window is open the chunk's row is left out.
"""

from collections.abc import Collection, Sequence

from bwtui.relay.routes.route import Route

#: So many keys are collected before it is known which keys the chunk has.
_MOST_KEYS = 500_000


#: What a key's bytes depend on beside its values: its columns, their types and its schema.
Form = tuple[tuple[str, ...], tuple[int, ...], int | None]


class Window:
    """The keys of one table that are sent while it is open; the relay's main thread owns it."""

    def __init__(self, table: str) -> None:
        """``table`` is the qualified name of the table."""
        self.table = table
        #: Why the chunk must be read again, or "".
        self.broken = ""
        self._keys: set[bytes | None] = set()
        self._only: frozenset[bytes | None] | None = None
        self._forms: set[Form] = set()

    def see(self, routes: Sequence[Route]) -> None:
        """Take note of the messages of a batch that is handed over."""
        for route in routes:
            if route.relation.qualified_name == self.table:
                self._forms.add(form_of(route))
                self.collect({message[0] for message in route.messages})
        if self._only is None and len(self._keys) > _MOST_KEYS:
            self.broken = "too many rows were written while it was read"

    def collect(self, keys: Collection[bytes | None]) -> None:
        """Take note of keys of which something newer was sent."""
        self._keys.update(keys if self._only is None else self._only.intersection(keys))

    def narrow(self, keys: Collection[bytes | None]) -> None:
        """Collect only ``keys`` from now on: those of the chunk."""
        self._only = frozenset(keys)
        self._keys &= self._only

    def fits(self, route: Route) -> bool:
        """Whether the keys of ``route`` can be compared with those that were sent."""
        return self._forms <= {form_of(route)}

    def truncate(self, tables: Collection[str]) -> None:
        """Take note that the stream has emptied ``tables``."""
        if self.table in tables:
            self.broken = "the table was truncated"

    def __contains__(self, key: bytes | None) -> bool:
        """Whether something newer of ``key`` may have been sent."""
        return key in self._keys


def form_of(route: Route) -> Form:
    """Return what makes keys of ``route`` comparable byte by byte."""
    types = tuple(route.relation.columns[index].type_oid for index in route.key_indexes)
    return route.key_columns, types, route.key_schema_id
