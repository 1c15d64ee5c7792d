"""The journey of a key, without widgets: its changes, and the path, the fields and the readers of one."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from bwtui.model.headers import LSN, ORDINAL, XID
from bwtui.model.latency import LATENCY_STAGES, Percentiles
from bwtui.model.lsn import format_lsn, parse_lsn
from bwtui.model.service_views import GroupEntry, StageEntry
from bwtui.model.sql import quote_identifier
from bwtui.model.status import ChangeSample, FieldChange, Status
from bwtui.recording.change import LIMIT, Change, SentMessage
from bwtui.recording.explain import HistoryStep, RowKey
from bwtui.recording.playback import MICROS, TransactionCounts
from bwtui.recording.query_language import as_text
from bwtui.recording.query_syntax import QueryError, Token, tokens
from bwtui.tui.audit.records import HOLES, DecodedPart, RecordDecoder
from bwtui.tui.audit.report import ABSENT, AuditResult
from bwtui.tui.base import figures
from bwtui.tui.base.assessment import Tone
from bwtui.tui.base.keys import key_for

if TYPE_CHECKING:
    from bwtui.kafka.key_reader import StoredRecord


@dataclass(frozen=True, slots=True)
class TypedKey:
    """A typed key, as a selection for the screen that shows its journey."""

    key: RowKey

    def selected_key(self) -> RowKey | str:
        return self.key

    def selected_table(self) -> str | None:
        return self.key.table

    def selected_change(self) -> Change | None:
        """Return None, because a typed key names no change."""
        return None

    def selected_sample(self) -> ChangeSample | None:
        """Return None, for the same reason."""
        return None

    def selected_subject(self) -> str | None:
        """Return None, because a key has no subject of its own."""
        return None


#: The key columns of each table, by ``schema.table``; None if they are unknown.
Tables = Mapping[str, Sequence[str] | None]


def tables_of(status: Status | None) -> Tables:
    """Return a relay's tables with their key columns."""
    tables = {} if status is None else status.tables
    return {name: table.key_columns if table.has_final_key else None for name, table in tables.items()}


def parse_typed_key(text: str, tables: Tables, selected: str | None) -> RowKey | str | None:
    """Return the key that a text names, or what is wrong with it; None if the text is a filter, not a key."""
    try:
        parsed = tokens(text)[:-1]
    except QueryError:
        return None
    if any(token.is_operator("=") for token in parsed):
        return _by_columns(parsed, tables, selected)
    if len(parsed) < 2 or (table := _table(parsed[0], tables, is_whole=True)) is None:
        return None
    values = _values(parsed[1:])
    return None if values is None else _key(table, tables, values)


def plain_key(text: str, tables: Tables, selected: str | None) -> RowKey | str | None:
    """Return the key of the selected table with this value; None if the text is not a value."""
    try:
        values = _values(tokens(text)[:-1])
    except QueryError:
        return None
    if not values:
        return None
    return "select a table first to look for this key" if selected is None else _key(selected, tables, values)


def _by_columns(parsed: list[Token], tables: Tables, selected: str | None) -> RowKey | str:
    table = selected
    if len(parsed) > 1 and not parsed[1].is_operator("="):
        table = _table(parsed[0], tables, is_whole=False)
        if table is None:
            return f"{parsed[0].shown} matches no table, or several"
        parsed = parsed[1:]
    if table is None:
        return "put the table first: orders id=42"
    values: dict[str, str] = {}
    remaining = [token for token in parsed if not token.is_operator(",")]
    while remaining:
        if (
            len(remaining) < 3
            or remaining[0].kind == "operator"
            or not remaining[1].is_operator("=")
            or remaining[2].kind == "operator"
        ):
            return "usage: orders id=42, or items order_id=7, line=2"
        values[remaining[0].text] = remaining[2].text
        remaining = remaining[3:]
    columns = tables.get(table)
    if columns is None:
        return _unknown(table)
    if strange := [name for name in values if name not in columns]:
        return f"{strange[0]} is not a key column of {table}: {', '.join(columns) or 'it has none'}"
    if missing := [name for name in columns if name not in values]:
        return f"the key of {table} also has {', '.join(missing)}"
    return _key(table, tables, [values[name] for name in columns])


def _key(table: str, tables: Tables, values: Sequence[str]) -> RowKey | str:
    columns = tables.get(table)
    if columns is None:
        return _unknown(table)
    if not columns:
        return f"{table} has no key, so its rows can't be distinguished"
    if len(columns) != len(values):
        return f"the key of {table} is {', '.join(columns)}"
    return RowKey(table, tuple(columns), tuple(value.encode("utf-8", "replace") for value in values))


def _unknown(table: str) -> str:
    return f"the key of {table} is unknown so far: this run of the relay has sent no row of it"


def _table(token: Token, tables: Tables, *, is_whole: bool) -> str | None:
    """Return the table of a name, with or without its schema; a prefix is enough unless ``is_whole``."""
    if token.kind == "operator":
        return None
    if token.text in tables:
        return token.text
    matching = [table for table in tables if table.partition(".")[2] == token.text]
    if not matching and not is_whole:
        matching = [table for table in tables if table.partition(".")[2].startswith(token.text)]
    return matching[0] if len(matching) == 1 else None


def _values(parsed: Sequence[Token]) -> list[str] | None:
    values = [token.text for token in parsed if not token.is_operator(",")]
    return (
        None if any(token.kind == "operator" and not token.is_operator(",") for token in parsed) else values
    )


def query_of(key: RowKey, position: int | None = None) -> str | None:
    """Return a query for the messages of a key, or of one change; None if no query can find the key.

    That is the case if the key has an unchanged TOAST value, because its text is unknown.
    """
    parts = [f"table = {_quoted(key.table)}"]
    for name, value in zip(key.columns, key.values, strict=True):
        text = as_text(value)
        if not isinstance(text, str):
            return None
        parts.append(f"key.{quote_identifier(name)} = {_quoted(text)}")
    if position is not None:
        parts.append(f"position = {position}")
    return " and ".join(parts)


def newest_of(steps: Iterable[HistoryStep]) -> HistoryStep | None:
    """Return the newest change of a key with a message that Kafka did not refuse; repeats do not count."""
    sent = [step for step in steps if step.topic and step.state != "refused" and not step.is_repeat]
    return sent[-1] if sent else None


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


#: Records are matched by the millisecond in which their transaction was committed.
_MILLIS = 1_000
#: Maximum changes of a transaction that are counted.
COUNTED = 20_000
_CHANGES = "show('changes')"


class Point(NamedTuple):
    """A change: its commit time in Unix seconds, and its operation."""

    time: float
    operation: str
    is_bad: bool = False


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
    def lsn(self) -> int | None:
        """Its LSN; None for a record that was not sampled and has no headers."""
        if self.sample is not None:
            return parse_lsn(self.sample.lsn) if self.sample.lsn else None
        identified = None if self.stored is None else identity(self.stored)
        return None if identified is None else parse_lsn(identified[0])

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
    key_fields = [fields.get(name) for name in key.columns]
    key_texts = [None if value is None else str(value, "utf-8", "replace") for value in _bytes(key)]
    if any(field is None for field in key_fields):
        return None
    sides = [(field.before, field.after, field.mark) for field in key_fields if field is not None]
    is_gone = bool(sides) and all(mark == "gone" for _, _, mark in sides)
    is_moved = any(mark == "changed" for _, _, mark in sides)
    after = [before if is_gone else value for before, value, _ in sides]
    if after == key_texts:
        return "from" if is_moved else ""
    before = [before if mark == "changed" else value for before, value, mark in sides]
    return "to" if is_moved and before == key_texts else None


def key_of_sample(sample: ChangeSample, columns: Sequence[str]) -> RowKey | None:
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
        return f"No change is selected; {key_for(_CHANGES)} shows the sampled changes"
    table = None if status is None else status.tables.get(sample.table)
    if table is not None and table.has_final_key and not table.key_columns:
        return f"{sample.table} has no key, so its rows can't be distinguished"
    key = key_of_sample(sample, () if table is None else table.key_columns)
    return key or f"The key of this change of {sample.table} is unknown"


def opposite_key(sample: ChangeSample, key: RowKey) -> RowKey | None:
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
    unmatched = {(one.partition, one.offset): one for one in records}
    entries = []
    for sample, role in samples:
        if (sure := _sure(sample, role, unmatched)) is not None:
            entries.append(
                KeyHistoryEntry(sample, unmatched.pop((sure.partition, sure.offset)), role, is_sure=True)
            )
    done = {moment.sample.sequence for moment in entries if moment.sample is not None}
    groups: dict[tuple[int, bool], list[tuple[ChangeSample, str]]] = {}
    for sample, role in samples:
        if sample.sequence not in done:
            groups.setdefault(_moment_of(sample, role), []).append((sample, role))
    for (stamp, is_tombstone), alike in groups.items():
        there = [
            place for place, one in unmatched.items()
            if (one.timestamp, one.value is None) == (stamp, is_tombstone) and identity(one) is None
        ]  # fmt: skip
        for number, (sample, role) in enumerate(alike):
            is_placed = _place(sample, role) is not None
            stored = unmatched.pop(there[number]) if len(there) == len(alike) and not is_placed else None
            doubtful = 0 if stored is not None or is_placed else len(there)
            entries.append(KeyHistoryEntry(sample, stored, role, doubtful, is_placed))
    entries += [KeyHistoryEntry(None, one) for one in unmatched.values()]
    return sorted(entries, key=_order)


def earlier_row(entry: KeyHistoryEntry, entries: Iterable[KeyHistoryEntry]) -> "StoredRecord | None":
    """Return the key's record before the one of a change, if it is a row."""
    here = entry.stored
    if here is None or entry.renamed:
        return None
    stored = [one.stored for one in entries if one.stored is not None]
    before = [one for one in stored if one.partition == here.partition and one.offset < here.offset]
    newest = max(before, key=lambda one: one.offset, default=None)
    return None if newest is None or newest.value is None else newest


def _place(sample: ChangeSample, role: str) -> tuple[int, int] | None:
    """Return the place of a sampled change's record of a key, if it is known.

    The relay records the place of the row. A change that gave the row a new key also wrote a tombstone for
    the former key, and the place of the tombstone is not recorded.
    """
    if role == "to" or sample.partition is None or sample.offset is None:
        return None
    return sample.partition, sample.offset


def _sure(
    sample: ChangeSample, role: str, unmatched: Mapping[tuple[int, int], "StoredRecord"]
) -> "StoredRecord | None":
    """Return the record that belongs to a sampled change by its place, or by its LSN and number."""
    if (place := _place(sample, role)) is not None:
        return unmatched.get(place)
    target = (sample.lsn, sample.ordinal)
    return next((one for one in unmatched.values() if identity(one) == target), None)


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


_STAGES = LATENCY_STAGES[:-1]


@dataclass(frozen=True, slots=True)
class Fact:
    """A fact about a change: its name, its text, and whether it is good or bad."""

    name: str
    text: str
    tone: Tone = "plain"

    @classmethod
    def of(cls, name: str, result: AuditResult) -> "Fact":
        """Return the result of a comparison as a fact."""
        return cls(name, result.text, result.tone)


@dataclass(frozen=True, slots=True)
class PathSegment:
    """A stretch of the path, named after its end; ``seconds`` is None if unknown."""

    name: str
    seconds: float | None


@dataclass(frozen=True, slots=True)
class ChangePath:
    """The beginning of a change's path, the duration of each stretch, and remarks on these figures."""

    #: "COMMIT", or the operation of a row that was read from its table.
    begin: str
    #: Unix seconds, by PostgreSQL's clock.
    time: float
    legs: tuple[PathSegment, ...]
    #: Remarks on what the figures cover, and on which are unknown and why.
    remarks: tuple[str, ...] = ()

    @property
    def total(self) -> float | None:
        """Seconds from beginning to end, or None if any stretch is unknown."""
        seconds = [leg.seconds for leg in self.legs]
        return None if not seconds or None in seconds else sum(filter(None, seconds))


def recorded_path(change: Change, message: SentMessage | None, remark: str = "") -> ChangePath:
    """Return the path of a recorded change and its shown ``message``, by the times of its blocks.

    ``remark`` is a remark on the latency of the messages around it.
    """
    begin = "COMMIT" if change.in_transaction else change.operation
    legs = [PathSegment("recorded", (change.received - change.commit_time) / MICROS)]
    remarks: tuple[str, ...] = ()
    if message is not None and message.noted is not None:
        legs.append(PathSegment("acknowledged", (message.noted - change.received) / MICROS))
        remarks = (
            "recorded: its batch was read, encoded, written to the recording and passed to Kafka; "
            "acknowledged: the whole batch was",
        )
    elif message is not None and message.state != "unsent":
        legs.append(PathSegment("acknowledged", None))
    notes = (*remarks, *_ahead(legs), *filter(None, (remark,)))
    return ChangePath(begin, change.commit_time / MICROS, tuple(legs), notes)


def sampled_path(sample: ChangeSample) -> ChangePath:
    """Return the path of a sampled change, by the times of its batch."""
    if sample.operation in ("snapshot", "backfill"):
        notes = ("rows read from their table are not timed individually",)
        return ChangePath(sample.operation, sample.commit_time, (), notes)
    times = (sample.commit_time, *sample.passed) if sample.passed else ()
    legs = []
    for place, name in enumerate(_STAGES, 1):
        is_timed = len(times) > place and times[place] and times[place - 1]
        legs.append(PathSegment(name, times[place] - times[place - 1] if is_timed else None))
    return ChangePath("COMMIT", sample.commit_time, tuple(legs), (*_of_sample(sample), *_ahead(legs)))


def _of_sample(sample: ChangeSample) -> list[str]:
    if not sample.passed:
        return ["its stage times are unknown: the relay is an older version, or does not measure them"]
    if sample.is_given_up:
        return ["its session ended before Kafka acknowledged it, so it is read and sent again"]
    batch = "1 message" if sample.batch == 1 else f"{sample.batch:,} messages"
    if not sample.passed[-1]:
        return [
            "it is under way" + (f": its batch of {batch} is not acknowledged yet" if sample.batch else "")
        ]
    return [f"times of its batch of {batch}: from its first row received to its last message acknowledged"]


def _ahead(legs: list[PathSegment]) -> list[str]:
    is_ahead = bool(legs) and legs[0].seconds is not None and legs[0].seconds < 0
    return ["PostgreSQL's clock is ahead of the relay's"] if is_ahead else []


def usual(latency: Mapping[str, Percentiles], until: float) -> str:
    """Return the latencies of all messages in the ten seconds before a moment, or an empty string."""
    notes = [
        f"{stage} {figures.milliseconds(latency[stage].p50)} (p99 {figures.milliseconds(latency[stage].p99)})"
        for stage in _STAGES
        if stage in latency
    ]
    if not notes:
        return ""
    return f"all messages of the ten seconds up to {figures.clock(until)}, median in ms: " + ", ".join(notes)


@dataclass(frozen=True, slots=True)
class FieldComparison:
    """One field; None is NULL, and `ABSENT` is a value that a side lacks."""

    name: str
    mark: str
    before: str | None
    after: str | None
    kafka: str | None
    newest: str | None
    #: Kafka's value is not PostgreSQL's, or not the one that was sent.
    differs: bool = False


def field_ways(
    fields: Sequence[FieldChange],
    kafka: DecodedPart | None,
    newest: DecodedPart | None,
    wrong: Collection[str] = (),
) -> list[FieldComparison]:
    """Return every field that a side has, in the order of the table."""
    here, now = _row(kafka), _row(newest)
    by_name = {field.name: field for field in fields}
    ways = []
    for name in dict.fromkeys((*by_name, *here, *now)):
        field = by_name.get(name)
        sides = (ABSENT, ABSENT) if field is None else _sides(field)
        mark = "" if field is None else field.mark
        actual = (here.get(name, ABSENT), now.get(name, ABSENT))
        ways.append(FieldComparison(name, mark, *sides, *actual, name in wrong))
    return ways


def _row(side: DecodedPart | None) -> Mapping[str, str | None]:
    return {} if side is None or side.state != "row" else side.fields


def _sides(field: FieldChange) -> tuple[str | None, str | None]:
    """Return the known values of a field before and after."""
    has_before = field.mark in ("same", "changed", "gone") or field.before is not None
    before = field.before if has_before else ABSENT
    return before, ABSENT if field.mark == "gone" else field.after


def texts_of(change: Change) -> dict[str, str | None]:
    """Return the new row's texts that a record can be compared with: those that PostgreSQL sent as text."""
    texts: dict[str, str | None] = {}
    for column, value in zip(change.relation.columns, change.after or (), strict=False):
        if value is None:
            texts[column.name] = None
        elif isinstance(value, bytes):
            try:
                texts[column.name] = value.decode()
            except UnicodeDecodeError:
                continue
    return texts


def texts_of_sample(fields: Sequence[FieldChange]) -> dict[str, str | None]:
    """Return the same for a sampled change, without long values, which were cut."""
    return {
        field.name: field.after
        for field in fields
        if field.mark not in ("gone", "unchanged TOAST")
        and (field.after is None or (len(field.after.encode()) < LIMIT and "\ufffd" not in field.after))
    }


def compare_with_message(
    message: SentMessage, change: Change, stored: "StoredRecord", reader: RecordDecoder
) -> tuple[AuditResult, set[str]]:
    """Compare the record at a message's place with the message; return the result and differing fields."""
    if (stored.key, stored.value) == (message.key, message.value):
        wrong = reader.miscoded(stored.value, texts_of(change)) if message.value is not None else frozenset()
        if wrong:
            return AuditResult(
                "bad", f"equal to the sent message, but {_fields(wrong)} different from PostgreSQL's data"
            ), set(wrong)
        return AuditResult("good", "identical to the sent message"), set()
    sent, actual = reader.row(message.value), reader.row(stored.value)
    wrong_fields = {name for name in _row(sent) if _row(sent)[name] != _row(actual).get(name, ABSENT)}
    if stored.key != message.key:
        return AuditResult("bad", "the record here has a different key than the sent message"), wrong_fields
    if message.value is None or stored.value is None:
        difference = (
            "a tombstone, but a row was sent" if stored.value is None else "a row, but a tombstone was sent"
        )
        return AuditResult("bad", difference), wrong_fields
    subject = _fields(wrong_fields) if wrong_fields else "the bytes are"
    return AuditResult("bad", f"{subject} not as sent"), wrong_fields


def compare_with_sample(
    fields: Sequence[FieldChange], stored: "StoredRecord", reader: RecordDecoder, renamed: str = ""
) -> tuple[AuditResult, set[str]]:
    """Compare a record with PostgreSQL's values of a sampled change whose message is not available.

    ``renamed`` is as in `KeyHistoryEntry`: a change of the key deletes the row's former key.
    """
    is_gone = renamed == "to" or (bool(fields) and all(field.mark == "gone" for field in fields))
    if is_gone or stored.value is None:
        if is_gone and stored.value is None:
            why = "because the row's key changed" if renamed == "to" else "because the row was deleted"
            return AuditResult("good", f"a tombstone, {why}"), set()
        return AuditResult(
            "bad", "a row, but a tombstone was expected" if is_gone else "a tombstone, but a row was expected"
        ), set()
    actual = reader.row(stored.value)
    if actual.state == "unreadable":
        return AuditResult("warn", actual.problem), set()
    if actual.schema_id is None:
        return AuditResult("muted", "JSON is shown, but not compared field by field"), set()
    wrong = reader.miscoded(stored.value, texts_of_sample(fields))
    if wrong:
        return AuditResult("bad", f"{_fields(wrong)} different from PostgreSQL's data"), set(wrong)
    return AuditResult("good", "equal to PostgreSQL's data, field by field"), set()


def with_before(
    fields: Sequence[FieldChange], earlier: "StoredRecord", reader: RecordDecoder
) -> Sequence[FieldChange]:
    """Return an updated row's fields, with missing old values from an earlier record.

    PostgreSQL may not send the old values. Nothing is taken from JSON, because it has no types with which its
    texts could be compared with PostgreSQL's.
    """
    row = reader.row(earlier.value)
    if row.state != "row" or row.schema_id is None:
        return fields
    texts = texts_of_sample(fields)
    changed = reader.miscoded(earlier.value, texts)
    known_fields = {
        field.name: replace(
            field, before=row.fields[field.name], mark="changed" if field.name in changed else "same"
        )
        for field in fields
        if field.mark == "unknown before" and field.name in row.fields and field.name in texts
    }
    return [known_fields.get(field.name, field) for field in fields]


def hole(kind: str) -> AuditResult:
    """Return what a missing record at a message's place means."""
    return AuditResult("warn" if kind in ("gap", "expired") else "bad", HOLES.get(kind, kind))


def _fields(names: Collection[str]) -> str:
    few = sorted(names)
    if len(few) == 1:
        return f"{few[0]} is"
    return f"{len(few)} fields are" if len(few) > 3 else f"{', '.join(few)} are"


def readers_of(groups: Sequence[GroupEntry], topic: str, partition: int, offset: int) -> list[Fact]:
    """Return the groups that read the topic; those that have not read the record come first."""
    places = [_reading(group, topic, partition, offset) for group in groups if topic in group.topics]
    return sorted(places, key=lambda place: (place.tone == "good", place.name))


def _reading(group: GroupEntry, topic: str, partition: int, offset: int) -> Fact:
    lag = next((one for one in group.partitions if (one.topic, one.partition) == (topic, partition)), None)
    if lag is None:
        return Fact(group.name, "unknown position in this partition", "muted")
    if lag.committed is None:
        return Fact(group.name, "has never committed in this partition", "muted")
    if lag.committed > offset:
        return Fact(group.name, f"has read it; committed offset {lag.committed:,}", "good")
    before = offset - lag.committed + 1
    alone = ", not running" if group.members == 0 else ""
    return Fact(group.name, f"has not read it: {before:,} to go from offset {lag.committed:,}{alone}", "warn")


def table_words(tables: Iterable[tuple[str, Iterable[str]]]) -> str:
    """Return what was done in each of a transaction's tables."""
    return ", ".join(f"{', '.join(words)} in {table}" for table, words in tables)


def transaction_words(number: int, counts: TransactionCounts) -> str:
    """Return what a transaction of ``number`` changes did."""
    more_tables = max(len(counts.by_table) - 4, 0)
    rest = f" and {more_tables} more tables" if more_tables > 0 else ""
    changes = "1 change" if number == 1 else f"{number:,} changes"
    cut = f", of the first {COUNTED:,}" if number > COUNTED else ""
    return f"{changes}: {table_words(list(counts.by_table.items())[:4])}{rest}{cut}"


def why_unplaced(change: Change, message: SentMessage | None) -> str:
    """Return why the record of a change can't be looked for."""
    if message is None:
        return "nothing: the change has no message"
    return {
        "unsent": "not queried: recorded without Kafka",
        "refused": "nothing: Kafka rejected the message",
        "unknown": "unknown: no delivery report arrived; the records of its key are listed below",
    }.get(message.state, "unknown partition and offset")
