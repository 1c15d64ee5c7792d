"""The changes of a key of a running relay: those that were sampled, and the records in Kafka."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from bwtui.model.headers import LSN, ORDINAL, XID
from bwtui.model.lsn import format_lsn
from bwtui.model.service_views import StageEntry
from bwtui.model.status import ChangeSample, Status
from bwtui.recording.reading.explain import RowKey
from bwtui.tui.keys import key_for
from bwtui.tui.widgets.journey.lifeline import Point

if TYPE_CHECKING:
    from bwtui.kafka.key_reader import StoredRecord

#: Records are matched by the millisecond in which their transaction was committed.
_MILLIS = 1_000
_CHANGES = "show('changes')"


@dataclass(frozen=True, slots=True)
class KeyHistoryEntry:
    """A sampled change, a Kafka record, or both."""

    sample: ChangeSample | None
    stored: "StoredRecord | None"
    #: "from": the row had a different key before; "to": it has a different key since.
    renamed: str = ""
    #: Number of records that may belong to the sampled change, if it is unclear which one does.
    doubtful: int = 0
    #: The record is matched by its place or its headers, not by its time alone.
    is_sure: bool = False

    @property
    def time(self) -> float:
        """The commit time in Unix seconds; for a record alone, its timestamp."""
        if self.sample is not None:
            return self.sample.commit_time
        return self.stored.timestamp / _MILLIS if self.stored is not None else 0.0

    @property
    def operation(self) -> str:
        """The operation, as far as it is known: a record alone is a row or a tombstone."""
        if self.sample is not None:
            return self.sample.operation
        return "delete" if self.stored is not None and self.stored.value is None else "row"

    @property
    def row_key(self) -> str:
        """Its key in a list."""
        if self.sample is not None:
            return f"sample {self.sample.sequence}"
        return "" if self.stored is None else f"record {self.stored.partition}@{self.stored.offset}"

    @property
    def place(self) -> tuple[int, int] | None:
        """Partition and offset."""
        if self.stored is not None:
            return self.stored.partition, self.stored.offset
        return None if self.sample is None else _place(self.sample, self.renamed)

    @property
    def point(self) -> Point:
        """Its mark on the timeline."""
        return Point(self.time, self.operation)


def role_of(sample: ChangeSample, key: RowKey) -> str | None:
    """Return the role of a sampled change for a key, or None if it is about a different key.

    The roles are "from" and "to" as in `KeyHistoryEntry`, and "" for a change that leaves the key alone.
    """
    if sample.table != key.table:
        return None
    fields = {field.name: field for field in sample.fields}
    own = [fields.get(name) for name in key.columns]
    wanted = [None if value is None else str(value, "utf-8", "replace") for value in _bytes(key)]
    if any(field is None for field in own):
        return None
    sides = [(field.before, field.after, field.mark) for field in own if field is not None]
    is_gone = bool(sides) and all(mark == "gone" for _, _, mark in sides)
    is_moved = any(mark == "changed" for _, _, mark in sides)
    after = [before if is_gone else value for before, value, _ in sides]
    if after == wanted:
        return "from" if is_moved else ""
    before = [before if mark == "changed" else value for before, value, mark in sides]
    return "to" if is_moved and before == wanted else None


def key_of(sample: ChangeSample, columns: Sequence[str]) -> RowKey | None:
    """Return the key of a sampled change by its columns, or None if there is none or it is unknown."""
    fields = {field.name: field for field in sample.fields}
    if not columns or any(name not in fields for name in columns):
        return None
    values = [fields[name].before if fields[name].mark == "gone" else fields[name].after for name in columns]
    if any(value is None for value in values):
        return None
    return RowKey(sample.table, tuple(columns), tuple((value or "").encode() for value in values))


def sampled_key(sample: ChangeSample | None, status: Status | None) -> RowKey | str:
    """Return the key of a sampled change, or why there is none."""
    if sample is None:
        return f"No change is selected: {key_for(_CHANGES)} shows what was sampled"
    table = None if status is None else status.tables.get(sample.table)
    if table is not None and table.is_key_known and not table.key_columns:
        return f"{sample.table} has no key, so its rows can't be told apart"
    key = key_of(sample, () if table is None else table.key_columns)
    return key or f"The key of this change of {sample.table} is not known"


def other_key(sample: ChangeSample, key: RowKey) -> RowKey | None:
    """Return the row's other key, before or after, if the sampled change changed ``key``."""
    fields = {field.name: field for field in sample.fields}
    role = role_of(sample, key)
    if not role:
        return None
    values = []
    for name in key.columns:
        field = fields[name]
        value = field.before if role == "from" and field.mark == "changed" else field.after
        values.append((value or "").encode())
    return RowKey(key.table, key.columns, tuple(values))


def sampled(samples: Iterable[ChangeSample], key: RowKey) -> list[tuple[ChangeSample, str]]:
    """Return the sampled changes of a key, each with its role."""
    roles = ((sample, role_of(sample, key)) for sample in samples if sample.table == key.table)
    return [(sample, role) for sample, role in roles if role is not None]


def updated(sample: ChangeSample, stages: Mapping[int, StageEntry]) -> ChangeSample:
    """Return a sampled change with what the relay has recorded about it since."""
    entry = stages.get(sample.sequence)
    if entry is None or (sample.passed and sample.passed[-1]):
        return sample
    return replace(
        sample,
        passed=entry.passed,
        batch=entry.batch,
        is_given_up=entry.is_given_up,
        partition=entry.partition,
        offset=entry.offset,
    )


def merged(
    samples: Sequence[tuple[ChangeSample, str]], records: Sequence["StoredRecord"]
) -> list[KeyHistoryEntry]:
    """Return all known changes in commit order; each record belongs to one change.

    A record belongs to the sampled change with the same place, or with the LSN and number in its headers.
    Otherwise it is matched by its time alone, if the relay sampled as many changes of the key in that
    millisecond as there are records; such a match is likely, but not certain.
    """
    left = {(one.partition, one.offset): one for one in records}
    found = []
    for sample, role in samples:
        if (sure := _sure(sample, role, left)) is not None:
            found.append(KeyHistoryEntry(sample, left.pop((sure.partition, sure.offset)), role, is_sure=True))
    done = {moment.sample.sequence for moment in found if moment.sample is not None}
    groups: dict[tuple[int, bool], list[tuple[ChangeSample, str]]] = {}
    for sample, role in samples:
        if sample.sequence not in done:
            groups.setdefault(_moment_of(sample, role), []).append((sample, role))
    for (stamp, is_tombstone), alike in groups.items():
        there = [
            place for place, one in left.items()
            if (one.timestamp, one.value is None) == (stamp, is_tombstone) and identity(one) is None
        ]  # fmt: skip
        for number, (sample, role) in enumerate(alike):
            is_placed = _place(sample, role) is not None
            stored = left.pop(there[number]) if len(there) == len(alike) and not is_placed else None
            doubtful = 0 if stored is not None or is_placed else len(there)
            found.append(KeyHistoryEntry(sample, stored, role, doubtful, is_placed))
    found += [KeyHistoryEntry(None, one) for one in left.values()]
    return sorted(found, key=_order)


def _place(sample: ChangeSample, role: str) -> tuple[int, int] | None:
    """Return the place of a sampled change's record of a key, if it is known.

    The relay records the place of the row. A change that gave the row a new key also wrote a tombstone for
    the former key, and the place of the tombstone is not recorded.
    """
    if role == "to" or sample.partition is None or sample.offset is None:
        return None
    return sample.partition, sample.offset


def _sure(
    sample: ChangeSample, role: str, left: Mapping[tuple[int, int], "StoredRecord"]
) -> "StoredRecord | None":
    """Return the record that belongs to a sampled change by its place, or by its LSN and number."""
    if (place := _place(sample, role)) is not None:
        return left.get(place)
    wanted = (sample.lsn, sample.ordinal)
    return next((one for one in left.values() if identity(one) == wanted), None)


def _moment_of(sample: ChangeSample, role: str) -> tuple[int, bool]:
    """Return the time of a sampled change's record, and whether the record is a tombstone."""
    return _millis(sample.commit_time), sample.operation == "delete" or role == "to"


def _order(moment: KeyHistoryEntry) -> tuple[int, int, int, int]:
    place = moment.place or (0, 0)
    sequence = 0 if moment.sample is None else moment.sample.sequence
    return (_millis(moment.time), *place, sequence)


def _millis(seconds: float) -> int:
    """Return whole milliseconds as the relay writes them; a float may be slightly below its microsecond."""
    return round(seconds * 1_000_000) // 1_000


def identity(stored: "StoredRecord") -> tuple[str, int] | None:
    """Return the LSN and number of a record's change from its headers, or None without them."""
    lsn, ordinal = _number(stored, LSN, 8), _number(stored, ORDINAL, 4, 8)
    return None if lsn is None or ordinal is None else (format_lsn(lsn), ordinal)


def xid_of(stored: "StoredRecord") -> int | None:
    """Return the transaction id from a record's header."""
    return _number(stored, XID, 4)


def _number(stored: "StoredRecord", name: str, *sizes: int) -> int | None:
    """Return the number in a header, if its size is the relay's: other producers may write other sizes."""
    data = dict(stored.headers).get(name)
    return int.from_bytes(data, "big") if data is not None and len(data) in sizes else None


def _bytes(key: RowKey) -> list[bytes | None]:
    return [value if isinstance(value, bytes) else None for value in key.values]
