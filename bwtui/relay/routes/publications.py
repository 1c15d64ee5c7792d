"""The publications of a relay: tables that are created while it has its slot, and a check in each session.

New tables are added to the publication, or reported.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

import psycopg2
from psycopg import pq

from bwtui.errors import RefusedError
from bwtui.model.sql import quote_literal
from bwtui.relay.history.slot_checkpoint import SlotCheckpointStore
from bwtui.relay.state.run_state import RunState
from bwtui.settings import RelaySettings
from bwtui.source import publication
from bwtui.source.catalog import TableFilter, TableInfo, find_named, list_tables
from bwtui.source.connection import Connection
from bwtui.source.publication import create_statements, unkeyed_name
from bwtui.source.publication_coverage import Shortfall, is_chosen, shortfalls
from bwtui.source.raw_session import execute_raw
from bwtui.source.replica_identity import UnusedKey, unused_key
from bwtui.source.sql_hints import format_sql

_SECONDS = 10.0
#: Timeout of moving tables in one check; the next check continues, a second later.
_MOVING_SECONDS = 2.0
#: Every status includes the notices, and too many would push other errors out of it.
_NOTICES = 20
_HINT_CHARACTERS = 1_000
_GONE = "it was dropped or renamed: its topic keeps the rows sent so far"


def _lost_key(table: TableInfo) -> str:
    return (
        f"table {table.qualified_name} lost its replica identity, so the relay removed it from the "
        "publication, where PostgreSQL would reject its UPDATE and DELETE: its rows are no longer sent"
    )


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
        self._checked_at = 0.0
        #: The publications that the stream reads; none while there is no stream.
        self.reads: tuple[str, ...] = ()
        #: The last result of `publication.misplaced`, and when every table was last considered.
        self._misplaced: dict[int, publication.MisplacedTable] | None = None
        self._settled_at = 0.0
        self._has_settled = False
        #: The notices that are reported and not over: message and table.
        self._noticed: set[tuple[str, str | None]] = set()
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
                    if to:
                        self._report.end_notice(_lost_key(table), table.qualified_name)
                    else:
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
        # A root joins although a partition is listed: that was a table when it joined.
        if history.was_removed(table) or any(publication.listing(connection, name, table).values()):
            return None
        return "", to

    def _report_lost_key(self, table: TableInfo, unused: UnusedKey | None) -> None:
        remedy = f"it {unused.says}: {unused.hint}" if unused else "add a primary key"
        hint = f"the relay adds the table again and sends its rows once it has one; {remedy}"
        self._report.error("notice", RefusedError(_lost_key(table), hint), table.qualified_name)

    # -- notices -------------------------------------------------------------------------------------------

    def check(self, connection: Connection) -> None:
        """Report shortfalls periodically; first at startup, since a run may end before the next check."""
        now = time.monotonic()
        if self._checked_at and now - self._checked_at < _SECONDS:
            return
        if self._settings.adds_new_tables and not self._has_settled:
            # The tables that can't join are not determined yet.
            return
        self._checked_at = now
        missing = [self._with_reason(item) for item in shortfalls(connection, self._settings, self.reads)]
        self._report.not_captured = tuple(
            item.table or ""
            for item in missing
            if not item.captured and (is_chosen(self._settings, item) or item.table in self._report.tables)
        )
        self._notice(missing)
        self._note_dropped(connection)

    def _note_dropped(self, connection: Connection) -> None:
        """Note the tables that no longer exist, whose topics nothing changes any more."""
        counters = self._report.tables.copy()
        present = {one.qualified_name for one in find_named(connection, list(counters))} if counters else ()
        for name, table in counters.items():
            if name not in present:
                table.note(_GONE)
            elif _GONE in table.notes:
                table.notes.remove(_GONE)

    def _notice(self, missing: Sequence[Shortfall]) -> None:
        """Report the shortfalls, and end the notices of those that are gone."""
        doctor = f"'bwtui doctor --relay {self._settings.relay_name}' says"
        notices = {(f"{item.subject} {item.says}", item.table): item.hint for item in missing[:_NOTICES]}
        if more := missing[_NOTICES:]:
            text = f"{len(more)} more such notices about the publication"
            notices[text, None] = f"{doctor} all; --table narrows the selection"
        still_true = notices.keys() | {(f"{item.subject} {item.says}", item.table) for item in more}
        for text, table in self._noticed - still_true:
            self._report.end_notice(text, table)
        for (text, table), hint in notices.items():
            shown = hint if len(hint) <= _HINT_CHARACTERS else f"{doctor} what to run"
            self._report.error("notice", RefusedError(text, shown), table)
        self._noticed = (self._noticed & still_true) | notices.keys()

    def _with_reason(self, item: Shortfall) -> Shortfall:
        why = self._why_not(item.info) if item.info is not None and not item.captured else None
        return replace(item, says=f"{item.says} and can't be added: {why}") if why else item

    def _why_not(self, table: TableInfo) -> str | None:
        name, allow_unkeyed = self._settings.publication_name, self._settings.allow_unkeyed
        adds = self._settings.adds_new_tables and publication.unkeyed_name(name) in self.reads
        if adds and not table.owned and publication.publication_for(name, table, allow_unkeyed=allow_unkeyed):
            return "the relay's role does not own the table"
        return self._refused.get(table.oid)


_OPERATIONS = ("inserts", "updates", "deletes", "truncates")


class PublicationState(NamedTuple):
    """A publication's oid, and the operations that it publishes."""

    oid: str
    operations: frozenset[str]


PublicationStates = dict[str, PublicationState]


class PublicationCheck:
    """Checks in each session that a slot's publications exist, and publish the same operations.

    This does not detect a publication that was missing in between. For changes of that time PostgreSQL itself
    reports an error when it decodes them, see `changes_skipped`.
    """

    def __init__(self, publication: str, report: RunState, checkpoint: SlotCheckpointStore) -> None:
        """``publication`` is the one in the settings; it implies its unkeyed companion."""
        self._family = (publication, unkeyed_name(publication))
        self._report = report
        self._checkpoint = checkpoint
        self._before: dict[str, PublicationState] = {}

    def read(self, connection: pq.abc.PGconn, names: tuple[str, ...]) -> PublicationStates:
        """Return the states of ``names``, and of those that an earlier run read. Raises ServerError."""
        listed = ", ".join(map(quote_literal, self._required(names)))
        sql = f"""select pubname, oid, pubinsert, pubupdate, pubdelete, pubtruncate
                    from pg_catalog.pg_publication where pubname in ({listed})"""
        return {
            name or "": PublicationState(
                oid or "", frozenset(one for one, flag in zip(_OPERATIONS, flags, strict=True) if flag == "t")
            )
            for name, oid, *flags in execute_raw(connection, sql)
        }

    def take(self, names: tuple[str, ...], states: PublicationStates) -> None:
        """Check that all requested publications exist, and report what has changed. Raises RefusedError."""
        required = self._required(names)
        for name in required:
            if name not in states:
                raise RefusedError(
                    f"publication {name} is missing, but the slot was read with it",
                    "if rows were written meanwhile, the relay reports that a new snapshot is needed; "
                    f"'bwtui doctor' shows which tables to add after this: {self._create_statement(name)}",
                )
        for name, now in states.items():
            self._report_changes(name, self._before.get(name, now), now)
        self._before = states
        self._checkpoint.remember_publications(required)

    def _required(self, names: tuple[str, ...]) -> tuple[str, ...]:
        remembered = self._checkpoint.last.publications if self._checkpoint.last is not None else ()
        return tuple(dict.fromkeys((*names, *(name for name in remembered if name in self._family))))

    def _create_statement(self, name: str) -> str:
        keyed, unkeyed = create_statements(self._family[0], ())
        return format_sql(unkeyed if name == self._family[1] else keyed)

    def _report_changes(self, name: str, before: PublicationState, now: PublicationState) -> None:
        if before.oid != now.oid:
            self._notice(f"publication {name} was dropped and recreated")
        if removed := before.operations - now.operations:
            listed = ", ".join(operation for operation in _OPERATIONS if operation in removed)
            self._notice(f"publication {name} no longer publishes {listed}")

    def _notice(self, message: str) -> None:
        hint = "'bwtui verify --database' shows what topics lack"
        self._report.error("notice", RefusedError(message, hint))
