"""Compare topics with the writes: which changes are lost, out of order, or repeated.

The versions of a key go up by one. A restarted relay sends unacknowledged changes again, complete and in
order. A version may therefore be followed by its next one, or by one that was there before, and by nothing
else.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import psycopg2

from tests.faults.writer import TABLES, TAKEN_BACK
from tests.torture.histories import VERSIONS, Key, Transaction
from tests.torture.topics import Record

_TOLD = 10


@dataclass(slots=True)
class _Seen:
    """One key in one topic, so far."""

    partition: int
    #: The latest version, the highest one, and the missing versions below it.
    last: int
    top: int
    missing: set[int] = field(default_factory=set)
    value: dict[str, Any] | None = None
    tombstones: int = 0


@dataclass(frozen=True, slots=True)
class Mark:
    """The confirmed LSN of a slot, and the end offsets of the versions' topic after that."""

    lsn: int
    ends: dict[int, int]
    #: PostgreSQL may have reset the slot to ``lsn``: positions confirmed after it do not count.
    taken_back: bool = False


@dataclass(slots=True)
class Verdict:
    """The result of the comparison; every list holds sentences."""

    messages: int = 0
    repeats: int = 0
    lost: list[str] = field(default_factory=list)
    disordered: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    #: Changes that were repeated although they had been confirmed to PostgreSQL as durable.
    confirmed_repeats: list[str] = field(default_factory=list)
    torn: list[str] = field(default_factory=list)

    def problems(self, *, exactly_once: bool) -> str:
        """Return the violations in some lines; empty if there are none."""
        found = {
            "lost": self.lost,
            "out of order": self.disordered,
            "wrong": self.wrong,
            "confirmed, and sent again": self.confirmed_repeats,
            "torn": self.torn,
            "repeated": [f"{self.repeats} changes"] if exactly_once and self.repeats else [],
        }
        return "\n".join(
            f"{len(told)} {what}: {'; '.join(told[:_TOLD])}" for what, told in found.items() if told
        )


class Judge:
    """Collects the records of topics, and compares them with tables and histories at the end."""

    def __init__(self, prefix: str, *, since_start: bool = True) -> None:
        """``since_start``: the relay streamed before the first change was written, so none may be missing."""
        self.verdict = Verdict()
        self._names = {table.topic(prefix): table for table in (*TABLES, VERSIONS)}
        self._since_start = since_start
        self._versions: dict[Key, _Seen] = {}
        self._rows: dict[Key, _Seen] = {}
        #: The repeated versions, and their places.
        self._again: list[tuple[Key, int, int, int]] = []
        #: Versions missing in a table's topic between two that are there; each must be one without a row.
        self._gaps: list[tuple[Key, int, int]] = []
        #: Rows with a note of a later version: --toast fetch reads the current value of a large note.
        self._ahead: list[tuple[Key, int, int]] = []
        #: The number of changes seen, by transaction.
        self.by_transaction: Counter[int] = Counter()
        #: In chronological order.
        self.marks: list[Mark] = []

    @property
    def topics(self) -> list[str]:
        """Return the topics to read."""
        return list(self._names)

    @property
    def versions_topic(self) -> str:
        """Return the topic of versions."""
        return next(name for name, table in self._names.items() if table is VERSIONS)

    def take(self, records: Iterable[Record]) -> None:
        """Take a record."""
        for record in records:
            self.verdict.messages += 1
            table = self._names[record.topic]
            if table is VERSIONS:
                self._take_version(record)
            else:
                self._take_row((table.full_name, record.key["id"]), record)

    def _take_version(self, record: Record) -> None:
        key = record.key["name"], record.key["id"]
        if record.value is None:
            self.verdict.wrong.append(f"a tombstone for {key}")
            return
        version = record.value["number"]
        self.by_transaction[record.value["tx"]] += 1
        seen = self._versions.get(key)
        if seen is None:
            seen = self._versions[key] = _Seen(record.partition, 0 if self._since_start else version - 1, 0)
        self._follow(key, seen, version, record)
        if version <= seen.top and version not in seen.missing:
            self.verdict.repeats += 1
            self._again.append((key, version, record.partition, record.offset))
        if version > seen.last + 1:
            self.verdict.disordered.append(f"{key}: {version} follows {seen.last}")
        if version > seen.top:
            first = seen.top + 1 if seen.top or self._since_start else version
            seen.missing.update(range(first, version))
        seen.missing.discard(version)
        seen.last, seen.top = version, max(seen.top, version)

    def _take_row(self, key: Key, record: Record) -> None:
        seen = self._rows.get(key)
        if seen is None:
            seen = self._rows[key] = _Seen(record.partition, 0, 0)
        seen.value = record.value
        if record.value is None:
            seen.tombstones += 1
            return
        version, note = record.value["number"], record.value["note"]
        self._follow(key, seen, version, record)
        if note == TAKEN_BACK:
            self.verdict.wrong.append(f"{key} has what was rolled back")
        elif version and not note.startswith("row "):
            table, id, written, _ = note.split("/")
            if (table, int(id)) != key:
                self.verdict.wrong.append(f"{key} {version} has the note of {table} {id} {written}")
            elif int(written) > version:
                self._ahead.append((key, version, int(written)))
        if version > seen.last + 1:
            self._gaps.append((key, seen.last, version))
        seen.last, seen.top = version, max(seen.top, version)

    def _follow(self, key: Key, seen: _Seen, version: int, record: Record) -> None:
        if seen.partition != record.partition:
            self.verdict.disordered.append(f"{key} is in partitions {seen.partition} and {record.partition}")

    def torn(self, transactions: Iterable[Transaction]) -> set[int]:
        """Return the transactions of which some changes are there, but not all."""
        sizes = {one.number: len(one.changes) for one in transactions}
        return {tx for tx, came in self.by_transaction.items() if 0 < came < sizes.get(tx, 0)}

    def end(self, database: str, transactions: Iterable[Transaction]) -> Verdict:
        """Compare with the tables, which no writer changes any more."""
        history = list(transactions)
        with closing(psycopg2.connect(database)) as connection, connection.cursor() as cursor:
            cursor.execute("select name, id, number from versions")
            versions = {(name, id): number for name, id, number in cursor.fetchall()}
            for table in TABLES:
                cursor.execute(f"select id, number, note from {table.full_name}")
                self._compare(table.full_name, {id: (number, note) for id, number, note in cursor.fetchall()})
        for key, version in versions.items():
            self._complete(key, version)
        for key in self._versions.keys() - versions.keys():
            self.verdict.wrong.append(f"{key} was never committed")
        self._check_history(history, versions)
        self._check_repeats(history)
        return self.verdict

    def _complete(self, key: Key, version: int) -> None:
        """Check that all versions of a key are there, up to the one in the table."""
        seen, lost = self._versions.get(key), self.verdict.lost
        if seen is None:
            lost.append(f"{key}: all of {version} versions")
            return
        lost += [f"{key}: version {one}" for one in sorted(seen.missing)]
        if seen.top < version:
            lost.append(f"{key}: from version {seen.top + 1} to {version}")
        elif seen.top > version:
            self.verdict.wrong.append(f"{key}: version {seen.top} was never committed")
        elif seen.last != version:
            self.verdict.disordered.append(f"{key} ends with {seen.last}, not {version}")

    def _compare(self, table: str, rows: dict[int, tuple[int, str]]) -> None:
        latest = {key[1]: seen.value for key, seen in self._rows.items() if key[0] == table and seen.value}
        for id, (number, note) in rows.items():
            value = latest.pop(id, None)
            if value is None:
                self.verdict.lost.append(f"{table} {id} {number}")
            elif (value["number"], value["note"]) != (number, note):
                self.verdict.wrong.append(f"{table} {id} is {value['number']}, not {number}")
        self.verdict.lost += [f"the deletion of {table} {id}" for id in latest]

    def _check_history(self, history: list[Transaction], versions: dict[Key, int]) -> None:
        # With --toast fetch a row whose large note no longer exists is left out: its deletion follows.
        absent: dict[Key, set[int]] = {}
        touched: set[tuple[Key, int]] = set()
        tombstones = Counter[Key]()
        for one in history:
            for key, version, kind in one.changes:
                if one.is_known and versions.get(key, 0) < version:
                    self.verdict.wrong.append(f"the table lacks {key} {version}, which was committed")
                if kind != "row":
                    absent.setdefault(key, set()).add(version)
                if kind == "touch":
                    touched.add((key, version))
                else:
                    tombstones[key] += one.is_known and kind == "deletion"
        for key, version, written in self._ahead:
            if (key, version) not in touched:
                self.verdict.wrong.append(f"{key} {version} has the note of {written}")
        if not self._since_start:
            return
        for key, last, version in self._gaps:
            between = set(range(last + 1, version)) - absent.get(key, set())
            if between:
                self.verdict.disordered.append(f"{key}: {version} follows {last}, without {sorted(between)}")
        for key, committed in tombstones.items():
            seen = self._rows.get(key)
            if (seen.tombstones if seen is not None else 0) < committed:
                self.verdict.lost.append(f"a deletion of {key}")

    def _check_repeats(self, history: list[Transaction]) -> None:
        """Check that no change was repeated after it had been confirmed to PostgreSQL as durable."""
        commits = {(key, version): one.before for one in history for key, version, _ in one.changes}
        highest, ends = 0, dict[int, list[tuple[int, int]]]()
        for mark in self.marks:
            highest = (min if mark.taken_back else max)(highest, mark.lsn)
            for partition, end in mark.ends.items():
                # The end offset of a partition never decreases, whatever a broker reports.
                known = ends.setdefault(partition, [])
                known.append((max(end, known[-1][0]) if known else end, highest))
        for key, version, partition, offset in self._again:
            known = ends.get(partition, [])
            at = bisect_right(known, offset, key=lambda of_end: of_end[0]) - 1
            before = commits.get((key, version), 0)
            if at >= 0 and before and before <= known[at][1]:
                self.verdict.confirmed_repeats.append(f"{key} {version} at {partition}:{offset}")
