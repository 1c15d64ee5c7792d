"""Export to SQL that rebuilds the tables: the recorded changes as statements, in commit order.

A row is found by its key, or by the whole old row if the table has no key and PostgreSQL sent the old row. A
change that SQL can't express becomes a comment with the reason.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import BinaryIO

from bwtui.model.lsn import format_lsn
from bwtui.model.sql import quote_identifier, quote_literal
from bwtui.pgoutput.messages import UNCHANGED, Field
from bwtui.recording.change import Change
from bwtui.recording.export.facts import NOTHING, ExportFacts, ExportGap, counted, listed
from bwtui.recording.export.jsonl import time_text
from bwtui.recording.export.sql_tables import Doubt, TableWriter, is_built_in, one_line, quoted_table
from bwtui.recording.export.writer import Writer
from bwtui.recording.query.rows import UnknownValue, sent_value
from bwtui.recording.reading.sent_keys import SentKeys

_HEAD = """\
-- Rebuilds tables from the recording {name}; made by bwtui recording export.
-- psql --set ON_ERROR_STOP=1 --file THIS database
SET client_encoding = 'UTF8';
SET datestyle = 'ISO, YMD';
SET intervalstyle = 'iso_8601';
SET timezone = 'UTC';
SET extra_float_digits = 1;
SET bytea_output = 'hex';
SET xmloption = 'content';
SET lc_monetary = 'C';
SET search_path = '';
-- Triggers and foreign keys have had their effects already. To switch them off takes a superuser.
DO $$ BEGIN
  PERFORM pg_catalog.set_config('session_replication_role', 'replica', false);
EXCEPTION WHEN insufficient_privilege THEN
  RAISE WARNING 'not a superuser: triggers and foreign keys stay on';
END $$;

"""
#: Maximum number of snapshot or backfilled rows per transaction.
_ROWS = 10_000
_PUT = "backfilled rows"
#: Description of these rows in comments.
_KINDS = {"snapshot": "snapshot", "backfill": _PUT, "cleanup": _PUT}
_DOUBTS: tuple[tuple[Doubt, str], ...] = (
    ("added", "columns were added; the DEFAULT values of older rows were not recorded"),
    ("again", "columns were dropped and added again, or swapped names; older values are unknown"),
    ("retyped", "columns changed their type; the results of USING for older values were not recorded"),
)


class SqlWriter(Writer):
    """Writes one transaction for each recorded one, and groups snapshot and backfilled rows."""

    def __init__(
        self,
        file: BinaryIO,
        name: str,
        takes_table: Callable[[str], bool],
        *,
        create: bool = False,
        facts: ExportFacts = NOTHING,
        clears: bool = False,
    ) -> None:
        """Set ``clears`` if there are backfilled tombstones: they find their rows by keys sent before."""
        self._file = file
        self._sent = SentKeys() if clears else None
        self._unknown = 0
        self._gaps = list(facts.gaps)
        self._cut = 0
        self._takes_table = takes_table
        self._tables = TableWriter(self._say, create=create)
        self._creates = create
        self._transaction: tuple[int, str, int, int] | None = None
        self._lost = 0
        self._rows = 0
        self._snapshot_pass: int | None = None
        self._say(_HEAD.format(name=one_line(name)))
        for line in facts.lines:
            self._say(f"-- {one_line(line)}\n")

    def write(self, change: Change) -> None:
        if change.operation == "cleanup" and change.pass_number == self._snapshot_pass:
            # The tombstone removes leftovers of an unfinished snapshot from the topic; the table has no such
            # row.
            return
        while self._gaps and change.position >= self._gaps[0].position:
            self._pass_gap(self._gaps.pop(0))
        self._enter(change)
        if change.operation == "snapshot" and change.pass_number != self._snapshot_pass:
            self._begin_snapshot(change.pass_number)
        if change.operation == "truncate":
            self._truncate(change)
            return
        self._tables.prepare(change)
        if change.operation == "cleanup":
            self._clear(change)
            return
        if self._sent is not None and change.key_columns:
            self._sent.note(change)
        if change.operation in ("snapshot", "insert"):
            self._insert(change)
        elif change.operation == "update":
            self._update(change)
        elif change.operation == "backfill":
            self._put(change)
        else:
            self._delete(change)

    def finish(self) -> None:
        """Commit, and drop or report tables whose names other tables took permanently."""
        self._leave()
        self._tables.finish()
        for gap in self._gaps:
            self._pass_gap(gap)
        self.abandon()

    def abandon(self) -> None:
        """Release the recorded keys."""
        if self._sent is not None:
            self._sent.close()

    @property
    def notes(self) -> list[str]:
        """Differences between the original tables and those that the file makes, one line each."""
        lines = [f"{what}: {listed(names)}" for kind, what in _DOUBTS if (names := self._tables.doubts[kind])]
        if replaced := self._tables.gone:
            what = "dropped" if self._creates else "moved to separate schemas"
            lines.append(
                f"tables whose name another table took, without later changes; {what}: {listed(replaced)}"
            )
        if self._lost:
            lines.append(f"{counted(self._lost, 'change')} omitted, because the row is unknown")
        if self._unknown:
            what = counted(self._unknown, "backfilled tombstone")
            lines.append(f"{what} omitted: the recording has no row with such a key")
        if self._cut:
            lines.append(f"{counted(self._cut, 'transaction')} may be cut off by a gap")
        return [f"{note}; comments in the file mark the places" for note in lines]

    def _pass_gap(self, gap: ExportGap) -> None:
        """Write a comment on what is missing between the last change and the next."""
        lsn = self._transaction[2] if self._transaction is not None else 0
        self._leave()
        if gap.from_lsn < lsn <= gap.to_lsn:
            self._cut += 1
            self._say(
                f"-- the transaction above, {format_lsn(lsn)}, may be cut off by the gap that follows\n"
            )
        self._say(f"-- gap: {gap.line}\n")

    def _say(self, text: str) -> None:
        self._file.write(text.encode())

    # Transactions.

    def _enter(self, change: Change) -> None:
        kind = _KINDS.get(change.operation, "")
        identity = (change.pass_number, kind, 0 if kind else change.lsn, change.xid)
        self._rows += 1
        if identity == self._transaction and not (kind and self._rows > _ROWS):
            return
        self._leave()
        self._transaction = identity
        what = kind or f"transaction {change.xid}"
        self._say(f"BEGIN; -- {what}, {change.lsn_text}, {time_text(change.commit_time)}\n")

    def _leave(self) -> None:
        if self._transaction is not None:
            self._say("COMMIT;\n")
        self._transaction = None
        self._rows = 1

    def _begin_snapshot(self, number: int) -> None:
        """Delete the rows of earlier snapshots: this one contains all rows again."""
        self._snapshot_pass = number
        for table in self._tables.filled:
            self._say(f"DELETE FROM {quoted_table(table)}; -- a new snapshot follows\n")
        self._tables.empty(self._tables.filled)

    # Statements.

    def _insert(self, change: Change) -> None:
        table, values_by_name = quoted_table(change.relation), _given(change)
        if not values_by_name:
            self._say(f"INSERT INTO {table} DEFAULT VALUES;\n")
            return
        names, values = (", ".join(part) for part in zip(*values_by_name, strict=True))
        # Without OVERRIDING, columns GENERATED ALWAYS AS IDENTITY would reject a value.
        self._say(f"INSERT INTO {table} ({names}) OVERRIDING SYSTEM VALUE VALUES ({values});\n")

    def _put(self, change: Change) -> None:
        """Write the statements for a backfilled row, which may exist already.

        The row is not deleted first, because a foreign key might cascade. In a table without a key, the row
        is inserted only if no equal row exists.
        """
        table, values_by_name = quoted_table(change.relation), _given(change)
        condition = self._where(change)
        if condition is not None:
            assignments = [
                f"{name} = {value}" for name, value in values_by_name if name not in _key_names(change)
            ]
            if assignments:
                self._say(f"UPDATE {table} SET {', '.join(assignments)} WHERE {condition};\n")
        else:
            condition = (
                " AND ".join(
                    _is_same(quote_identifier(column.name), value)
                    for column, value in zip(change.relation.columns, change.after or (), strict=True)
                )
                or "true"
            )
        names, values = (
            (", ".join(part) for part in zip(*values_by_name, strict=True)) if values_by_name else ("", "")
        )
        into = f"{table} ({names}) OVERRIDING SYSTEM VALUE" if values_by_name else table
        self._say(
            f"INSERT INTO {into} SELECT {values} WHERE NOT EXISTS (SELECT FROM {table} WHERE {condition});\n"
        )

    def _update(self, change: Change) -> None:
        changed = _assignments(change, self._tables.doubtful(change.relation))
        if not changed:
            return
        where = self._where(change)
        if where is None:
            self._impossible(change)
            return
        self._say(f"UPDATE {quoted_table(change.relation)} SET {', '.join(changed)} WHERE {where};\n")

    def _delete(self, change: Change) -> None:
        where = self._where(change)
        if where is None:
            self._impossible(change)
            return
        self._say(f"DELETE FROM {quoted_table(change.relation)} WHERE {where};\n")

    def _clear(self, change: Change) -> None:
        """Delete the row of a backfilled tombstone: the stream never sent its delete."""
        key = self._sent.find(change) if self._sent is not None else None
        if key is None:
            self._unknown += 1
            self._say(
                f"-- backfilled tombstone of {one_line(change.table)} at {change.lsn_text}"
                ": the recording has no row with such a key\n"
            )
            return
        values = dict(zip(change.key_columns, key, strict=True))
        before = tuple(values.get(column.name) for column in change.relation.columns)
        self._delete(replace(change, before=before, before_is_key=True))

    def _where(self, change: Change) -> str | None:
        return _where(change, self._tables.doubtful(change.relation), as_created=self._creates)

    def _truncate(self, change: Change) -> None:
        # A table without any change so far is empty.
        tables = [
            table
            for table in change.truncated
            if self._takes_table(table.qualified_name) and self._tables.truncate(table)
        ]
        quoted = list(map(quoted_table, tables))
        if len(tables) < len(change.truncated):
            # A table left out may have a foreign key, which TRUNCATE always checks.
            self._say("".join(f"DELETE FROM {table};\n" for table in quoted))
        else:
            self._say(f"TRUNCATE {', '.join(quoted)};\n")

    def _impossible(self, change: Change) -> None:
        self._lost += 1
        self._say(
            f"-- {change.operation} of {one_line(change.table)} at {change.lsn_text}, change {change.ordinal}"
            ": the row is unknown, because the table has no key and PostgreSQL did not send the old row"
            " (REPLICA IDENTITY FULL sends it)\n"
        )


#: The spelling of each byte in an escape string.
_ESCAPED = [chr(byte) if 32 <= byte < 127 and byte not in b"'\\" else f"\\x{byte:02x}" for byte in range(256)]


def literal(value: Field) -> str:
    """Return a value as an exact SQL literal; bytes that are not UTF-8 need a database that accepts them."""
    if value is None:
        return "NULL"
    assert isinstance(value, bytes)
    try:
        return quote_literal(value.decode()).lstrip()
    except UnicodeDecodeError:
        return "E'" + "".join(map(_ESCAPED.__getitem__, value)) + "'"


def _given(change: Change) -> list[tuple[str, str]]:
    """Return the columns and values of the new row that are recorded."""
    assert change.after is not None
    return [
        (quote_identifier(column.name), literal(value))
        for column, value in zip(change.relation.columns, change.after, strict=True)
        if value is not UNCHANGED
    ]


def _key_names(change: Change) -> set[str]:
    return set(map(quote_identifier, change.key_columns))


def _assignments(change: Change, doubtful: set[str]) -> list[str]:
    """Return what an UPDATE sets: the columns that PostgreSQL sent, without those that did not change.

    A column that PostgreSQL did not send has not changed, even if the relay filled in its value. A key
    without an old row has not changed either, and must not be set if it is GENERATED ALWAYS AS IDENTITY. A
    value that the table may not have yet is set even if it did not change.
    """
    assert change.after is not None
    assignments = []
    for index, (column, value) in enumerate(zip(change.relation.columns, change.after, strict=True)):
        if value is UNCHANGED or column.name in change.filled:
            continue
        old: Field | UnknownValue = sent_value(change, index, old=True)
        is_unchanged = old == value and column.name not in doubtful
        if is_unchanged or (column.name in change.key_columns and (old == value or change.before is None)):
            continue
        assignments.append(f"{quote_identifier(column.name)} = {literal(value)}")
    return assignments


def _where(change: Change, doubtful: set[str], *, as_created: bool) -> str | None:
    """Return the condition that finds the old row, or None if there is no such condition.

    ``as_created`` means that this export creates the table, with type text for types that are not built in.
    Otherwise those types may have no equality operator, or one in an unknown schema.
    """
    old = change.before is not None
    row = change.before if old else change.after
    columns = change.relation.columns
    places = {column.name: index for index, column in enumerate(columns)}
    if change.key_columns and row is not None and all(name in places for name in change.key_columns):
        keys = [(columns[places[name]], row[places[name]]) for name in change.key_columns]
        if all(isinstance(value, bytes) for _, value in keys):
            return " AND ".join(
                f"{quote_identifier(column.name)} = {literal(value)}"
                if as_created or is_built_in(column)
                else _is_same(quote_identifier(column.name), value)
                for column, value in keys
            )
    if change.before is None or change.before_is_key:
        return None
    same = {
        column.name: _is_same(quote_identifier(column.name), value)
        for column, value in zip(columns, change.before, strict=True)
    }
    sure = " AND ".join(text for name, text in same.items() if name not in doubtful) or "true"
    # In doubtful columns older rows may have different values: prefer the row that matches best.
    unsure = ", ".join(f"{text} DESC" for name, text in same.items() if name in doubtful)
    best = f" ORDER BY {unsure}" if unsure else ""
    # A ctid is unique only within one partition, so tableoid is compared too.
    one = f"SELECT tableoid, ctid FROM {quoted_table(change.relation)} WHERE {sure}{best} LIMIT 1"
    return f"(tableoid, ctid) = ({one})"


def _is_same(column: str, value: Field) -> str:
    # Some types have no equality operator, and some treat different texts as equal; concat returns the
    # recorded text. IS NULL is true for a composite of NULLs, and IS NOT NULL is false for one that contains
    # a NULL.
    if value is None:
        return f"({column} IS NOT DISTINCT FROM NULL)"
    return f"({column} IS DISTINCT FROM NULL AND pg_catalog.concat({column}) = {literal(value)})"
