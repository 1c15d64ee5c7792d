"""The journey of a key of a running relay: its sampled changes, and its records in Kafka."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from bwtui.model.lsn import parse_lsn
from bwtui.model.service_views import LookName, StageEntry, Stages
from bwtui.model.status import ChangeSample, FieldChange
from bwtui.recording.reading.explain import RowKey
from bwtui.tui import figures
from bwtui.tui.audit.kafka_records import Ask, RecordDecoder
from bwtui.tui.host import Closer, ScreenHost, ScreenSelection
from bwtui.tui.journey.audit_result import AuditResult, AuditSubject
from bwtui.tui.journey.change_path import ChangePath, sampled_way
from bwtui.tui.journey.field_comparison import said_against, with_before
from bwtui.tui.journey.key_history import (
    KeyHistoryEntry,
    identity,
    merged,
    other_key,
    sampled,
    updated,
    xid_of,
)
from bwtui.tui.journey.key_matching import same_bytes, same_text
from bwtui.tui.screens.journey.base import (
    AGAIN,
    COLUMNS,
    FOLLOW,
    JourneyScreen,
    SelectedChange,
    renaming,
    versions,
)
from bwtui.tui.widgets.changes import OPERATIONS
from bwtui.tui.widgets.columns import Cell, GridColumn, GridRow
from bwtui.tui.widgets.grid import Grid
from bwtui.tui.widgets.journey.change_path import Fact
from bwtui.tui.widgets.journey.lifeline import Point

if TYPE_CHECKING:
    from bwtui.kafka.key_reader import StoredRecord

NOT_SAMPLED = (
    "not among the sampled changes: all but its record is unknown. The relay samples at most 50 changes a "
    "second; 'bwtui connect --record DIR' keeps every one"
)


class LiveJourney(JourneyScreen):
    """Grows as the relay samples more changes of the key, and as Kafka answers."""

    columns: ClassVar[tuple[GridColumn, ...]] = COLUMNS
    wants_changes: bool = True
    wants_look: ClassVar[LookName | None] = "stages"

    def __init__(self, host: ScreenHost, key: RowKey, sample: ChangeSample | None = None) -> None:
        """``sample`` is the change to select first; by default the key's newest one."""
        super().__init__(host, key)
        self._wanted = None if sample is None else f"sample {sample.sequence}"
        self._moved = False
        self._moments: dict[str, KeyHistoryEntry] = {}
        self._filled: object = None

    @classmethod
    def of(cls, host: ScreenHost, selection: ScreenSelection) -> Closer:
        """Return the screen of the selected key, or why there is none."""
        if isinstance(selection, LiveJourney):
            return selection.followed()
        key = selection.selected_key()
        return key if isinstance(key, str) else cls(host, key, selection.selected_sample())

    def followed(self) -> Closer:
        """Return the journey of the other key if the selected change changed it; else query Kafka again."""
        moment = self._moment()
        sample = None if moment is None else moment.sample
        other = None if sample is None else other_key(sample, self.key)
        if other is None:
            self.ask_again()
            self._ask_kafka()
            return "This change left the key alone; Kafka is asked again"
        return LiveJourney(self.host, other, sample)

    def reader(self, ask: Ask) -> RecordDecoder:
        texts = {entry.id: entry.schema for entry in self.host.model.picture.schemas}
        return RecordDecoder("avro", texts, ask)

    def points(self) -> Sequence[Point]:
        return [moment.point for moment in self._moments.values()]

    def why_nothing(self) -> str:
        if waits := self.kafka.waits_for_records():
            return f"no change of this key was sampled; {waits}"
        if self.kafka.failure:
            return f"no change of this key was sampled, and its records can't be read: {self.kafka.failure}"
        if self._topic() is None:
            return f"the relay has sent nothing of {self.key.table}"
        if self.kafka.found is None:
            return "no change of this key was sampled; Kafka was not asked yet"
        return "no change of this key was sampled, and no record of it was found"

    def selected_sample(self) -> ChangeSample | None:
        moment = self._moment()
        return None if moment is None else moment.sample

    def action_send_again(self) -> None:
        """Explain why a relay can't send a key again, and what can."""
        status = self.host.model.picture.status
        recording = None if status is None else status.recording
        why = "A relay sends each change once, in the order of the commits"
        if recording is not None and recording.state == "recording":
            how = f"it records, so 'bwtui open {recording.path}' can: {FOLLOW()} and {AGAIN()} there"
        else:
            how = (
                "to have the row's present value sent anew, update it, such as a column to itself. With "
                f"'bwtui connect --record DIR' it can be sent again: bwtui open DIR, {FOLLOW()}, {AGAIN()}"
            )
        self.notify(f"{why}; {how}", severity="warning", timeout=12)

    # The list.

    def fill(self) -> None:
        picture = self.host.model.picture
        look = picture.looks.get("stages")
        stages: Mapping[int, StageEntry] = {}
        if isinstance(look, Stages):
            stages = {entry.sequence: entry for entry in look.changes}
        known = [(updated(one, stages), role) for one, role in sampled(picture.changes, self.key)]
        records = () if self.kafka.found is None else tuple(self.kafka.found.records)
        filled = (known, self.kafka.version)
        grid = self.main_grid()
        if filled != self._filled:
            self._filled = filled
            self._moments = {moment.row_key: moment for moment in merged(known, records)}
            grid.set_rows([moment_row(moment) for moment in self._moments.values()])
            self._select()
            self._ask_kafka()
        grid.empty_text = self.why_nothing()
        grid.set_remark(self._remark(len(known)))

    def _select(self) -> None:
        """Select the requested change or the newest one, until the user moves the cursor."""
        if self._moved or not self._moments:
            return
        if self._wanted in self._moments:
            self.main_grid().move_to_key(self._wanted)
        else:
            self.main_grid().move_to(len(self._moments) - 1)

    def on_grid_moved(self, event: Grid.Moved) -> None:
        """Keep the user's selection."""
        self._moved = True

    def on_grid_highlighted(self, event: Grid.Highlighted) -> None:
        """Show the selected change, and read its record."""
        if event.grid is self.main_grid():
            self.show_chosen()
            self.look_at_place()

    def _remark(self, known: int) -> str:
        parts = ["1 sampled change" if known == 1 else f"{known:,} sampled changes"]
        if self.kafka.found is not None:
            count = self.kafka.found.count
            records = "1 record" if count == 1 else f"{count:,} records"
            parts.append(f"{records} in Kafka {self.as_of(self.kafka.found_time)}")
        elif waits := self.kafka.waits_for_records():
            parts.append(waits)
        return " · ".join(parts)

    def _moment(self) -> KeyHistoryEntry | None:
        return self._moments.get(self.main_grid().cursor_key or "")

    def _topic(self) -> str | None:
        status = self.host.model.picture.status
        table = None if status is None else status.tables.get(self.key.table)
        return None if table is None or not table.topic else table.topic

    def _ask_kafka(self) -> None:
        """Search for the key's records: by bytes if a sampled change has them, otherwise by text."""
        if (topic := self._topic()) is None:
            return
        own = [m.sample for m in self._moments.values() if m.sample is not None and m.renamed != "to"]
        known = next((bytes.fromhex(one.message_key) for one in reversed(own) if one.message_key), None)
        key = self.key
        if known is None:
            self.ask_kafka(topic, lambda reader: same_text(key, reader), None)
        elif not self._asked:
            self.ask_kafka(topic, lambda _: same_bytes(known), None)

    # The selected change.

    def chosen(self) -> SelectedChange | None:
        moment = self._moment()
        topic = self._topic()
        if moment is None or topic is None:
            return None
        sample, place = moment.sample, moment.place
        key = {
            name: value.decode("utf-8", "replace") if isinstance(value, bytes) else None
            for name, value in zip(self.key.columns, self.key.values, strict=True)
        }
        subject = AuditSubject(
            self.key.table,
            key,
            _lsn_of(moment),
            place=None if place is None else (topic, *place),
            time=moment.time,
        )
        way, fields = self._way_and_fields(moment)
        return SelectedChange(
            identity=(moment, fields),
            title="Sampled change" if sample is not None else "Record",
            way=way,
            facts=tuple(self._facts(moment, topic)),
            more=tuple(self._more(moment)),
            fields=fields,
            subject=subject,
            unplaced="" if place else self._unplaced(moment),
            judge=lambda stored, reader: self._judged(moment, stored, reader),
        )

    def _way_and_fields(self, moment: KeyHistoryEntry) -> tuple[ChangePath, Sequence[FieldChange]]:
        """Return the path of a change, and its fields; Kafka may have their values before the change."""
        sample, reader = moment.sample, self.kafka.reader
        if sample is None:
            return ChangePath("COMMIT", moment.time, (), (NOT_SAMPLED,)), ()
        way, earlier = sampled_way(sample), self._earlier(moment)
        if earlier is None or reader is None or sample.operation != "update":
            return way, sample.fields
        fields = tuple(with_before(sample.fields, earlier, reader))
        if fields == sample.fields:
            return way, fields
        place = f"{earlier.partition}@{earlier.offset}"
        told = f"PostgreSQL did not send the row before: it is that of the key's record before, {place}"
        return replace(way, remarks=(*way.remarks, told)), fields

    def _earlier(self, moment: KeyHistoryEntry) -> "StoredRecord | None":
        """Return the key's record before the one of a change, if it is a row."""
        stored = [one.stored for one in self._moments.values() if one.stored is not None]
        if moment.stored is None or moment.renamed:
            return None
        before = [
            one
            for one in stored
            if one.partition == moment.stored.partition and one.offset < moment.stored.offset
        ]
        newest = max(before, key=lambda one: one.offset, default=None)
        return None if newest is None or newest.value is None else newest

    def _judged(
        self, moment: KeyHistoryEntry, stored: "StoredRecord", reader: RecordDecoder
    ) -> tuple[AuditResult, set[str]]:
        """Compare a record with its sampled change.

        A record that is matched by time alone may belong to a different change.
        """
        if moment.sample is None:
            return AuditResult("muted", "nothing to compare with: the change was not sampled"), set()
        said, wrong = said_against(moment.sample.fields, stored, reader, moment.renamed)
        if said.tone == "bad" and not moment.is_sure:
            words = (
                "the record of its moment says something else: it may be of a later change of its transaction"
            )
            return AuditResult("warn", words), set()
        return said, wrong

    def _unplaced(self, moment: KeyHistoryEntry) -> str:
        """Return why the record of a sampled change is unknown; "" while it is searched for."""
        found, sample = self.kafka.found, moment.sample
        if found is None or self.kafka.failure:
            return ""
        if moment.doubtful:
            many = "1 record" if moment.doubtful == 1 else f"{moment.doubtful} records"
            return f"{many} of the key of its moment: which one is its own can't be told without --headers"
        if sample is not None and sample.passed and not sample.passed[-1]:
            return f"not yet acknowledged; {_again(moment)} asks Kafka again"
        if found.is_cut:
            return f"none of its moment among the newest {found.looked:,} offsets of the topic"
        why = f"it came after Kafka was asked ({_again(moment)} asks again), or was compacted away"
        return f"no record of its moment: {why}"

    def _facts(self, moment: KeyHistoryEntry, topic: str) -> Iterable[Fact]:
        sample, place = moment.sample, moment.place
        where = "" if place is None else f" partition {place[0]} offset {place[1]}"
        ids = []
        if sample is not None:
            known = {entry.id: entry.version for entry in self.host.model.picture.schemas}
            ids = [
                f"{name} schema {versions(known, number)}"
                for name, number in (("key", sample.key_schema_id), ("value", sample.value_schema_id))
                if number is not None and (name, moment.renamed) != ("value", "to")
            ]
        is_there = sample is not None and bool(sample.passed) and bool(sample.passed[-1])
        yield Fact("message", ", ".join((f"{topic}{where}", *ids)), "good" if is_there or place else "plain")
        if moment.renamed:
            words = {"from": "the row had another key before", "to": "the row has another key since"}
            yield Fact("key", f"{words[moment.renamed]}: {FOLLOW()} follows it", "warn")

    def _more(self, moment: KeyHistoryEntry) -> Iterable[Fact]:
        sample, stored = moment.sample, moment.stored
        if sample is None:
            lsn, xid = identity(stored) if stored else None, xid_of(stored) if stored else None
            told = (
                "not known: the record has no headers of a relay (--headers)"
                if lsn is None
                else f"lsn {lsn[0]}, xid {figures.NONE if xid is None else xid}"
            )
            yield Fact("transaction", told, "muted" if lsn is None else "plain")
            return
        number = f", change {sample.ordinal:,} of it" if sample.ordinal else ""
        yield Fact("transaction", f"lsn {sample.lsn}, xid {sample.xid}{number}")
        done: dict[str, dict[str, int]] = {}
        for one in self.host.model.picture.changes:
            if (one.xid, one.lsn) == (sample.xid, sample.lsn):
                table = done.setdefault(one.table, {})
                table[one.operation] = table.get(one.operation, 0) + 1
        told = ", ".join(
            f"{', '.join(f'{count} {operation}' for operation, count in counts.items())} in {table}"
            for table, counts in list(done.items())[:4]
        )
        yield Fact("", f"of it were sampled: {told}", "muted")


def _lsn_of(moment: KeyHistoryEntry) -> int | None:
    """Return the LSN of a change; None for a record that was not sampled and has no headers."""
    if moment.sample is not None:
        return parse_lsn(moment.sample.lsn) if moment.sample.lsn else None
    known = None if moment.stored is None else identity(moment.stored)
    return None if known is None else parse_lsn(known[0])


def _again(moment: KeyHistoryEntry) -> str:
    """Return the way to query Kafka again: at a change of the key the usual key opens the other journey."""
    return "opening this journey anew" if moment.renamed else FOLLOW()


def moment_row(moment: KeyHistoryEntry) -> GridRow:
    """Return a change as a row."""
    sample = moment.sample
    sign, tone = OPERATIONS.get(moment.operation, ("•", ""))
    place = figures.NONE if moment.place is None else f"{moment.place[0]}@{moment.place[1]}"
    changed = "" if sample is None else ", ".join(f.name for f in sample.fields if f.mark == "changed")
    story = " · ".join(filter(None, (renaming(moment.renamed), changed)))
    cells = (
        Cell("", ""),
        Cell(figures.precise_clock(moment.time), "muted"),
        Cell(f"{sign} {moment.operation}", tone),
        Cell(story if sample is not None else "not sampled", "warn" if story and sample else "muted"),
        Cell(figures.NONE if sample is None else sample.lsn, "muted"),
        Cell(figures.NONE if sample is None else str(sample.xid), "muted"),
        Cell(place, "muted"),
    )
    return GridRow(moment.row_key, cells)
