"""Tables that are created while the relay has its slot: add them to its publication, or report them."""

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Protocol

import psycopg2

from bwtui.errors import RefusedError
from bwtui.relay.run_state import RunState
from bwtui.settings import RelaySettings
from bwtui.source import publication
from bwtui.source.catalog import TableFilter, TableInfo, list_tables
from bwtui.source.connection import Connection
from bwtui.source.publication_coverage import Shortfall, is_chosen, shortfalls
from bwtui.source.replica_identity import UnusedKey, unused_key

_SECONDS = 10.0
#: Timeout of moving tables in one check; the next check continues, a second later.
_MOVING_SECONDS = 2.0
#: Every status includes the notices, and too many would push other errors out of it.
_NOTICES = 20
_HINT_CHARACTERS = 1_000
_DOCTOR = "'bwtui doctor' with the relay's options says"


class PublicationHistory(Protocol):
    """The record of tables that were in the publication."""

    def was_removed(self, table: TableInfo) -> bool:
        """Return whether ``table`` was taken out of the publication, and must not rejoin as it is."""

    def release(self, oid: int) -> None:
        """Record that the relay takes a table out until it has a replica identity again."""


class NewTables:
    """Checks for new tables periodically; the sampler's thread owns it."""

    def __init__(self, settings: RelaySettings, report: RunState) -> None:
        self._settings = settings
        self._report = report
        self._filter = TableFilter(settings)
        self._looked_at = 0.0
        #: The publications that the stream reads; none while there is no stream.
        self.reads: tuple[str, ...] = ()
        #: The last result of `publication.misplaced`, and when every table was last considered.
        self._misplaced: dict[int, publication.MisplacedTable] | None = None
        self._settled_at = 0.0
        self._has_settled = False
        #: Why tables can't join, by oid.
        self._refused: dict[int, str] = {}

    # -- joining -------------------------------------------------------------------------------------------

    def settle(self, connection: Connection, history: PublicationHistory) -> bool:
        """Move tables into the publication that they belong to; return whether any was moved.

        A table without a replica identity never joins a publication of updates, and one that loses it leaves:
        PostgreSQL would refuse the application's UPDATE and DELETE. Raises psycopg2.Error if the session
        ends.
        """
        name, now = self._settings.publication_name, time.monotonic()
        self._has_settled = True
        if not self._settings.adds_new_tables or publication.unkeyed_name(name) not in self.reads:
            return False
        misplaced = publication.misplaced(connection, name)
        # If a partition loses its identity, its root looks the same in `misplaced`.
        is_due = now - self._settled_at >= _SECONDS or not self._settled_at
        if misplaced == self._misplaced and not is_due:
            return False
        self._misplaced, self._settled_at = misplaced, now
        self._refused = {oid: why for oid, why in self._refused.items() if oid in misplaced}
        return self._settle(connection, history)

    def _settle(self, connection: Connection, history: PublicationHistory) -> bool:
        until = time.monotonic() + _MOVING_SECONDS
        is_moved = False
        for table, former, to in self._moves(connection, history):
            if time.monotonic() > until:
                self._misplaced = None
                break
            if not to:
                history.release(table.oid)
            try:
                if publication.move(connection, table, former, to):
                    is_moved = True
                    if not to:
                        self._report_lost_key(table, unused_key(connection, table))
                else:
                    self._misplaced = None
            except psycopg2.Error as error:
                if connection.closed:
                    raise
                self._refused[table.oid] = " ".join(str(error).split())
        return is_moved

    def _moves(
        self, connection: Connection, history: PublicationHistory
    ) -> Iterator[tuple[TableInfo, str, str]]:
        """Yield tables with the publication that they leave and the publication that they join."""
        misplaced = self._misplaced or {}
        for table in list_tables(connection, partitions=True):
            current = misplaced.get(table.oid)
            if table.owned and (current is not None or table.partitioned):
                move = self._move_of(connection, table, current, history)
                if move is not None:
                    yield table, *move

    def _move_of(
        self,
        connection: Connection,
        table: TableInfo,
        current: publication.MisplacedTable | None,
        history: PublicationHistory,
    ) -> tuple[str, str] | None:
        name = self._settings.publication_name
        to = publication.publication_for(name, table, allow_unkeyed=self._settings.allow_unkeyed)
        to = to if self._filter(table) else ""
        may_block = table.partitioned or (current is not None and current.in_first)
        is_blocked = may_block and publication.lacks_identity(table)
        if is_blocked and publication.listing(connection, name, table).get(name):
            # It does not join the publication of inserts either: its topic is compacted.
            return name, ""
        if current is None or current.in_first or not to:
            return None
        if current.in_first is not None:
            return (publication.unkeyed_name(name), to) if to == name else None
        if history.was_removed(table) or publication.listing(connection, name, table):
            return None
        return "", to

    def _report_lost_key(self, table: TableInfo, unused: UnusedKey | None) -> None:
        text = (
            f"table {table.qualified_name} lost its replica identity, so the relay removed it from the "
            "publication, where PostgreSQL would reject its UPDATE and DELETE: its rows are no longer sent"
        )
        remedy = f"it {unused.says}: {unused.hint}" if unused else "add a primary key"
        hint = f"the relay adds the table again and sends its rows once it has one; {remedy}"
        self._report.error("notice", RefusedError(text, hint), table.qualified_name)

    # -- notices -------------------------------------------------------------------------------------------

    def look(self, connection: Connection) -> None:
        """Report shortfalls periodically; first at startup, since a run may end before the next check."""
        now = time.monotonic()
        if self._looked_at and now - self._looked_at < _SECONDS:
            return
        if self._settings.adds_new_tables and not self._has_settled:
            # The tables that can't join are not determined yet.
            return
        self._looked_at = now
        missing = [self._with_reason(item) for item in shortfalls(connection, self._settings, self.reads)]
        self._report.not_captured = tuple(
            item.table or ""
            for item in missing
            if not item.captured and (is_chosen(self._settings, item) or item.table in self._report.tables)
        )
        for item in missing[:_NOTICES]:
            hint = item.hint if len(item.hint) <= _HINT_CHARACTERS else f"{_DOCTOR} what to run"
            self._report.error("notice", RefusedError(f"{item.subject} {item.says}", hint), item.table)
        if more := missing[_NOTICES:]:
            text = f"{len(more)} more such notices about the publication"
            self._report.error("notice", RefusedError(text, f"{_DOCTOR} all; --table narrows the selection"))

    def _with_reason(self, item: Shortfall) -> Shortfall:
        why = self._why_not(item.info) if item.info is not None and not item.captured else None
        return replace(item, says=f"{item.says} and can't be added: {why}") if why else item

    def _why_not(self, table: TableInfo) -> str | None:
        name, allow_unkeyed = self._settings.publication_name, self._settings.allow_unkeyed
        adds = self._settings.adds_new_tables and publication.unkeyed_name(name) in self.reads
        if adds and not table.owned and publication.publication_for(name, table, allow_unkeyed=allow_unkeyed):
            return "the relay's role does not own the table"
        return self._refused.get(table.oid)
