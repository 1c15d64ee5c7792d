"""Whether the publications that a slot reads are there, and publish what they did; asked in each session.

It is no guard against one that was missing in between: for the changes of that time PostgreSQL itself says so
when it decodes them, see `bwtui.source.stream.leaves_out`.
"""

from typing import NamedTuple

from psycopg import pq

from bwtui.errors import RefusedError
from bwtui.relay.memory import SlotMemory
from bwtui.relay.report import Report
from bwtui.source.connection import execute_raw, quote_identifier, quote_literal
from bwtui.source.publication import unkeyed_name

_OPERATIONS = ("inserts", "updates", "deletes", "truncates")


class _Look(NamedTuple):
    oid: str
    operations: frozenset[str]


class Published:
    """The publications of one slot, from one session to the next."""

    def __init__(self, publication: str, report: Report, memory: SlotMemory) -> None:
        """``publication`` is what the relay is told to read; its unkeyed companion goes with it."""
        self._family = (publication, unkeyed_name(publication))
        self._report = report
        self._memory = memory
        self._before: dict[str, _Look] = {}

    def look(self, connection: pq.abc.PGconn, names: tuple[str, ...]) -> None:
        """See that ``names`` are there, and those that an earlier run read.

        Raises RefusedError, ServerError.
        """
        remembered = self._memory.last.publications if self._memory.last is not None else ()
        wanted = dict.fromkeys((*names, *(name for name in remembered if name in self._family)))
        found = _look(connection, list(wanted))
        for name in wanted:
            if name not in found:
                raise RefusedError(
                    f"publication {name} is gone, though the slot was read with it",
                    f"make it again: CREATE PUBLICATION {quote_identifier(name)} …; if rows were written "
                    "meanwhile the relay says so, and a new snapshot is needed",
                )
        for name, now in found.items():
            self._tell(name, self._before.get(name, now), now)
        self._before = found
        self._memory.remember_publications(tuple(wanted))

    def _tell(self, name: str, before: _Look, now: _Look) -> None:
        if before.oid != now.oid:
            self._notice(f"publication {name} was dropped and made again")
        if gone := before.operations - now.operations:
            listed = ", ".join(operation for operation in _OPERATIONS if operation in gone)
            self._notice(f"publication {name} does not publish {listed} any more")

    def _notice(self, told: str) -> None:
        self._report.error("notice", RefusedError(told, "'bwtui verify --database' shows what topics lack"))


def _look(connection: pq.abc.PGconn, names: list[str]) -> dict[str, _Look]:
    sql = f"""select pubname, oid, pubinsert, pubupdate, pubdelete, pubtruncate
                from pg_catalog.pg_publication where pubname in ({", ".join(map(quote_literal, names))})"""
    return {
        name or "": _Look(
            oid or "", frozenset(one for one, flag in zip(_OPERATIONS, flags, strict=True) if flag == "t")
        )
        for name, oid, *flags in execute_raw(connection, sql)
    }
