"""Tables that join the publications while the relay has its slot: their rows are put into the stream.

What was written before a table joined is in no stream. A table that is listed joins when it is listed, also
anew. One that a publication FOR ALL TABLES, or of its schema, takes in has joined only if it was there
before: of one that was made since, every row is in the stream. One that gets another name gets another topic.
What was seen is kept in the relay's state folder, so that a table that joins while the relay is stopped has
joined when it starts.
"""

import json
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from bwtui.durable import write_durably
from bwtui.errors import BwtuiError, RefusedError, StateFailed
from bwtui.model.backfill import BackfillRequest
from bwtui.relay.backfill.store import Store
from bwtui.relay.report import Report
from bwtui.settings import RelaySettings
from bwtui.source.catalog import TableFilter, TableInfo, list_tables
from bwtui.source.connection import Connection, query
from bwtui.source.publication import published_tables

_SECONDS = 5.0
# Unlogged tables too, which may become logged ones.
_SEEN_SQL = """
select c.oid from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
 where c.relkind in ('r', 'p') and c.relpersistence <> 't'
   and n.nspname not in ('pg_catalog', 'information_schema') and n.nspname !~ '^pg_(toast|temp)'
"""
_LISTED_SQL = """
select r.prrelid::oid, array_agg(r.oid::bigint order by r.oid)
  from pg_catalog.pg_publication_rel r join pg_catalog.pg_publication p on p.oid = r.prpubid
 where p.pubname = any(%s) group by 1
"""

#: Table's oid → its name, and its places in lists of publications.
_Places = dict[int, list[str]]


class Joined:
    """Looks for them now and then; the sampler's thread owns it."""

    def __init__(
        self, path: Path, identity: Collection[str], settings: RelaySettings, report: Report
    ) -> None:
        """``path`` is where what was seen is kept; ``identity`` names server, database and slot."""
        self._path = path
        self._identity = list(identity)
        self._settings = settings
        self._report = report
        self._filter = TableFilter(settings)
        #: Whether topics and tables are compared anyway: a heal that makes the publication lists them anew.
        self.is_compared: Callable[[], bool] = lambda: False
        #: When the last look began, when the last one that asked for all, and since when one is waited for.
        self._looked_at = self._asked_at = self._wanted_from = 0.0
        self._seen: set[int] | None = None
        self._places: _Places = {}
        #: What a snapshot has copied of late, until that is kept.
        self._copied: frozenset[str] = frozenset()
        self._load()

    def copied(self, connection: Connection, tables: Collection[str]) -> None:
        """Take that a snapshot has copied just ``tables``; what was seen before counts no more.

        Raises psycopg2.Error.
        """
        self._copied = frozenset(tables)
        self._seen, self._places = _seen(connection), {}

    def begin(self, connection: Connection, publications: tuple[str, ...], store: Store) -> None:
        """Take what a snapshot has copied, or is to put into the stream; and look at once.

        One that gets another name from now on is found under it at the next look. Raises psycopg2.Error.
        """
        tables = self._report.tables.items()
        self.copied(connection, [name for name, one in tables if one.snapshot_state != "none"])
        self.look(connection, publications, store)

    def look(self, connection: Connection, publications: tuple[str, ...], store: Store) -> None:
        """Look, if it is time to, and ask for the rows of what has joined. Raises psycopg2.Error."""
        now = time.monotonic()
        # Before a heal is through, since it may be sooner than the next look is due.
        is_wanted = self._looked_at < self._wanted_from or self.is_compared()
        pause = 0.0 if is_wanted else _SECONDS
        if not publications or (self._looked_at and now - self._looked_at < pause):
            return
        self._looked_at = now
        listed = dict(query(connection, _LISTED_SQL, list(publications)))
        names = {(one.namespace, one.name) for one in published_tables(connection, publications)}
        seen = _seen(connection)
        tables = [
            table
            for table in list_tables(connection, partitions=True)
            if (table.namespace, table.name) in names and self._filter(table)
        ]
        places = {table.oid: [table.qualified_name, *map(str, listed.get(table.oid, ()))] for table in tables}
        joined = [table for table in tables if self._has_joined(table, places[table.oid])]
        # Each of them, whatever becomes of the others.
        is_whole = True
        for table in joined:
            if not self._ask(table, store):
                is_whole = False
                # As it was before: it has joined at the next look, too.
                places.pop(table.oid)
                if (before := self._places.get(table.oid)) is not None:
                    places[table.oid] = before
                else:
                    seen.add(table.oid)
        self._keep(seen, places)
        if is_whole:
            self._asked_at = now

    def has_looked(self, moment: float) -> bool:
        """Return whether a look that began since ``moment`` asked for all that has joined; else one is due.

        For the main thread; ``moment`` is a time of `time.monotonic`.
        """
        self._wanted_from = max(self._wanted_from, moment)
        return self._asked_at >= moment

    def _has_joined(self, table: TableInfo, places: list[str]) -> bool:
        if self._seen is None or table.qualified_name in self._copied:
            # Of a relay from before anything was kept all are taken to be in their topics.
            return False
        before = self._places.get(table.oid)
        if before is not None:
            # Under another name it has another topic. In the one that it had, rows without a key would
            # stand twice.
            is_renamed = places[0] != before[0]
            is_listed_anew = table.has_key and bool(set(places) - set(before))
            return is_renamed or (is_listed_anew and not self.is_compared())
        return len(places) > 1 or table.oid in self._seen

    def _ask(self, table: TableInfo, store: Store) -> bool:
        """Ask for a table's rows; return whether that stands on the disk, or need not.

        While it is under way for an earlier joining, what was written in between may lie behind it.
        """
        name = table.qualified_name
        if not table.has_key and not self._settings.allow_unkeyed:
            return True
        try:
            store.submit(BackfillRequest(name, reason="joined", unkeyed=not table.has_key))
        except RefusedError:
            return False
        except BwtuiError as error:
            self._report.error("backfill", error, name)
            return False
        says = f"table {name} has joined the publication: its rows from before are put into the stream"
        hint = "'bwtui snapshot --status' says how far that is, and its --cancel ends it"
        self._report.error("notice", RefusedError(says, hint), name)
        return True

    def _keep(self, seen: set[int], places: _Places) -> None:
        if seen == self._seen and places == self._places:
            return
        content = {"identity": self._identity, "seen": sorted(seen), "places": list(places.items())}
        try:
            write_durably(self._path, json.dumps(content))
        except OSError as error:
            # It is written at the next look; until then a restart may ask for a table once more.
            hint = "free disk space, or set BWTUI_STATE_HOME to a folder that can be written"
            says = f"which tables have joined can't be kept in {self._path}: {error.strerror}"
            self._report.error("state", StateFailed(says, hint))
            return
        self._seen, self._places, self._copied = seen, places, frozenset()

    def _load(self) -> None:
        try:
            content: Any = json.loads(self._path.read_text())
            if content["identity"] != self._identity:
                return
            places = {int(oid): list(map(str, at)) for oid, at in content["places"]}
            self._seen, self._places = {int(oid) for oid in content["seen"]}, places
        except FileNotFoundError:
            return
        except (OSError, ValueError, TypeError, KeyError):
            # Nothing is known then, as of a relay from before anything was kept.
            self._seen, self._places = None, {}


def _seen(connection: Connection) -> set[int]:
    return {int(oid) for (oid,) in query(connection, _SEEN_SQL)}
