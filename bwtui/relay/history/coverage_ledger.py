"""The coverage ledger: the facts that prove that each topic is complete, stored durably.

PostgreSQL's stream does not report changes of publications, and Kafka does not report changes of topics. So
the relay records the facts of each table (`bwtui.source.table_facts`) and compares them at each start, in
each session and every few seconds. A difference that the stream does not explain makes the table "not proven"
from the last LSN at which the facts were as recorded. Only a clean comparison of the table with its topic
ends that, and only one that began after the difference was detected.

The facts of a first snapshot are those of its exported snapshot, so that no change in between is missed.
"""

import json
import re
import secrets
import shlex
import threading
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from bwtui.durable_files import private_parent, write_durably
from bwtui.encode.names import topic_name
from bwtui.encode.registry import url_without_user
from bwtui.errors import RefusedError, StateFailed
from bwtui.file_errors import file_failed
from bwtui.kafka.client import producer_config
from bwtui.model.backfill_texts import snapshot_command
from bwtui.model.lsn import format_lsn
from bwtui.model.proof import UnprovenTable
from bwtui.model.sql import quote_identifier
from bwtui.pgoutput.messages import Relation
from bwtui.relay.state.run_state import RunState
from bwtui.settings import RelaySettings
from bwtui.source.catalog import TableFilter
from bwtui.source.connection import CURRENT_LSN, Connection, query
from bwtui.source.replica_identity import use_deferrable_key
from bwtui.source.sql_hints import format_sql
from bwtui.source.table_facts import (
    FORMER_KEY,
    OPERATIONS,
    Facts,
    LeafPartition,
    TableFacts,
    closed,
    differs_in_key,
    may_have_had_rows,
    moved_tables,
    read_facts,
)
from bwtui.state_folder import ledger_path

_SECONDS = 5.0
#: Interval for writing the LSN of the last check: the next start then knows since when nothing was checked.
_WRITE_SECONDS = 30.0
#: After this many seconds without a successful check no table counts as proven.
_BLIND_SECONDS = 20.0
#: The subjects of checks.
CATALOG, TOPICS, ENDS = "PostgreSQL's catalog", "Kafka's list of topics", "ends of topics"
_MOVED = "had partitions attached or detached: PostgreSQL may have sent rows under a former name"
#: The command that finds why checks fail.
Identity = tuple[str, str, str]

_LSN_SQL = f"select ({CURRENT_LSN}::pg_lsn - '0/0')::bigint"
_UNPUBLISHED_SQL = """
select c.oid::bigint, n.nspname, c.relname, c.relreplident = 'f' or exists (
         select from pg_catalog.pg_index i where i.indrelid = c.oid
            and case c.relreplident when 'i' then i.indisreplident
                     when 'd' then i.indisprimary and i.indimmediate else false end),
       (select i.indimmediate from pg_catalog.pg_index i where i.indrelid = c.oid and i.indisprimary)
  from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace where c.oid = any(%s)
"""
# PostgreSQL would reject an UPDATE of a partition without a replica identity if its root was published.
_BARE_LEAVES_SQL = """
with recursive tree (root, oid) as (
       select i.inhparent, i.inhrelid from pg_catalog.pg_inherits i where i.inhparent = any(%s)
        union select tree.root, i.inhrelid from tree join pg_catalog.pg_inherits i on i.inhparent = tree.oid)
select tree.root::bigint, n.nspname || '.' || c.relname, format('%%I.%%I', n.nspname, c.relname),
       exists (select from pg_catalog.pg_index i
                where i.indrelid = c.oid and i.indisprimary and i.indimmediate)
  from tree join pg_catalog.pg_class c using (oid) join pg_catalog.pg_namespace n on n.oid = c.relnamespace
 where c.relkind = 'r' and c.relispartition and c.relreplident <> 'f' and not exists (
       select from pg_catalog.pg_index i where i.indrelid = c.oid
          and case c.relreplident when 'i' then i.indisreplident
                   when 'd' then i.indisprimary and i.indimmediate else false end)
 order by 1, 3 desc
"""
#: The remedy for a table without a key whose topic has records that are not its rows.
_EXTRA = (
    "; without a key no comparison finds these records: delete the topic once no other producer writes "
    "to it, then send the table again"
)
#: Separates the first reason from the newest.
_ALSO = "; it "
_NUMBERS = re.compile(r"\d[\d,]*")
#: Settings that determine the topic and partition of a row, and the bytes of its key and value.
_FORM = ("--output-format", "--topic-prefix", "--namespace", "--schema-registry", "-C partitioner")


@dataclass(frozen=True, slots=True)
class CoverageEntry:
    """Why a table is not proven."""

    since_lsn: int
    reason: str
    #: The number of the event in this run: a comparison that began before it does not end the entry.
    seen: int
    #: True if the cause persists, so that a comparison proves nothing yet.
    lasts: bool = False
    #: The command that a person has to run; "" while the relay compares the table itself.
    command: str = ""
    #: True if its topic has records that are not its rows; without a key no comparison finds these.
    has_extra: bool = False
    #: True if the relay leaves it to a person, even after a restart: the rows were cancelled or refused.
    by_hand: bool = False
    #: What the person has to do before the command.
    advice: str = ""


class SentSchemas(NamedTuple):
    """How the rows of a table are sent."""

    key_columns: tuple[str, ...]
    #: Schema ids; None without a registry, the key's also without a key.
    key_id: int | None
    value_id: int | None


class Coverage:
    """The ledger as the relay's components use it; this class keeps nothing, for relays without topics."""

    def mark(
        self,
        table: str,
        reason: str,
        subject: str = "",
        *,
        has_extra: bool | None = None,
        by_hand: bool = False,
        advice: str = "",
    ) -> bool:
        """Record that ``table`` is not proven: it ``reason``. Any thread may call. Raises StateFailed.

        ``subject``: what was checked, see `seen`; the check before found no difference. ``has_extra``: its
        topic has records that are not its rows, or is new and has none; None: as before. ``by_hand``: the
        relay does not compare the table on its own, until `resume`; ``advice``: what has to be done first.
        Returns whether that is recorded.
        """
        return False

    def resume(self, table: str) -> None:
        """Let the relay compare a table that was left to a person: all of its rows were sent.

        Raises StateFailed.
        """

    def mark_all(
        self,
        reason: str,
        tables: Collection[str] | None = None,
        *,
        has_extra: bool | None = None,
        since: int = 0,
    ) -> None:
        """Record the same for ``tables``; None: for every table. Raises StateFailed.

        ``since``: the LSN up to which they are proven; 0: as of the last check.
        """

    def gap(self, table: str, reason: str, command: str = "") -> bool:
        """Record that ``table`` can't be proven before ``command`` was run: it ``reason``; "": it can again.

        The cause is in its topic. Returns whether this is new. Raises StateFailed.
        """
        return False

    def record_schemas(self, sent: Mapping[str, SentSchemas]) -> None:
        """Record how the next rows of tables are sent, and mark those with a new key. Raises StateFailed."""

    def schema_digests(self) -> dict[int, str]:
        """Return the ids of all schemas that rows were sent with, and their digests; "" if unknown."""
        return {}

    def record_digests(self, digests: Mapping[int, str]) -> None:
        """Record the digests of schemas. Raises StateFailed."""

    def lose_schema(self, number: int, problem: str, *, is_reused: bool) -> None:
        """Mark the tables with rows under schema id ``number``: it ``problem``. Raises StateFailed.

        ``is_reused``: it identifies a different schema, which may be a table's own by now.
        """

    def is_keyed(self, table: str) -> bool:
        """Return whether a table had a key at the last check."""
        return False

    def expect(self, files: Mapping[str, Collection[str]]) -> None:
        """Record which files say what topics lack, with their tables; no table means all. Raises StateFailed.

        The paths are relative to the state folder.
        """

    def begin(self, facts: Facts, lsn: int, *, is_whole: bool = True) -> None:
        """Start from scratch with the facts of a new slot, as of ``lsn``. Raises StateFailed.

        ``is_whole``: a first snapshot sends the existing rows.
        """

    @property
    def is_empty(self) -> bool:
        """Return whether nothing is recorded for this slot."""
        return True

    @property
    def is_comparing(self) -> bool:
        """Return whether tables still have to be compared; a run that ends on its own waits for that."""
        return False

    def seen(self, subject: str) -> None:
        """Record that a check of ``subject`` ended, after `mark` was called with its findings."""

    def unseen(self, subject: str, why: str) -> None:
        """Record that a check of ``subject`` failed, and why."""

    def sends(self, relation: Relation) -> None:
        """Record the name and the key under which rows are about to be sent. Raises StateFailed."""

    def announces(self, partition: Relation, root: Relation) -> None:
        """Record that rows of ``partition`` are about to be sent as those of ``root``. Raises StateFailed."""

    def withdraw(self, tables: Collection[int]) -> None:
        """Forget announcements among ``tables``, by oid, which were truncated together."""

    def is_stale(self, confirmed: int) -> bool:
        """Return whether the stream's session has to end, now that ``confirmed`` is reached.

        Its server may send rows under the former names of partitions. Raises StateFailed.
        """
        return False


class CoverageLedger(Coverage):
    """The ledger of one slot, in the relay's state folder; any thread may call."""

    def __init__(self, folder: Path, identity: Identity, settings: RelaySettings, report: RunState) -> None:
        """``identity``: the server's system identifier, the database and the slot.

        Raises StateFailed for a file that can't be read: a table that is not proven must not be forgotten.
        """
        self._path = ledger_path(folder, identity[2])
        self._identity = identity
        self._settings = settings
        self._report = report
        self._lock = threading.RLock()
        #: None: nothing is recorded yet.
        self._facts: Facts | None = None
        #: Operations published when the table was first recorded, and since.
        self._operations: dict[str, str] = {}
        self._entries: dict[str, CoverageEntry] = {}
        #: Tables whose rows were all sent while the relay may have been comparing them.
        self._resumed: set[str] = set()
        #: By table: why its topic can't equal it, and the command that fixes this.
        self._topic_gaps: dict[str, tuple[str, str]] = {}
        self._form: dict[str, str] = {}
        #: Orders detected differences and starts of comparisons; the clock may be set back.
        self._run, self._number = secrets.token_hex(8), 0
        #: The newest LSN at which the facts were as recorded.
        self._lsn = 0
        #: By other subject: the LSNs as of the check before the last one, and of the last one.
        self._lsns: dict[str, tuple[int, int]] = {}
        #: True if the topics hold all rows: not if the first snapshot was skipped.
        self._is_whole = True
        #: Tables with partitions that were attached or detached while a session may use the former names,
        #: each with an LSN after the change.
        self._moved: dict[str, int] = {}
        #: Partitions of which rows were sent, each with its root, until the next check: new ones, and those
        #: with another key than the root, which have True here.
        self._announced: dict[tuple[int, int], bool] = {}
        #: Tables that were sent before a check recorded them, each with its first oid.
        self._sent: dict[str, int] = {}
        #: The same for this run, until the next check.
        self._newly_sent: dict[str, int] = {}
        #: Why nothing is known of the topics' past; a new table may then have a topic with unknown records.
        self._distrusted = ""
        self._files: dict[str, list[str]] = {}
        #: By table: its key columns and key schema id, and the digests of all schema ids of its rows.
        self._keys: dict[str, tuple[tuple[str, ...], int | None]] = {}
        self._schemas: dict[str, dict[int, str]] = {}
        #: True if there is no file, or only one of another slot.
        self.is_missing = True
        self._checked_at = self._written_at = 0.0
        #: Time of the last successful check by subject, by ``time.monotonic`` and in Unix seconds.
        self._last_checks: dict[str, tuple[float, float]] = defaultdict(
            lambda: (time.monotonic(), time.time())
        )
        #: By subject: why checks have failed for long.
        self._failed_checks: dict[str, str] = {}
        self._load()
        self._publish()

    # -- at a start ----------------------------------------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        return self._facts is None

    def check_settings(self) -> None:
        """Refuse settings under which the slot's rows would go to other topics or be encoded differently.

        Raises RefusedError.
        """
        now = _form(self._settings)
        changed = [name for name in _FORM if name in self._form and self._form[name] != now[name]]
        if not changed:
            self._form = now
            return
        slot = self._identity[2]
        if self._settings.accept_settings:
            names = ", ".join(changed)
            self._form = now
            self.mark_all(f"was sent with a different {names} before: earlier rows keep their former form")
            return
        differences = "; ".join(
            f"{n} was {self._form[n] or 'empty'} and is {now[n] or 'empty'} now" for n in changed
        )
        raise RefusedError(
            f"slot {slot} was relayed with different settings: {differences}",
            f"start with the former settings; to change them on purpose, run "
            f"'{self._settings.drop_command}' "
            "and start again, which sends every row in the new form; or start once with "
            "--accept-settings, which keeps earlier rows as they are and compares every table",
        )

    def begin(self, facts: Facts, lsn: int, *, is_whole: bool = True) -> None:
        with self._lock:
            self._facts, self._lsn, self._entries, self._topic_gaps = facts, lsn, {}, {}
            self._lsns = dict.fromkeys((TOPICS, ENDS), (lsn, lsn))
            self._operations = {name: one.published for name, one in facts.items()}
            self._moved, self._files, self._announced, self._sent = {}, {}, {}, {}
            self._form, self._is_whole, self._distrusted = _form(self._settings), is_whole, ""
            self._checked_at = 0.0
            self._write()
            self._publish()

    @property
    def is_comparing(self) -> bool:
        return self._is_comparing

    def hurry(self) -> None:
        """Check at the next opportunity, because a session has begun."""
        self._checked_at = 0.0
        with self._lock:
            # The time without a session does not count as failed checks.
            self._last_checks.pop(CATALOG, None)

    @property
    def has_checked(self) -> bool:
        """Return whether there was a check in this session."""
        return bool(self._checked_at)

    @property
    def is_blind(self) -> bool:
        """Return whether checks have failed for long."""
        return bool(self._failed_checks)

    def seen(self, subject: str) -> None:
        with self._lock:
            self._last_checks[subject] = time.monotonic(), time.time()
            # The LSN of the previous check: this one may have begun before the newest LSN was taken.
            self._lsns[subject] = self._lsns[subject][1] if subject in self._lsns else self._lsn, self._lsn
            if self._failed_checks.pop(subject, None) is not None:
                self._publish()

    def unseen(self, subject: str, why: str) -> None:
        with self._lock:
            last, since = self._last_checks[subject]
            if time.monotonic() - last < _BLIND_SECONDS:
                return
            moment = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(since))
            self._failed_checks[subject] = (
                f"could not be checked since {moment}: {subject} can't be read: {why}"
            )
            self._publish()

    def distrust(self, reason: str) -> None:
        """Record that nothing is known of the topics: every table ``reason``. Raises StateFailed."""
        with self._lock:
            self._is_whole, self._distrusted = False, reason
            self.mark_all(reason)

    def expect(self, files: Mapping[str, Collection[str]]) -> None:
        now = {path: list(tables) for path, tables in files.items()}
        with self._lock:
            if now != self._files:
                self._files = now
                self._write()

    def check_files(self) -> None:
        """Mark the tables of expected files that are missing. Raises StateFailed."""
        folder = self._path.parent
        with self._lock:
            for path, tables in self._files.items():
                if not (folder / path).exists():
                    recorded = [name for name in tables if name in (self._facts or {})]
                    reason = f"may lack rows: {folder / path} is missing, which says what topics lack"
                    self.mark_all(reason, recorded if tables else None)

    # -- the checks ----------------------------------------------------------------------------------------

    def check_catalog(
        self, connection: Connection, publications: Collection[str], *, at_once: bool = False
    ) -> None:
        """Compare the catalog with the recorded facts, if it is due. Raises psycopg2.Error, StateFailed."""
        now = time.monotonic()
        if not publications or (not at_once and self._checked_at and now - self._checked_at < _SECONDS):
            return
        # Get the LSN first: a change between the two queries then gets an LSN that is too old, never too new.
        lsn = int(query(connection, _LSN_SQL)[0][0])
        # Partitions that the stream announces from now on may be newer than the facts.
        announced, sent = dict(self._announced), dict(self._newly_sent)
        facts = read_facts(connection, publications, self._settings)
        moved = self._find_moved(connection, facts)
        self._keep_unpublished(connection, facts)
        filled = self._filled(connection, facts)
        with self._lock:
            self._checked_at = now
            self.seen(CATALOG)
            self._compare(facts, filled)
            self._compare_announced(facts, announced)
            # A name that was sent before the catalog was read, and is not in it, was temporary.
            self._report_renamed(facts, sent)
            self._newly_sent = {name: oid for name, oid in self._newly_sent.items() if name not in sent}
            for name in moved.keys() & facts.keys():
                if facts[name].selected:
                    self._moved[name] = moved[name]
                    self._add(name, _MOVED)
            self._lsn = max(self._lsn, lsn)
            if self._facts != facts or announced or now - self._written_at > _WRITE_SECONDS:
                self._facts = facts
                self._write()
            self._publish()

    def _find_moved(self, connection: Connection, facts: Facts) -> dict[str, int]:
        """Return tables whose partitions moved, with a later LSN, if the session may not notice.

        Before PostgreSQL 15 pgoutput caches the ancestors of a relation that it has sent rows of until a
        publication changes, or the session ends (rel_sync_cache_relation_cb).
        """
        if self._facts is None or connection.server_version >= 150000:
            return {}
        names = moved_tables(self._facts, facts)
        lsn = int(query(connection, _LSN_SQL)[0][0]) if names else 0
        return dict.fromkeys(names, lsn)

    def _keep_unpublished(self, connection: Connection, facts: Facts) -> None:
        """Add the recorded tables that no publication includes any more, and that still exist."""
        # A table that was attached to a published root is sent under the root's name.
        leaves = {int(oid) for one in facts.values() for oid in one.leaves}
        recorded = (self._facts or {}).values()
        missing = {
            one.oid: one
            for one in recorded
            if one.name not in facts
            and one.oid not in leaves
            # The same for an attached table that is partitioned itself: its partitions are the root's now.
            and not (one.leaves and leaves.issuperset(map(int, one.leaves)))
        }
        chosen, remedies = TableFilter(self._settings), _remedies(connection, missing, facts)
        for oid, namespace, name, has_identity, immediate in query(connection, _UNPUBLISHED_SQL, [*missing]):
            former = missing[oid]
            if former.name == f"{namespace}.{name}":
                selected, key = chosen.passes(namespace, name), former.key if has_identity else "n "
                now = replace(former, selected=selected, publications={}, entries={}, key=key)
                statement = ""
                if former.columns and not has_identity and immediate is not None:
                    statement = f"ALTER TABLE {former.quoted} REPLICA IDENTITY DEFAULT"
                    if not immediate:
                        statement = use_deferrable_key(connection, namespace, name)
                outside, remedy = remedies.get(oid, ("", statement))
                facts[former.name] = replace(now, outside=outside, remedy=remedy)

    def _filled(self, connection: Connection, facts: Facts) -> list[tuple[str, LeafPartition]]:
        """Return new partitions that may have held rows when they were attached."""
        return [
            (name, leaf)
            for name, now in facts.items()
            if (before := (self._facts or {}).get(name)) is not None and before.oid == now.oid
            for oid, leaf in now.leaves.items()
            if oid not in before.leaves
            and may_have_had_rows(
                connection, leaf, [link for one in before.leaves.values() for link in one.attached.split()]
            )
        ]

    def _compare(self, facts: Facts, filled: list[tuple[str, LeafPartition]]) -> None:
        before = self._facts or {}
        for name in self._entries.keys() - before.keys() - facts.keys():
            # The table was dropped before it was recorded.
            del self._entries[name]
        self._report_renamed(facts, {name: one.oid for name, one in before.items()})
        for name, former in before.items():
            now = facts.get(name)
            if now is None or not self._has_topic(now):
                # A table that was dropped, or is not selected, has nothing to equal.
                self._entries.pop(name, None)
                self._topic_gaps.pop(name, None)
                continue
            for reason in now.changes_since(former):
                self._add(name, reason)
            if now.oid == former.oid:
                # A column that is dropped may be added again after the next check.
                there = now.numbers.values()
                dropped = {column: one for column, one in former.numbers.items() if one not in there}
                facts[name] = replace(now, numbers={**dropped, **now.numbers})
        for name, now in facts.items():
            if not self._has_topic(now) or name in before:
                continue
            if name in self._operations or self._sent.get(name, now.oid) != now.oid:
                self._add(name, "was relayed earlier under this name: its topic may differ")
            elif self._distrusted:
                self._add(name, self._distrusted)
        self._sent = {name: oid for name, oid in self._sent.items() if name not in facts}
        for name, leaf in filled:
            if facts[name].selected:
                self._add(name, f"got partition {leaf.name} that already had rows: no stream contains them")
        for name, now in facts.items():
            first = self._operations.get(name, "")
            # An operation that was published once counts from then on.
            first = self._operations[name] = ", ".join(
                one for one in OPERATIONS if one in first or one in now.published
            )
            gap, statement = next(now.gaps(first), ("", "")) if now.selected else ("", "")
            if gap:
                self._take_gap(name, gap, self._statement(now, statement))
            else:
                self._take_gap(name, *self._topic_gaps.get(name, ("", "")))

    def _has_topic(self, table: TableFacts) -> bool:
        """Return whether a comparison can select ``table``: a table that was always unlogged has no topic."""
        return table.selected and (table.persistence != "u" or bool(self._operations.get(table.name)))

    def _comparable(self) -> list[str]:
        return [name for name, one in (self._facts or {}).items() if self._has_topic(one)]

    def _compare_announced(self, facts: Facts, announced: Mapping[tuple[int, int], bool]) -> None:
        """Mark the roots of announced partitions that no longer belong to them."""
        tables = {one.oid: one for one in facts.values()}
        for (oid, root), has_other_key in announced.items():
            self._announced.pop((oid, root), None)
            now, own = tables.get(root), tables.get(oid)
            if now is None or not self._has_topic(now):
                continue
            if has_other_key:
                self._add(now.name, "temporarily had a partition with a different replica identity")
            if str(oid) in now.leaves:
                continue
            self._add(now.name, "temporarily had another partition: its topic may contain that one's rows")
            if own is not None and self._has_topic(own):
                self._add(own.name, f"temporarily was a partition of {now.name}: its topic lacks changes")

    def _report_renamed(self, facts: Facts, formers: Mapping[str, int]) -> None:
        """Report topics that no comparison checks: those of renamed tables, and of new partitions."""
        roots = {int(oid): name for name, one in facts.items() for oid in one.leaves}
        names = roots | {one.oid: name for name, one in facts.items()}
        chosen = TableFilter(self._settings)
        for former, oid in formers.items():
            name = names.get(oid, former)
            is_sent = former.count(".") == 1 and chosen.passes(*former.split("."))
            if not is_sent or former in facts or name == former:
                continue
            topic = topic_name(self._settings.topic_prefix, *former.split("."))
            is_part = roots.get(oid) == name
            how = "is sent as a part of" if is_part else "was renamed to"
            text = (
                f"table {former} {how} {name}: topic {topic} keeps the earlier rows and receives no new ones"
            )
            if former in self._report.tables:
                self._report.tables[former].note(f"{how} {name}: receives no new rows")
            hint = "delete that topic once its consumers have switched to the table's new topic"
            self._report.error("notice", RefusedError(text, hint), name)

    def _take_gap(self, name: str, gap: str, command: str, since: int = 0) -> None:
        entry = self._entries.get(name)
        if gap and (entry is None or not entry.lasts or entry.reason != gap):
            self._add(name, gap, lasts=True, command=command, since=since)
        elif not gap and entry is not None and entry.lasts:
            # From now on a comparison can prove the table.
            self._number += 1
            reason = closed(entry.reason, format_lsn(self._lsn))
            entry = replace(entry, reason=reason, command=self._command(name, by_hand=entry.by_hand))
            self._entries[name] = replace(entry, seen=self._number, lasts=False)

    def gap(self, table: str, reason: str, command: str = "") -> bool:
        with self._lock:
            former = self._topic_gaps.pop(table, None)
            if reason:
                self._topic_gaps[table] = reason, command
            if self._topic_gaps.get(table) == former:
                return False
            entry = self._entries.get(table)
            if entry is None or not entry.lasts or (former is not None and entry.reason == former[0]):
                # Another gap of the table has to be closed first.
                self._take_gap(table, reason, command, self._lsns.get(TOPICS, (0, 0))[0])
            self._write()
            self._publish()
            return True

    def sends(self, relation: Relation) -> None:
        oid, table = relation.oid, relation.qualified_name
        with self._lock:
            facts = self._facts or {}
            recorded = facts.get(table)
            former = [one.name for one in facts.values() if one.oid == oid and one.name != table]
            if self._facts is not None and recorded is None and table not in self._sent:
                self._sent[table] = self._newly_sent[table] = oid
                self._write()
        for name in former:
            self.mark(
                name, f"was renamed to {table}: changes written under that name are in a different topic"
            )
        if recorded is not None and recorded.oid != oid:
            self.mark(table, "was dropped and created again: its topic may keep rows of the former table")
        elif recorded is not None and differs_in_key(relation, recorded.columns):
            self.mark(table, "temporarily had a different key: its topic may contain rows under that key")

    def announces(self, partition: Relation, root: Relation) -> None:
        columns = [column.name for column in root.columns if column.is_key]
        has_other_key = root.replica_identity not in "fn" and differs_in_key(partition, columns)
        pair = partition.oid, root.oid
        with self._lock:
            facts = (self._facts or {}).values()
            if not has_other_key and any(
                one.oid == root.oid and (str(partition.oid) in one.leaves or not one.selected)
                for one in facts
            ):
                return
            if self._announced.get(pair, -1) < has_other_key:
                self._announced[pair] = has_other_key
                self._write()

    def withdraw(self, tables: Collection[int]) -> None:
        with self._lock:
            self._announced = {
                pair: one for pair, one in self._announced.items() if not set(pair) <= set(tables)
            }

    def record_schemas(self, sent: Mapping[str, SentSchemas]) -> None:
        with self._lock:
            is_new = False
            for table, (columns, key_id, value_id) in sent.items():
                schemas = self._schemas.setdefault(table, {})
                numbers = [number for number in (key_id, value_id) if number is not None]
                former = self._keys.get(table)
                is_new |= former != (columns, key_id) or not schemas.keys() >= set(numbers)
                self._schemas[table] = dict.fromkeys(numbers, "") | schemas
                self._keys[table] = columns, key_id
                if former not in (None, self._keys[table]):
                    self._add(table, f"has a new key: {FORMER_KEY}")
            if is_new:
                self._write()
                self._publish()

    def schema_digests(self) -> dict[int, str]:
        with self._lock:
            every = [pair for schemas in self._schemas.values() for pair in schemas.items()]
            # A table that has just begun to use a schema has no digest of it yet.
            return dict(sorted(every, key=lambda pair: pair[1]))

    def record_digests(self, digests: Mapping[int, str]) -> None:
        with self._lock:
            for schemas in self._schemas.values():
                schemas.update({number: digests[number] for number in schemas.keys() & digests.keys()})
            self._write()

    def lose_schema(self, number: int, problem: str, *, is_reused: bool) -> None:
        with self._lock:
            tables = [table for table, schemas in self._schemas.items() if number in schemas]
            for table in tables:
                if is_reused:
                    self._schemas[table][number] = ""
                else:
                    del self._schemas[table][number]
                self._add(table, f"has rows under schema id {number}, which {problem}")
            self._write()
            self._publish()

    def is_stale(self, confirmed: int) -> bool:
        if not self._moved:
            return False
        with self._lock:
            if confirmed < max(self._moved.values()):
                return False
            names, self._moved = self._moved.keys() & (self._facts or {}).keys(), {}
            # Only comparisons that begin from now on prove them.
            self.mark_all(_MOVED, names)
            self._write()
        return True

    # -- entries -------------------------------------------------------------------------------------------

    def mark(
        self,
        table: str,
        reason: str,
        subject: str = "",
        *,
        has_extra: bool | None = None,
        by_hand: bool = False,
        advice: str = "",
    ) -> bool:
        with self._lock:
            since = self._lsns[subject][0] if subject in self._lsns else 0
            self.mark_all(reason, [table], has_extra=has_extra, since=since)
            if by_hand:
                self._entries[table] = replace(self._entries[table], advice=advice)
                self._leave(table, by_hand=True)
        return True

    def resume(self, table: str) -> None:
        with self._lock:
            entry = self._entries.get(table)
            if entry is not None and not (entry.by_hand or entry.command):
                # A comparison that is under way saw the topic without these rows.
                self._resumed.add(table)
            elif entry is not None and (entry.by_hand or not entry.has_extra or self.is_keyed(table)):
                self._leave(table, by_hand=False)

    def _leave(self, table: str, *, by_hand: bool) -> None:
        """Leave an entry to a person, or to the relay."""
        entry = replace(self._entries[table], by_hand=by_hand)
        if not entry.lasts:
            entry = replace(entry, command=self._command(table, by_hand=by_hand))
        self._entries[table] = entry
        self._write()
        self._publish()

    def mark_all(
        self,
        reason: str,
        tables: Collection[str] | None = None,
        *,
        has_extra: bool | None = None,
        since: int = 0,
    ) -> None:
        with self._lock:
            names = tables
            if names is None:
                names = self._comparable() or list(self._report.tables)
            is_new = tables is None or has_extra is not None or not self._entries.keys() >= set(names)
            for name in names:
                self._add(name, reason, has_extra=has_extra, since=since)
            self._publish()
            if is_new:
                # Entries that are on disk already are compared at the next start in any case.
                self._write()

    def _add(
        self,
        table: str,
        reason: str,
        *,
        lasts: bool = False,
        command: str = "",
        has_extra: bool | None = None,
        since: int = 0,
    ) -> None:
        before = self._entries.get(table)
        since = before.since_lsn if before is not None else since or self._lsn or self._report.confirmed_lsn
        if before is not None and before.lasts and not lasts:
            # A persisting cause has to be removed first.
            lasts, reason, command = True, before.reason, before.command
        elif before is not None and not lasts:
            # The difference detected first is more often the cause than later ones; name both.
            first, _, _ = before.reason.partition(_ALSO)
            if _NUMBERS.sub("", first) == _NUMBERS.sub("", reason):
                pass
            elif first.endswith(FORMER_KEY) and reason.endswith(FORMER_KEY):
                # Both the session and the catalog report it.
                reason = first
            else:
                reason = f"{first}{_ALSO}{reason}"
        if has_extra is None:
            has_extra = before is not None and before.has_extra
        by_hand, advice = (before.by_hand, before.advice) if before is not None else (False, "")
        command = command or self._command(table, by_hand=by_hand)
        self._number += 1
        self._entries[table] = CoverageEntry(
            since, reason, self._number, lasts, command, has_extra, by_hand, advice
        )

    def _command(self, table: str, *, by_hand: bool) -> str:
        """Return the command that a person has to run; "" if the relay compares the table itself."""
        if self._is_whole and self._settings.on_gap == "close" and not by_hand:
            return ""
        pattern = shlex.quote(re.escape(table))
        return f"bwtui repair --relay {self._settings.relay_name} --table {pattern}"

    def _statement(self, table: TableFacts, statement: str) -> str:
        """Return the statement that closes a gap."""
        if statement:
            return format_sql(statement)
        former = (self._facts or {}).get(table.name)
        if former is not None and former.columns and not table.columns:
            # Without its key the application could not update the table in the publication.
            columns = ", ".join(map(quote_identifier, former.columns))
            return format_sql(f"ALTER TABLE {table.quoted} ADD PRIMARY KEY ({columns})")
        names = former.publications if former is not None else {}
        name = next(iter(names), self._settings.publication_name)
        return format_sql(f"ALTER PUBLICATION {quote_identifier(name)} ADD TABLE {table.quoted}")

    def record_unprovable(self, tables: Iterable[str], command: str, reason: str = "") -> None:
        """Record that comparing does not prove ``tables``, why, and the command that helps.

        Raises StateFailed.
        """
        with self._lock:
            for table in tables:
                if table in self._resumed:
                    self._resumed.discard(table)
                elif (entry := self._entries.get(table)) is not None:
                    self._entries[table] = replace(entry, command=command, reason=reason or entry.reason)
            self._write()
            self._publish()

    def moment(self) -> str:
        """Return the current moment, to pass to `proven` for a comparison that begins now."""
        with self._lock:
            return f"{self._run} {self._number}"

    def proven(self, tables: Collection[str], began: str) -> None:
        """Record a clean comparison of ``tables`` that began at that `moment`; it proves no later entries.

        Moments of other runs are ignored. Raises StateFailed.
        """
        run, _, number = began.partition(" ")
        if run != self._run:
            return
        with self._lock:
            self._resumed.difference_update(tables)
            for table in tables:
                entry = self._entries.get(table)
                if entry is None or entry.lasts or entry.seen > int(number):
                    continue
                if entry.has_extra and not self.is_keyed(table):
                    # A new table is compared again once it is recorded whether it has a key.
                    if table in (self._facts or {}):
                        self._entries[table] = self._with_extra(table, entry)
                else:
                    del self._entries[table]
            is_all = bool(self._distrusted) or set(self._comparable()).issubset(tables)
            if not self._entries and is_all:
                self._is_whole, self._distrusted = True, ""
            self._write()
            self._publish()

    def differ(self, tables: Collection[str]) -> None:
        """Record that an audit found ``tables`` different from their topics. Raises StateFailed."""
        with self._lock:
            # An entry has a cause, and possibly a command that a person has to run.
            proven = [name for name in tables if name in self._comparable() and name not in self._entries]
            if proven:
                self.mark_all("differs from its topic: an audit found anomalies", proven)

    def _with_extra(self, table: str, entry: CoverageEntry) -> CoverageEntry:
        reason = entry.reason
        if not reason.endswith(_EXTRA):
            reason += _EXTRA
        return replace(entry, reason=reason, command=snapshot_command([table], unkeyed=True))

    def is_keyed(self, table: str) -> bool:
        with self._lock:
            facts = (self._facts or {}).get(table)
            return facts is not None and bool(facts.columns)

    def to_compare(self, also: Collection[str] = ()) -> list[str]:
        """Return the tables that the relay may compare now; ``also`` adds tables left to a person."""
        with self._lock:
            return [
                name
                for name, one in self._entries.items()
                if not one.lasts and (not one.command or name in also)
            ]

    def _publish(self) -> None:
        self._is_comparing = bool(self.to_compare() or self._moved)
        proofs = {
            name: UnprovenTable(name, one.since_lsn, f"it {one.reason}", one.command, one.advice)
            for name, one in self._entries.items()
        }
        for name, facts in (self._facts or {}).items() if self._failed_checks else ():
            if self._has_topic(facts) and name not in proofs:
                # Catalog rows and topics have versions, so the next successful check proves the table.
                reason = f"it {'; it '.join(self._failed_checks.values())}"
                doctor = f"bwtui doctor --relay {self._settings.relay_name}"
                proofs[name] = UnprovenTable(name, self._lsn, reason, doctor)
        self._report.not_proven = tuple(proofs[name] for name in sorted(proofs))

    # -- the file ------------------------------------------------------------------------------------------

    def _write(self) -> None:
        content = {
            "of": self._identity,
            "facts": None if self._facts is None else [asdict(one) for one in self._facts.values()],
            "operations": self._operations,
            "not_proven": {name: asdict(entry) for name, entry in self._entries.items()},
            "topic_gaps": self._topic_gaps,
            "settings": self._form,
            "lsn": self._lsn,
            "lsns": {subject: since for subject, (since, _) in self._lsns.items()},
            "is_whole": self._is_whole,
            "distrusted": self._distrusted,
            "moved": self._moved,
            "announced": [[*pair, one] for pair, one in self._announced.items()],
            "sent": self._sent,
            "files": self._files,
            "keys": self._keys,
            "schemas": self._schemas,
        }
        try:
            private_parent(self._path)
            write_durably(self._path, json.dumps(content))
        except OSError as error:
            raise file_failed(f"the coverage ledger {self._path} can't be written", error) from error
        self._written_at = time.monotonic()

    def _load(self) -> None:
        try:
            data: dict[str, Any] = json.loads(self._path.read_text(encoding="utf-8"))
            if tuple(data["of"]) != self._identity:
                return
            self.is_missing, facts = False, data["facts"]
            if facts is not None:
                self._facts = {one["name"]: TableFacts.from_json(one) for one in facts}
            self._operations = dict(data["operations"])
            self._entries = {name: CoverageEntry(**entry) for name, entry in data["not_proven"].items()}
            self._topic_gaps = {
                name: (why, command) for name, (why, command) in data.get("topic_gaps", {}).items()
            }
            # Earlier versions wrote the options without their dashes, and no partitioner.
            self._form = {n if n in _FORM else f"--{n}": value for n, value in data["settings"].items()}
            self._lsn, self._is_whole = int(data["lsn"]), bool(data["is_whole"])
            self._distrusted = str(data.get("distrusted", ""))
            self._moved = dict(data.get("moved", {}))
            self._files = dict(data.get("files", {}))
            self._keys = {
                table: (tuple(columns), number) for table, (columns, number) in data.get("keys", {}).items()
            }
            self._schemas = {
                table: {int(number): str(digest) for number, digest in schemas.items()}
                for table, schemas in data.get("schemas", {}).items()
            }
            self._announced = {(oid, root): one for oid, root, one in data.get("announced", [])}
            self._sent = {name: int(oid) for name, oid in data.get("sent", {}).items()}
            lsns = {TOPICS: self._lsn, ENDS: self._lsn} | data.get("lsns", {})
            self._lsns = {subject: (int(since), int(since)) for subject, since in lsns.items()}
            for name, entry in self._entries.items():
                # A new run compares the tables that an earlier one could not prove.
                command = entry.command if entry.lasts else self._command(name, by_hand=entry.by_hand)
                self._entries[name] = replace(entry, seen=0, command=command)
        except FileNotFoundError:
            return
        except OSError as error:
            raise file_failed(f"the coverage ledger {self._path} can't be read", error) from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise StateFailed(
                f"the coverage ledger {self._path} can't be read: it records which tables are not proven",
                f"remove it, start the relay, and run 'bwtui verify --database --relay "
                f"{self._settings.relay_name}'",
            ) from error


def _remedies(
    connection: Connection, missing: Mapping[int, TableFacts], facts: Facts
) -> dict[int, tuple[str, str]]:
    """Return why partitioned tables are in no publication, and the statement that helps, by oid."""
    found = {}
    roots = [oid for oid in missing if missing[oid].leaves]
    for root, name, quoted, has_key in query(connection, _BARE_LEAVES_SQL, roots):
        why = (
            f"is not in the publication because of partition {name} without a replica identity: "
            "none of its changes are sent"
        )
        found[root] = why, f"ALTER TABLE {quoted} REPLICA IDENTITY {'DEFAULT' if has_key else 'FULL'}"
    published = {str(one.oid): one for one in facts.values()}
    for oid, former in missing.items():
        if by_leaf := [published[leaf] for leaf in former.leaves if leaf in published]:
            alter = f"ALTER PUBLICATION {quote_identifier(next(iter(by_leaf[0].publications)))}"
            why = f"is sent by partition: its changes are in other topics, such as that of {by_leaf[0].name}"
            found[oid] = why, f"{alter} SET (publish_via_partition_root = true)"
    return found


def _form(settings: RelaySettings) -> dict[str, str]:
    # Partitioners whose names end in _random place keys in the same way as those without.
    partitioner = str(producer_config(settings)["partitioner"]).lower().removesuffix("_random")
    url = url_without_user(settings.schema_registry)
    values = (settings.output_format, settings.topic_prefix, settings.namespace, url, partitioner)
    return dict(zip(_FORM, values, strict=True))
