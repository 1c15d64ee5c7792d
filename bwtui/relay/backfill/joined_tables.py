"""Backfill tables that join the publications while the relay has its slot.

Changes from before a table joined are in no stream. A listed table joins whenever it is listed. A table that
is included by a publication FOR ALL TABLES, or of its schema, has joined unless all of its history is in the
stream: it was created since the last check, and its rows in the catalog are still those that CREATE TABLE
wrote, so that it had the same name, schema, persistence and columns all the time. A renamed table gets a
different topic, and a table that gets its first key gets different messages.

Each check is stored in the relay's state folder, so that a table that joins while the relay is stopped has
joined when it starts. The first one is what the exported snapshot shows, stored before the slot exists.
"""

import json
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bwtui.durable_files import private_parent, write_durably
from bwtui.errors import BwtuiError, RefusedError, StateFailed
from bwtui.file_errors import file_failed
from bwtui.model.backfill import BackfillRequest
from bwtui.relay.history.backfill_store import BackfillStore
from bwtui.relay.history.coverage_ledger import Coverage
from bwtui.relay.routes.publications import NewTables
from bwtui.relay.state.run_state import RunState
from bwtui.settings import RelaySettings
from bwtui.source.catalog import TableFilter, TableInfo, list_tables
from bwtui.source.connection import Connection, query
from bwtui.source.publication import lacks_identity, published_tables
from bwtui.state_folder import STATE_HOME_HINT

_SECONDS = 5.0
#: Maximum notices of one check; more of them would push other errors out of the status.
_NOTICES = 20
# Includes unlogged tables, which may become logged ones.
_SEEN_SQL = """
select c.oid from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
 where c.relkind in ('r', 'p') and c.relpersistence <> 't'
   and n.nspname not in ('pg_catalog', 'information_schema') and n.nspname !~ '^pg_(toast|temp)'
"""
_LISTED_SQL = """
select r.prrelid::oid, array_agg(r.oid::bigint)
  from pg_catalog.pg_publication_rel r join pg_catalog.pg_publication p on p.oid = r.prpubid
 where p.pubname = any(%s) group by 1
"""

# CREATE TABLE writes the rows of the system columns in pg_attribute, the other columns' rows and the row type
# in one command, except for a column with a default, whose row it writes with that of the default. A
# different name or schema of the table changes the row type, and a rewrite of the table changes the file, all
# of them also in the transaction of CREATE TABLE. The stream has a row as its table was when the row was
# written. The same has to be true of its partitions: ATTACH PARTITION rewrites their rows in pg_attribute.
_UNTOUCHED_SQL = """
with recursive tree (root, oid) as (
       select oid, oid from unnest(%s::oid[]) as oid
        union all
       select tree.root, c.oid from tree join pg_catalog.pg_inherits i on i.inhparent = tree.oid
         join pg_catalog.pg_class c on c.oid = i.inhrelid and c.relispartition)
select root from tree group by 1 having bool_and(oid in (
select c.oid from pg_catalog.pg_class c
  join pg_catalog.pg_attribute s on s.attrelid = c.oid and s.attnum = -1 and s.xmin = c.xmin
  join pg_catalog.pg_type t on t.oid = c.reltype and t.xmin = s.xmin and t.cmin = s.cmin
 where c.oid in (select oid from tree) and c.relfilenode in (0, c.oid)
   and not exists (
       select from pg_catalog.pg_attribute a
         left join pg_catalog.pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
        where a.attrelid = c.oid and a.attnum > 0 and not (a.xmin = s.xmin and a.cmin = s.cmin)
          and (a.atthasmissing or not coalesce(a.xmin = d.xmin and a.cmin = d.cmin, false)))))
"""


@dataclass(frozen=True, slots=True)
class _PublicationMember:
    """A published table: its name, its rows in pg_publication_rel, and whether it has a key.

    ``has_key`` is None if an earlier version wrote the entry, without recording that.
    """

    name: str
    listed: frozenset[int] = frozenset()
    has_key: bool | None = None

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "listed": sorted(self.listed), "has_key": self.has_key}

    @classmethod
    def from_json(cls, data: Any) -> "_PublicationMember":
        """Return the place from JSON; earlier versions wrote a list of the name and the rows."""
        if isinstance(data, list):
            return cls(str(data[0]), frozenset(map(int, data[1:])))
        return cls(str(data["name"]), frozenset(map(int, data["listed"])), data["has_key"])


_Places = dict[int, _PublicationMember]


@dataclass(frozen=True, slots=True)
class _LastCheck:
    """The tables of the last check, by oid.

    ``removed``: tables that another client removed from the publication; ``released``: tables that the relay
    removed, since they had lost their replica identity.
    """

    seen: frozenset[int]
    places: _Places
    removed: frozenset[int] = frozenset()
    released: frozenset[int] = frozenset()

    def to_json(self) -> dict[str, Any]:
        sets = {name: sorted(getattr(self, name)) for name in ("seen", "removed", "released")}
        return sets | {"places": [[oid, place.to_json()] for oid, place in self.places.items()]}

    @classmethod
    def from_json(cls, data: Any) -> "_LastCheck":
        """Return the tables from `to_json`, also from that of an earlier version."""
        places = {int(oid): _PublicationMember.from_json(place) for oid, place in data["places"]}
        seen, removed, released = (
            frozenset(map(int, data.get(name, ()))) for name in ("seen", "removed", "released")
        )
        return cls(seen, places, removed, released)


class JoinedTables:
    """Checks for joined tables periodically; the sampler's thread owns it once the relay streams."""

    def __init__(
        self,
        path: Path,
        identity: Collection[str],
        settings: RelaySettings,
        report: RunState,
        new_tables: NewTables,
        is_compared: Callable[[], bool],
        coverage: Coverage,
    ) -> None:
        """``path`` is where the state is stored; ``identity`` names server, database and slot.

        ``is_compared`` returns whether topics and tables are compared anyway, since a heal that creates the
        publication lists the tables again. ``coverage`` records that all tables are not proven if the file is
        damaged or missing. Raises StateFailed if the system refuses to read it.
        """
        self._path = path
        self._identity = list(identity)
        self._settings = settings
        self._report = report
        self._new_tables = new_tables
        self._is_compared = is_compared
        self._filter = TableFilter(settings)
        #: When the last check began, when the last one that requested everything began, and since when a
        #: check is due.
        self._checked_at = self._requested_at = self._due_from = 0.0
        self._coverage = coverage
        #: Why tables may have joined unnoticed: the ledger has records of a slot for which no state is
        #: stored.
        self._lost = ""
        #: The stored state; None for a relay from before this state was stored.
        self._last_check = self._load()

    def begin(
        self, connection: Connection, publications: tuple[str, ...], tables: Collection[TableInfo]
    ) -> None:
        """Store what a snapshot is about to copy, as seen by ``connection``, which has imported it.

        Raises psycopg2.Error, and StateFailed: without the state, tables that join after the snapshot would
        be missed.
        """
        listed = _listed(connection, publications)
        places = {table.oid: _place(table, listed) for table in tables}
        try:
            self._write(_LastCheck(_existing_oids(connection), places))
        except OSError as error:
            raise file_failed(
                f"the tables of the snapshot can't be written to {self._path}", error
            ) from error
        self._lost = ""

    def forget(self) -> None:
        """Remove the state of a former slot: a slot without a snapshot is about to be created."""
        self._path.unlink(missing_ok=True)
        self._last_check, self._lost = None, ""

    # -- called by `NewTables` -----------------------------------------------------------------------------

    def was_removed(self, table: TableInfo) -> bool:
        last_check = self._last_check
        if last_check is None or table.oid in last_check.released:
            return last_check is not None and lacks_identity(table)
        place = last_check.places.get(table.oid)
        return table.oid in last_check.removed or (place is not None and bool(place.listed))

    def release(self, oid: int) -> None:
        if self._last_check is not None:
            self._keep(replace(self._last_check, released=self._last_check.released | {oid}))

    # -- checking ------------------------------------------------------------------------------------------

    def check(self, connection: Connection, store: BackfillStore) -> None:
        """Add new tables to the publication, and request the rows of tables that have joined, periodically.

        Raises psycopg2.Error if the session ends.
        """
        publications = self._new_tables.reads
        now = time.monotonic()
        if not publications or (self._settings.skip_snapshot and not self._settings.adds_new_tables):
            # Nothing is ever requested, so a run that ends once it has caught up does not wait for a check.
            self._requested_at = now
            return
        if self._last_check is None:
            # Store the existing tables first; otherwise rows of new ones would seem to be sent.
            self._check_all(connection, publications, store)
        is_moved = self._last_check is not None and self._new_tables.settle(connection, self)
        # Check before a heal is done, since it may be done before the next check is due.
        is_due = is_moved or self._checked_at < self._due_from or self._is_compared()
        if self._checked_at and not is_due and now - self._checked_at < _SECONDS:
            return
        self._checked_at = now
        if self._check_all(connection, publications, store):
            self._requested_at = now

    def _check_all(self, connection: Connection, publications: tuple[str, ...], store: BackfillStore) -> bool:
        """Return whether all joined tables were requested."""
        # In this order: a table created in between is not in the state, and joins at the next check only.
        existing, listed = _existing_oids(connection), _listed(connection, publications)
        names = {
            (table_name.namespace, table_name.name)
            for table_name in published_tables(connection, publications)
        }
        tables = [
            table
            for table in list_tables(connection, partitions=True)
            if table.oid in existing and (table.namespace, table.name) in names and self._filter(table)
        ]
        places = {table.oid: _place(table, listed) for table in tables}
        if self._lost:
            # Do this before these tables are stored as the existing ones.
            sent = [table.qualified_name for table in tables if self._is_sent(table)]
            self._coverage.mark_all(
                f"may lack rows from before it joined the publication: {self._lost}", sent
            )
            self._lost = ""
        previous = self._last_check or _LastCheck(existing, places)
        joined = self._joined(connection, tables, places, previous)
        # Request each of them, whatever happens to the others.
        requested = [table for table in joined if self._request(table, store)]
        for table in joined:
            if table not in requested:
                # Restore the earlier state, so that it joins again at the next check.
                places.pop(table.oid)
                if (before := previous.places.get(table.oid)) is not None:
                    places[table.oid] = before
        self._report_joined([table.qualified_name for table in requested if self._is_sent(table)])
        for status in store.statuses():
            if status.is_over:
                self._report.end_notice(_has_joined(status.table), status.table)
        released = (previous.released & existing) - listed.keys()
        formerly_listed = {oid for oid, place in previous.places.items() if place.listed} | previous.removed
        self._keep(
            _LastCheck(existing, places, (existing & formerly_listed) - listed.keys() - released, released)
        )
        return len(requested) == len(joined)

    def has_checked(self, moment: float) -> bool:
        """Return whether a check since ``moment`` requested all joined tables; otherwise make one due.

        For the main thread; ``moment`` is a time of `time.monotonic`.
        """
        self._due_from = max(self._due_from, moment)
        return self._requested_at >= moment

    def _joined(
        self, connection: Connection, tables: Collection[TableInfo], places: _Places, previous: _LastCheck
    ) -> list[TableInfo]:
        """Return tables whose earlier rows may be in no stream."""
        created = [oid for oid, place in places.items() if not place.listed and oid not in previous.seen]
        untouched = {oid for (oid,) in query(connection, _UNTOUCHED_SQL, created)} if created else set()
        joined = []
        for table in tables:
            place, before = places[table.oid], previous.places.get(table.oid)
            if before is None:
                is_joined = table.oid not in untouched
            elif place.name != before.name:
                # It has a different topic.
                is_joined = True
            else:
                # Without a key, its rows would be in its topic twice.
                is_anew = bool(place.listed - before.listed) or before.has_key is False
                is_joined = table.has_key and is_anew and not self._is_compared()
            if is_joined:
                joined.append(table)
        return joined

    def _is_sent(self, table: TableInfo) -> bool:
        return table.has_key or self._settings.allow_unkeyed

    def _request(self, table: TableInfo, store: BackfillStore) -> bool:
        """Request a table's rows; return whether the request is on the disk, or not needed.

        An earlier request for the table that is still in progress may have passed rows that were written in
        between. Then the request is refused, and repeated at the next check.
        """
        name = table.qualified_name
        if not self._is_sent(table):
            return True
        try:
            store.submit(BackfillRequest(name, reason="joined", unkeyed=not table.has_key))
        except RefusedError:
            return False
        except BwtuiError as error:
            self._report.error("backfill", error, name)
            return False
        return True

    def _report_joined(self, names: list[str]) -> None:
        hint = "'bwtui snapshot --status' shows the progress, and 'bwtui snapshot --cancel ID' ends it"
        for name in names[:_NOTICES]:
            self._report.error("notice", RefusedError(_has_joined(name), hint), name)
        if more := names[_NOTICES:]:
            message = (
                f"{len(more)} more tables have joined the publication: the relay backfills their earlier rows"
            )
            self._report.error("notice", RefusedError(message, hint))

    def _keep(self, check: _LastCheck) -> None:
        if check == self._last_check:
            return
        try:
            self._write(check)
        except OSError as error:
            # It is written at the next check; until then a restart may request a table once more.
            hint = f"free disk space, or {STATE_HOME_HINT}"
            message = f"the list of joined tables can't be written to {self._path}: {error.strerror}"
            self._report.error("state", StateFailed(message, hint))

    def _write(self, check: _LastCheck) -> None:
        private_parent(self._path)
        write_durably(self._path, json.dumps({"identity": self._identity} | check.to_json()))
        self._last_check = check

    def _load(self) -> _LastCheck | None:
        why = ""
        try:
            content: Any = json.loads(self._path.read_text(encoding="utf-8"))
            if content["identity"] == self._identity:
                return _LastCheck.from_json(content)
            why = "belongs to a different slot"
        except FileNotFoundError:
            why = "is missing"
        except OSError as error:
            raise file_failed(f"{self._path} can't be read", error) from error
        except (ValueError, TypeError, KeyError, IndexError, AttributeError):
            why = "is damaged"
        # A ledger without records is of a relay from before this state was stored.
        if not self._coverage.is_empty:
            self._lost = f"{self._path} {why}"
        return None


def _existing_oids(connection: Connection) -> frozenset[int]:
    return frozenset(int(oid) for (oid,) in query(connection, _SEEN_SQL))


def _listed(connection: Connection, publications: tuple[str, ...]) -> dict[int, list[int]]:
    return dict(query(connection, _LISTED_SQL, list(publications)))


def _has_joined(table: str) -> str:
    return f"table {table} has joined the publication: the relay backfills its earlier rows"


def _place(table: TableInfo, listed: dict[int, list[int]]) -> _PublicationMember:
    return _PublicationMember(table.qualified_name, frozenset(listed.get(table.oid, ())), table.has_key)
