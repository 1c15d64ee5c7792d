"""The journey of a key: the timeline of its changes, the path of the selected one, and all its fields."""

import threading
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from textual import work
from textual.containers import Container
from textual.widget import Widget

from bwtui.errors import BwtuiError
from bwtui.model.latency import Percentiles, latency_from_json
from bwtui.model.lsn import format_lsn
from bwtui.model.service_views import LookName, Stages
from bwtui.model.status import ChangeSample, FieldChange
from bwtui.recording.change import OF_TRANSACTIONS, Change, SentMessage, as_text, differences
from bwtui.recording.explain import HistoryStep, KeyHistory, RowKey, explain, key_before, key_of, row_before
from bwtui.recording.playback import MICROS, counted
from bwtui.recording.view import RecordingView
from bwtui.tui.audit.records import (
    Ask,
    DecodedPart,
    FetchedRecord,
    IsKey,
    KafkaLookups,
    Place,
    RecordDecoder,
    same_bytes,
    same_text,
)
from bwtui.tui.audit.report import AuditResult, AuditSubject, audited, message_of
from bwtui.tui.base import figures
from bwtui.tui.base.keys import key_for
from bwtui.tui.base.plain import Content
from bwtui.tui.screens.base import RelayScreen
from bwtui.tui.sources.host import Closer, ScreenHost, ScreenSelection
from bwtui.tui.sources.journey import (
    COUNTED,
    ChangePath,
    Fact,
    KeyHistoryEntry,
    Point,
    compare_with_message,
    compare_with_sample,
    earlier_row,
    field_ways,
    hole,
    identity,
    merged,
    newest_of,
    opposite_key,
    query_of,
    readers_of,
    recorded_path,
    sampled,
    sampled_path,
    table_words,
    transaction_words,
    updated,
    usual,
    why_unplaced,
    with_before,
    xid_of,
)
from bwtui.tui.sources.model import ScreenSnapshot
from bwtui.tui.widgets.changes import OPERATIONS, WITHOUT, delivery_words
from bwtui.tui.widgets.grid import Cell, Grid, GridColumn, GridRow
from bwtui.tui.widgets.journey import FieldList, Lifeline, path_content
from bwtui.tui.widgets.line import Detail

if TYPE_CHECKING:
    from bwtui.kafka.key_reader import StoredRecord

#: The keys that follow a changed key and that send one again, for use in sentences.
FOLLOW = partial(key_for, "open_details('journey')")
AGAIN = partial(key_for, "send_again")
#: The columns of a change; each kind of journey may add its own.
COLUMNS = (
    GridColumn("mark", "", 1),
    GridColumn("time", "Committed", 12),
    GridColumn("op", "Op", 10),
    GridColumn("fields", "Changed fields", 18, grow=80),
    GridColumn("lsn", "LSN", 11, "right", drop=2, grow=17),
    GridColumn("xid", "Xid", 8, "right", drop=1),
    GridColumn("place", "Part@offset", 12, "right", drop=3, grow=18),
)
#: Maximum consumer groups that are listed one by one.
_GROUPS = 6


def renaming(renamed: str) -> str:
    """Return in which direction a change led from one key to another; "" if it did not change the key."""
    words = {"from": "had a different key before", "to": "has a different key now"}
    return f"{words[renamed]}: {FOLLOW()} shows its journey" if renamed else ""


@dataclass(frozen=True, slots=True)
class SelectedChange:
    """The selected change, in a form common to both kinds of journey."""

    #: Identifies the change and the data that is available about it.
    identity: object
    title: str
    way: ChangePath
    facts: tuple[Fact, ...]
    #: Facts that are less important than Kafka's.
    more: tuple[Fact, ...]
    fields: Sequence[FieldChange]
    subject: AuditSubject
    #: Why there is no record to look for, or an empty string.
    unplaced: str
    #: Compares the record at its place with it; also returns the fields that differ.
    judge: Callable[["StoredRecord", RecordDecoder], tuple[AuditResult, set[str]]]


class JourneyScreen(RelayScreen):
    """Filled as answers arrive from the recording, the relay and Kafka; waits for none of them."""

    mode: ClassVar[str] = "changes"
    own_list = True
    sends_again: ClassVar[bool] = True
    without = frozenset(("filter", "errors_only", "sort", "reverse"))
    columns: ClassVar[tuple[GridColumn, ...]] = ()

    def __init__(self, host: ScreenHost, key: RowKey, requested: str | None = None) -> None:
        """``requested`` is the key of the row to select first; by default the newest change is selected."""
        super().__init__(host)
        self.key = key
        self.kafka = KafkaLookups(host.audit.side, self.reader, host.model.clock)
        self._shown: object = None
        self._filled: object = None
        #: The key of the row to select, until the user moves the cursor.
        self._requested = requested
        self._moved = False
        #: The topic and partition of the last Kafka query.
        self._queried: tuple[str, int | None] | None = None

    # Methods of each kind of journey.

    @abstractmethod
    def chosen(self) -> SelectedChange | None:
        """Return the selected change, once it is available."""

    @abstractmethod
    def points(self) -> Sequence[Point]:
        """Return all changes for the timeline, in the order of the list."""

    @abstractmethod
    def why_nothing(self) -> str:
        """Return why no change is selected."""

    @abstractmethod
    def reader(self, ask: Ask) -> RecordDecoder:
        """Return a decoder of records; called in the thread that queries Kafka."""

    @abstractmethod
    def fill(self) -> None:
        """Show the changes that are available."""

    @abstractmethod
    def query_kafka(self) -> None:
        """Search for the key's records as the selected change sent it."""

    @abstractmethod
    def other_journey(self) -> "JourneyScreen | None":
        """Return the journey of the other key, if the selected change changed it."""

    # The screen.

    def body(self) -> Iterable[Widget]:
        steps = Grid(self.columns, id="steps")
        steps.add_class("panel")
        steps.border_title = Content(f"{self.key.table} {self.key}")
        pair = Container(steps, Detail(id="way", title="Change"), id="journey", classes="folder")
        return (Lifeline(), pair, FieldList())

    def on_unmount(self) -> None:
        self.kafka.close()

    def main_grid(self) -> Grid:
        return self.query_one("#steps", Grid)

    def crumbs(self) -> tuple[str, ...]:
        return ("Changes", f"{self.key.table} {self.key}")

    def selected_table(self) -> str | None:
        return self.key.table

    def selected_key(self) -> RowKey | str:
        return self.key

    def row_text(self) -> str:
        field = self.query_one(FieldList)
        if self.focused is field and (way := field.selected()) is not None:
            values = (way.before, way.after, way.kafka, way.newest)
            return "\t".join([way.name, *("NULL" if value is None else value for value in values)])
        return super().row_text()

    def paint(self, snapshot: ScreenSnapshot) -> None:
        self.fill()
        self.show_chosen()

    def followed(self) -> Closer:
        """Return the journey of the other key if the selected change changed it; else query Kafka again."""
        if (other := self.other_journey()) is not None:
            return other
        self.ask_again()
        self.query_kafka()
        return "No change of the key is selected; querying Kafka again"

    def select(self, *, newest: bool) -> None:
        """Select the requested change, or with ``newest`` the last one, until the user moves the cursor."""
        grid = self.main_grid()
        if self._moved or not grid.rows:
            return
        if self._requested is not None and any(row.key == self._requested for row in grid.rows):
            grid.move_to_key(self._requested)
        elif newest:
            grid.move_to(len(grid.rows) - 1)

    def on_grid_moved(self, event: Grid.Moved) -> None:
        """Keep the user's selection."""
        self._moved = True

    # The selected change.

    def show_chosen(self) -> None:
        """Show the selected change, and Kafka's answers about it."""
        if not self.is_attached:
            return
        grid, way = self.main_grid(), self.query_one("#way", Detail)
        self.query_one(Lifeline).show(self.points(), grid.cursor_row if grid.rows else None)
        chosen = self.chosen()
        if chosen is None:
            why = self.why_nothing()
            way.border_title = "Change"
            way.show(why, Content.styled(why, "$quiet"))
            self.query_one(FieldList).show([], " ")
            return
        size = (way.content_size.width, self.has_class("-tall"))
        today = figures.moment(self.host.model.clock())[:10]
        queries = (self.kafka.version, self.kafka.seconds_waited, id(self.host.audit.report), today)
        identity = (chosen.identity, size, queries, self.app.theme)
        if identity != self._shown:
            self._shown = identity
            self._show(chosen, way)

    def _show(self, chosen: SelectedChange, way: Detail) -> None:
        fetched = self._fetched(chosen)
        result, wrong = self._kafka_result(chosen, fetched)
        newest = self.kafka.key_records.newest if self.kafka.key_records is not None else None
        facts = (
            *chosen.facts,
            Fact.of("Kafka holds", result),
            *self._newest_facts(chosen, fetched),
            *self._reader_facts(chosen),
            Fact.of("last audit", audited(self.host.audit.report, chosen.subject, self.host.model.clock())),
            *chosen.more,
        )
        way.border_title = Content(chosen.title)
        width = way.scrollable_content_region.width
        content = path_content(
            chosen.way, facts, self.app.theme_variables, width=width, is_tall=self.has_class("-tall")
        )
        way.show((self._shown,), content)
        stored = None if fetched is None or isinstance(fetched.content, str) else fetched.content
        ways = field_ways(chosen.fields, self._decoded(stored), self._decoded(newest), wrong)
        self.query_one(FieldList).show(ways, "no fields of this change are available")

    def _decoded(self, stored: "StoredRecord | None") -> DecodedPart | None:
        reader = self.kafka.reader
        return None if stored is None or reader is None else reader.row(stored.value)

    def _fetched(self, chosen: SelectedChange) -> FetchedRecord | None:
        """Return the record or hole at the change's place; None if it is unknown."""
        place = chosen.subject.place
        return None if place is None else self.kafka.cached_record(place)

    def as_of(self, seconds: float) -> str:
        """Return the time of a Kafka query, which is not repeated automatically."""
        return f"as of {figures.when(seconds, self.host.model.clock())}"

    def _kafka_result(
        self, chosen: SelectedChange, fetched: FetchedRecord | None
    ) -> tuple[AuditResult, set[str]]:
        """Return whether Kafka holds the change, and the fields that differ."""
        place, reader = chosen.subject.place, self.kafka.reader
        if place is None and chosen.unplaced:
            return AuditResult("muted", chosen.unplaced), set()
        if fetched is None or place is None or reader is None:
            if self.kafka.failure:
                return AuditResult("bad", self.kafka.failure), set()
            return AuditResult("muted", self.kafka.waits_for_records() or "not queried yet"), set()
        content = fetched.content
        result, wrong = (
            (hole(content), set[str]()) if isinstance(content, str) else chosen.judge(content, reader)
        )
        where = f"{place[1]}@{place[2]} {self.as_of(fetched.time)}"
        return replace(result, text=f"{where}: {result.text}"), wrong

    def _newest_facts(self, chosen: SelectedChange, fetched: FetchedRecord | None) -> list[Fact]:
        """Return which record of the key is the newest."""
        search, place = self.kafka.key_records, chosen.subject.place
        if search is None:
            return []
        where = (
            "the topic"
            if self._queried is None or self._queried[1] is None
            else f"partition {self._queried[1]}"
        )
        cut = f"among the newest {search.scanned:,} offsets of"
        searched = f"{cut if search.is_cut else 'in all of'} {where}"
        more = "; some records are damaged" if search.is_damaged else ""
        if fetched is None or fetched.time != self.kafka.key_records_time:
            more += f", {self.as_of(self.kafka.key_records_time)}"
        newest = search.newest
        if newest is None:
            return [Fact("newest record", f"no record of the key {searched}{more}", "warn")]
        records = "1 record" if search.count == 1 else f"{search.count:,} records"
        counts = f"{records} of the key {searched}{more}"
        if place is not None and (newest.partition, newest.offset) == place[1:]:
            return [Fact("newest record", f"this one; {counts}", "good")]
        kind = "a tombstone" if newest.value is None else "a row"
        where = f"{newest.partition}@{newest.offset} of {figures.moment(newest.timestamp / 1000)}"
        return [Fact("newest record", f"{where}, {kind}; {counts}")]

    def _reader_facts(self, chosen: SelectedChange) -> list[Fact]:
        """Return which groups have read past the change."""
        place = chosen.subject.place
        if place is None:
            return []
        if self.kafka.groups_failure:
            return [Fact("read by", self.kafka.groups_failure, "bad")]
        if self.kafka.groups is None:
            waits = self.kafka.waits_for_groups() or ("" if self.kafka.failure else "not queried yet")
            return [Fact("read by", waits, "muted")] if waits else []
        as_of = self.as_of(self.kafka.groups_time)
        groups = readers_of(self.kafka.groups.groups, *place)
        if not groups:
            return [Fact("read by", f"no group has committed an offset in this topic, {as_of}", "muted")]
        facts = [Fact("" if number else "read by", f"{one.name} {one.text}", one.tone)
                 for number, one in enumerate(groups[:_GROUPS])]  # fmt: skip
        if len(groups) > _GROUPS:
            facts.append(Fact("", f"and {len(groups) - _GROUPS} more groups", "muted"))
        return [*facts, Fact("", f"by committed offsets, {as_of}", "muted")]

    # Kafka queries.

    def ask_kafka(self, topic: str, knows: Callable[[RecordDecoder], IsKey], partition: int | None) -> None:
        """Query Kafka for the key's records and the groups that read their topic."""
        if self._queried != (topic, partition):
            self._queried = (topic, partition)
            self.run_worker(self._search(topic, knows, partition), group="records", exclusive=True)
            self.run_worker(self._ask_for_groups(topic), group="groups", exclusive=True)

    def fetch_record_at_place(self) -> None:
        """Read the record of the selected change, unless the search has found it."""
        chosen = self.chosen()
        place = None if chosen is None else chosen.subject.place
        if chosen is None or place is None or self.kafka.key_records is None:
            return
        if self._fetched(chosen) is None:
            self.run_worker(self._fetch_record(place), group="place", exclusive=True)

    def ask_again(self) -> None:
        """Discard Kafka's answers, so that they are queried again."""
        self._queried = None
        self.kafka.forget()
        self.show_chosen()

    async def _search(
        self, topic: str, knows: Callable[[RecordDecoder], IsKey], partition: int | None
    ) -> None:
        await self.kafka.search(topic, knows, partition)
        if self.is_attached:
            self.refresh_picture()
        self.fetch_record_at_place()

    async def _fetch_record(self, place: Place) -> None:
        await self.kafka.fetch_record(place)
        self.show_chosen()

    async def _ask_for_groups(self, topic: str) -> None:
        await self.kafka.fetch_groups(topic)
        self.show_chosen()

    def open_row(self, grid: Grid) -> None:
        if grid is self.main_grid():
            self.open_transaction()

    def open_transaction(self) -> None:
        """Show the rest of the change's transaction; by default focus the change's details."""
        self.query_one("#way", Detail).focus()


def schema_texts(versions: Mapping[int, int | None], key_id: int | None, value_id: int | None) -> list[str]:
    """Return the schemas of a message with their versions."""
    texts = []
    for name, number in (("key", key_id), ("value", value_id)):
        if number is not None:
            version = versions.get(number)
            texts.append(f"{name} schema {number}" + ("" if version is None else f" v{version}"))
    return texts


def change_cells(time: float, operation: str, story: Cell, lsn: str, xid: str, place: object) -> list[Cell]:
    """Return the cells of a change after its mark; ``place`` has its partition and offset, if known."""
    sign, tone = OPERATIONS.get(operation, ("•", ""))
    texts = (lsn, xid, "{}@{}".format(*place) if isinstance(place, tuple) else figures.NONE)
    return [
        Cell(figures.precise_clock(time), "muted"),
        Cell(f"{sign} {operation}", tone),
        story,
        *(Cell(text, "muted") for text in texts),
    ]


NOT_SAMPLED = (
    "not among the sampled changes, so only its record is known. The relay samples at most 50 "
    "changes per second; 'bwtui connect --record DIR' keeps all of them"
)


class LiveJourney(JourneyScreen):
    """Grows as the relay samples more changes of the key, and as Kafka answers."""

    columns: ClassVar[tuple[GridColumn, ...]] = COLUMNS
    wants_changes: bool = True
    required_view: ClassVar[LookName | None] = "stages"

    def __init__(self, host: ScreenHost, key: RowKey, sample: ChangeSample | None = None) -> None:
        """``sample`` is the change to select first; by default the key's newest one."""
        super().__init__(host, key, None if sample is None else f"sample {sample.sequence}")
        self._moments: dict[str, KeyHistoryEntry] = {}

    @classmethod
    def of(cls, host: ScreenHost, selection: ScreenSelection) -> Closer:
        """Return the screen of the selected key, or why there is none."""
        if isinstance(selection, LiveJourney):
            return selection.followed()
        key = selection.selected_key()
        return key if isinstance(key, str) else cls(host, key, selection.selected_sample())

    def other_journey(self) -> "LiveJourney | None":
        sample = self.selected_sample()
        target = None if sample is None else opposite_key(sample, self.key)
        return None if target is None else LiveJourney(self.host, target, sample)

    def reader(self, ask: Ask) -> RecordDecoder:
        texts = {entry.id: entry.schema for entry in self.host.model.snapshot.schemas}
        return RecordDecoder("avro", texts, ask)

    def points(self) -> Sequence[Point]:
        return [moment.point for moment in self._moments.values()]

    def why_nothing(self) -> str:
        if waits := self.kafka.waits_for_records():
            return f"no change of this key was sampled; {waits}"
        if self.kafka.failure:
            return f"no change of this key was sampled, and its records can't be read: {self.kafka.failure}"
        if self._topic() is None:
            return f"the relay has sent no row of {self.key.table}"
        if self.kafka.key_records is None:
            return "no change of this key was sampled, and Kafka has not been queried yet"
        return "no change of this key was sampled, and no record of it was found"

    def selected_sample(self) -> ChangeSample | None:
        moment = self._moment()
        return None if moment is None else moment.sample

    def action_send_again(self) -> None:
        """Explain why a relay can't send a key again, and what can."""
        status = self.host.model.snapshot.status
        recording = None if status is None else status.recording
        why = "A relay sends each change once, in commit order"
        if recording is not None and recording.state == "recording":
            how = (
                f"it is recording, so use 'bwtui open {recording.path}', then {FOLLOW()} and {AGAIN()} there"
            )
        else:
            how = (
                "to send the present row again, update it, for example a column to its own value. "
                "With 'bwtui connect --record DIR' a key can be sent again: bwtui open DIR, "
                f"{FOLLOW()}, {AGAIN()}"
            )
        self.notify(f"{why}; {how}", severity="warning", timeout=12)

    # The list.

    def fill(self) -> None:
        snapshot = self.host.model.snapshot
        stages = {entry.sequence: entry for entry in snapshot.view(Stages).changes}
        samples = [(updated(one, stages), role) for one, role in sampled(snapshot.changes, self.key)]
        records = () if self.kafka.key_records is None else tuple(self.kafka.key_records.records)
        filled = (samples, self.kafka.version)
        grid = self.main_grid()
        if filled != self._filled:
            self._filled = filled
            self._moments = {moment.row_key: moment for moment in merged(samples, records)}
            grid.set_rows([moment_row(moment) for moment in self._moments.values()])
            self.select(newest=True)
            self.query_kafka()
        grid.empty_text = self.why_nothing()
        grid.set_remark(self._remark(len(samples)))

    def on_grid_highlighted(self, event: Grid.Highlighted) -> None:
        if event.grid is self.main_grid():
            self.show_chosen()
            self.fetch_record_at_place()

    def _remark(self, number: int) -> str:
        parts = ["1 sampled change" if number == 1 else f"{number:,} sampled changes"]
        if self.kafka.key_records is not None:
            count = self.kafka.key_records.count
            records = "1 record" if count == 1 else f"{count:,} records"
            parts.append(f"{records} in Kafka {self.as_of(self.kafka.key_records_time)}")
        elif waits := self.kafka.waits_for_records():
            parts.append(waits)
        return " · ".join(parts)

    def _moment(self) -> KeyHistoryEntry | None:
        return self._moments.get(self.main_grid().cursor_key or "")

    def _topic(self) -> str | None:
        status = self.host.model.snapshot.status
        table = None if status is None else status.tables.get(self.key.table)
        return None if table is None or not table.topic else table.topic

    def query_kafka(self) -> None:
        """Search for the key's records: by bytes if a sampled change has them, otherwise by text."""
        if (topic := self._topic()) is None:
            return
        samples = [m.sample for m in self._moments.values() if m.sample is not None and m.renamed != "to"]
        message_key = next(
            (bytes.fromhex(one.message_key) for one in reversed(samples) if one.message_key), None
        )
        key = self.key
        if message_key is None:
            self.ask_kafka(topic, lambda reader: same_text(key, reader), None)
        elif not self._queried:
            self.ask_kafka(topic, lambda _: same_bytes(message_key), None)

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
            moment.lsn,
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
        way, earlier = sampled_path(sample), earlier_row(moment, self._moments.values())
        if earlier is None or reader is None or sample.operation != "update":
            return way, sample.fields
        fields = tuple(with_before(sample.fields, earlier, reader))
        if fields == sample.fields:
            return way, fields
        place = f"{earlier.partition}@{earlier.offset}"
        remark = f"PostgreSQL did not send the old row; it is taken from the key's previous record, {place}"
        return replace(way, remarks=(*way.remarks, remark)), fields

    def _judged(
        self, moment: KeyHistoryEntry, stored: "StoredRecord", reader: RecordDecoder
    ) -> tuple[AuditResult, set[str]]:
        """Compare a record with its sampled change.

        A record that is matched by time alone may belong to a different change.
        """
        if moment.sample is None:
            return AuditResult("muted", "nothing to compare with: the change was not sampled"), set()
        result, wrong = compare_with_sample(moment.sample.fields, stored, reader, moment.renamed)
        if result.tone == "bad" and not moment.is_sure:
            words = (
                "the record with this commit time differs; it may belong to a later change of the "
                "same transaction"
            )
            return AuditResult("warn", words), set()
        return result, wrong

    def _unplaced(self, moment: KeyHistoryEntry) -> str:
        """Return why the record of a sampled change is unknown; "" while it is searched for."""
        search, sample = self.kafka.key_records, moment.sample
        if search is None or self.kafka.failure:
            return ""
        if moment.doubtful:
            many = "1 record" if moment.doubtful == 1 else f"{moment.doubtful} records"
            return f"{many} of the key with this commit time; without --headers the right one is unknown"
        if sample is not None and sample.passed and not sample.passed[-1]:
            return f"not acknowledged yet; {_again(moment)} queries Kafka again"
        if search.is_cut:
            return f"no record with this commit time among the newest {search.scanned:,} offsets of the topic"
        why = f"it arrived after Kafka was queried ({_again(moment)} queries again), or was compacted away"
        return f"no record with this commit time: {why}"

    def _facts(self, moment: KeyHistoryEntry, topic: str) -> Iterable[Fact]:
        sample, place = moment.sample, moment.place
        where = "" if place is None else f" partition {place[0]} offset {place[1]}"
        ids = []
        if sample is not None:
            schema_versions = {entry.id: entry.version for entry in self.host.model.snapshot.schemas}
            value_id = None if moment.renamed == "to" else sample.value_schema_id
            ids = schema_texts(schema_versions, sample.key_schema_id, value_id)
        is_there = sample is not None and bool(sample.passed) and bool(sample.passed[-1])
        yield Fact("message", ", ".join((f"{topic}{where}", *ids)), "good" if is_there or place else "plain")
        if moment.renamed:
            yield Fact("key", f"the row {renaming(moment.renamed)}", "warn")

    def _more(self, moment: KeyHistoryEntry) -> Iterable[Fact]:
        sample, stored = moment.sample, moment.stored
        if sample is None:
            lsn, xid = identity(stored) if stored else None, xid_of(stored) if stored else None
            text = (
                "unknown: the record has no bwtui headers (--headers)"
                if lsn is None
                else f"LSN {lsn[0]}, xid {figures.NONE if xid is None else xid}"
            )
            yield Fact("transaction", text, "muted" if lsn is None else "plain")
            return
        number = f", change {sample.ordinal:,} of it" if sample.ordinal else ""
        yield Fact("transaction", f"LSN {sample.lsn}, xid {sample.xid}{number}")
        done: dict[str, dict[str, int]] = {}
        for one in self.host.model.snapshot.changes:
            if (one.xid, one.lsn) == (sample.xid, sample.lsn):
                table = done.setdefault(one.table, {})
                table[one.operation] = table.get(one.operation, 0) + 1
        text = table_words(
            (table, [f"{count} {operation}" for operation, count in counts.items()])
            for table, counts in list(done.items())[:4]
        )
        yield Fact("", f"sampled changes of it: {text}", "muted")


def _again(moment: KeyHistoryEntry) -> str:
    """Return the way to query Kafka again: at a change of the key the usual key opens the other journey."""
    return "opening this journey again" if moment.renamed else FOLLOW()


def moment_row(moment: KeyHistoryEntry) -> GridRow:
    """Return a change as a row."""
    sample = moment.sample
    changed = [] if sample is None else [field.name for field in sample.fields if field.mark == "changed"]
    story = " · ".join(filter(None, (renaming(moment.renamed), ", ".join(changed))))
    lsn, xid = (figures.NONE, figures.NONE) if sample is None else (sample.lsn, str(sample.xid))
    did = Cell("not sampled" if sample is None else story, "warn" if story and sample else "muted")
    cells = change_cells(moment.time, moment.operation, did, lsn, xid, moment.place)
    return GridRow(moment.row_key, (Cell(""), *cells))


class RecordedJourney(JourneyScreen):
    """Filled while the recording is read; Esc stops the reading, and goes back."""

    columns: ClassVar[tuple[GridColumn, ...]] = (*COLUMNS, GridColumn("schema", "ValId", 5, "right", drop=4))

    def __init__(self, host: ScreenHost, key: RowKey, position: int | None = None) -> None:
        """``position`` is the change to select first; by default the key's last one."""
        super().__init__(host, key, None if position is None else str(position))
        self.story = KeyHistory(key)
        self._cancelled = threading.Event()
        self._failure: BwtuiError | None = None
        self._steps: list[HistoryStep] = []
        self._points: list[Point] = []
        self._texts: dict[int, str] = {}
        self._versions: dict[int, int | None] = {}
        #: The selected change, once it has been read again, with its fields and a remark on the latencies
        #: around it.
        self._read: tuple[Change, tuple[FieldChange, ...], str] | None = None
        self._transaction: tuple[int, str] | None = None

    @classmethod
    def of(cls, host: ScreenHost, selection: ScreenSelection) -> Closer:
        """Return the screen of the selected row's key, or why there is none."""
        change = selection.selected_change()
        if isinstance(selection, RecordedJourney):
            return selection.followed()
        key = selection.selected_key()
        if isinstance(key, str):
            if change is not None and change.operation == "truncate":
                return "TRUNCATE empties whole tables, so it is not part of any key's journey"
            return key
        is_of_key = change is not None and key in (key_of(change), key_before(change))
        return cls(host, key, change.position if change is not None and is_of_key else None)

    def other_journey(self) -> "RecordedJourney | None":
        if (change := self.selected_change()) is None:
            return None
        others = (key for key in (key_of(change), key_before(change)) if key not in (None, self.key))
        other = next(others, None)
        return None if other is None else RecordedJourney(self.host, other, change.position)

    def on_mount(self) -> None:
        self.run_worker(self._explain(), exit_on_error=True)

    def on_unmount(self) -> None:
        self._cancelled.set()

    def reader(self, ask: Ask) -> RecordDecoder:
        return RecordDecoder(self.recording.source.view.source.output_format, self._texts, ask)

    def points(self) -> Sequence[Point]:
        return self._points

    def why_nothing(self) -> str:
        if self._failure is not None:
            return self._failure.message
        if self.story.finished and not self.story.count:
            return "the recording has no change of this key"
        return "reading the recording…"

    def selected_change(self) -> Change | None:
        """Return the selected step's change, once it has been read again."""
        step = self._step()
        return self._read[0] if self._read and step and self._read[0].position == step.position else None

    def action_send_again(self) -> None:
        """Ask how to send the key again, or show why that is impossible."""
        if self._failure is not None:
            self._warn(f"The newest message of the key can't be determined: {self._failure.message}")
        elif not self.story.finished:
            # Until then a different thread adds steps, so iterating over them is not safe.
            self._warn("The recording is still being read, so the newest message of the key is not known yet")
        elif (newest := newest_of(self.story.steps)) is None:
            self._warn("No message of this key was sent, so there is nothing to send again")
        elif query_of(self.key) is None:
            self._warn(
                "The key includes a large value that PostgreSQL did not send, so a query can't find "
                "its messages"
            )
        else:
            self.recording.ask_to_send_again(self.key, newest.position, self._newer_record(newest))

    def _newer_record(self, newest: HistoryStep) -> str:
        """Return the effect on the key's latest value, if the topic has a newer record or that is unknown."""
        search = self.kafka.key_records
        if search is None:
            return "It is unknown whether the topic has a newer record of the key: Kafka has not answered."
        record = search.newest
        if record is None or (record.partition, record.offset) == (newest.partition, newest.offset):
            return ""
        if record.timestamp < newest.commit_time // 1_000:
            return ""
        where = f"{record.partition}@{record.offset} of {figures.moment(record.timestamp / 1000)}"
        return (
            f"The topic has a newer record of the key ({where}); the sent message becomes its latest value."
        )

    def open_transaction(self) -> None:
        self.host.open_details("transaction", self)

    # The list.

    def fill(self) -> None:
        story, grid = self.story, self.main_grid()
        # A different thread adds steps: read ``finished`` first, because a finished story has all its steps.
        finished, count = story.finished, story.count
        if (count, finished) != self._filled:
            self._filled = (count, finished)
            self._steps = list(story.steps)
            self._points = [
                Point(step.commit_time / MICROS, step.operation, _is_bad(step)) for step in self._steps
            ]
            grid.set_rows([step_row(step) for step in self._steps])
            self.select(newest=finished and self._requested is None)
        grid.empty_text = self.why_nothing()
        grid.set_remark(self._progress())

    def on_grid_highlighted(self, event: Grid.Highlighted) -> None:
        if event.grid is self.main_grid():
            if (step := self._step()) is not None:
                self._read_step(step)
            self.show_chosen()

    def _step(self) -> HistoryStep | None:
        at = self.main_grid().cursor_row
        return self._steps[at] if at < len(self._steps) else None

    def _progress(self) -> str:
        story = self.story
        parts = [f"{story.count:,} changes" if story.count != 1 else "1 change"]
        if story.count > len(story.steps):
            parts.append(f"showing the last {len(story.steps):,}")
        if self._failure is not None:
            parts.append(f"✗ {self._failure.message}")
        elif not story.finished:
            share = figures.percent(story.read / max(story.total, 1))
            parts.append(f"{share} read · {key_for('back')} stops")
        return " · ".join(parts)

    # Reading.

    async def _explain(self) -> None:
        source = self.recording.source
        try:
            schemas = await source.search(lambda view: view.schemas(view.length))
            self._texts = {entry.id: entry.schema for entry in schemas}
            self._versions = {entry.id: entry.version for entry in schemas}
            await source.study(lambda view: explain(view, self.story, self._cancelled.is_set))
        except BwtuiError as error:
            self._failure = error
        if self.is_attached:
            self.refresh_picture()

    @work(group="step", exclusive=True)
    async def _read_step(self, step: HistoryStep) -> None:
        def read(view: RecordingView) -> tuple[Change, tuple[FieldChange, ...], str]:
            change = next(view.changes(step.position, step.position + 1))
            status = view.status(step.position + 1)
            latency: dict[str, Percentiles] = latency_from_json(status.get("latency") or {})
            usual_latency = usual(latency, float(status.get("time") or 0))
            return change, differences(change, row_before(view, step, change)), usual_latency

        try:
            self._read = await self.recording.source.search(read)
        except BwtuiError as error:
            self.notify(error.message, severity="error", markup=False)
            return
        self.query_kafka()
        self.show_chosen()
        self.fetch_record_at_place()
        await self._count(self._read[0])

    async def _count(self, change: Change) -> None:
        """Count the changes of the change's transaction."""
        source = self.recording.source
        if not change.in_transaction or (
            self._transaction is not None and self._transaction[0] == change.position
        ):
            return
        try:
            start, stop = await source.transaction(change.position)
            counts = await source.study(partial(counted, start=start, stop=min(stop, start + COUNTED)))
        except BwtuiError:
            # The list shows the damage.
            return
        self._transaction = (change.position, transaction_words(stop - start, counts))
        self.show_chosen()

    def query_kafka(self) -> None:
        """Search for the key as this change sent it; a different topic or partition needs a new search."""
        step, change = self._step(), self.selected_change()
        message = None if step is None or change is None else self._message(change)
        if message is not None and message.key is not None and message.state != "unsent":
            key = message.key
            self.ask_kafka(message.topic, lambda _: same_bytes(key), message.partition)

    def _message(self, change: Change) -> SentMessage | None:
        """Return the change's message of this key; a change without a key has only one."""
        renamed = change.operation == "update" and key_before(change) == self.key != key_of(change)
        message = message_of(change, 0 if renamed else len(change.messages) - 1)
        return message or next(iter(change.messages), None)

    # The selected change.

    def chosen(self) -> SelectedChange | None:
        change = self.selected_change()
        if change is None or self._read is None:
            return None
        _, fields, usual_latency = self._read
        message = self._message(change)
        way = recorded_path(change, message, usual_latency)
        place = None
        if message is not None and message.partition is not None and message.offset is not None:
            place = (message.topic, message.partition, message.offset)
        texts = {name: as_text(value) for name, value in zip(self.key.columns, self.key.values, strict=True)}
        recording = self.recording.source.view.source.recording
        subject = AuditSubject(self.key.table, texts, change.lsn, recording, change.position, place)
        transaction = (
            self._transaction[1] if self._transaction and self._transaction[0] == change.position else ""
        )
        return SelectedChange(
            identity=(change.position, fields, message, transaction, usual_latency),
            title=f"Change at position {change.position:,}",
            way=way,
            facts=tuple(self._facts(change, message)),
            more=tuple(_recorded_more(change, transaction)),
            fields=fields,
            subject=subject,
            unplaced="" if place else why_unplaced(change, message),
            judge=lambda stored, reader: (
                (AuditResult("muted", ""), set())
                if message is None
                else compare_with_message(message, change, stored, reader)
            ),
        )

    def _facts(self, change: Change, message: SentMessage | None) -> Iterable[Fact]:
        for one in change.messages:
            tone, words = delivery_words(one)
            kind = "tombstone" if one.value is None else figures.size(len(one.value))
            ids = schema_texts(self._versions, one.key_schema_id, one.value_schema_id)
            yield Fact("message", ", ".join((f"{one.topic} {words}", kind, *ids)), tone)
        if not change.messages:
            reason = WITHOUT.get(change.without or "", change.without or "no reason recorded")
            yield Fact("no message", reason, "bad" if change.without == "dropped" else "warn")
        if change.is_repeat:
            yield Fact("sent again", "an earlier pass already recorded this change", "muted")
        if change.filled:
            yield Fact(
                "filled",
                f"filled in by the relay, because PostgreSQL did not send it: {', '.join(change.filled)}",
            )


def _recorded_more(change: Change, transaction: str) -> Iterable[Fact]:
    if change.operation == "snapshot":
        yield Fact("snapshot", f"row {change.ordinal:,} of its table, as of LSN {change.lsn_text}")
    elif not change.in_transaction:
        yield Fact(
            change.operation, f"added to the stream at LSN {change.lsn_text}, pass {change.pass_number}"
        )
    if not change.in_transaction:
        return
    number = (
        f"LSN {change.lsn_text}, xid {change.xid}, change {change.ordinal:,} of it, pass {change.pass_number}"
    )
    yield Fact("transaction", number)
    if transaction:
        yield Fact("", f"{transaction}; {key_for('drill')} shows them")


def _is_bad(step: HistoryStep) -> bool:
    return step.without == "dropped" or step.state == "refused"


def step_row(step: HistoryStep) -> GridRow:
    """Return a step as a row."""
    mark = Cell("✗", "bad") if _is_bad(step) else Cell("»", "muted") if step.is_repeat else Cell("")
    story = Cell(_story(step), "warn" if step.renamed or step.changed else "muted")
    xid = str(step.xid) if step.operation in OF_TRANSACTIONS else ""
    place = None if step.offset is None else (step.partition, step.offset)
    time = step.commit_time / MICROS
    cells = change_cells(time, step.operation, story, format_lsn(step.lsn), xid, place)
    schema = figures.NONE if step.value_schema_id is None else str(step.value_schema_id)
    return GridRow(str(step.position), (mark, *cells, Cell(schema, "muted")))


def _story(step: HistoryStep) -> str:
    """Return in a few words what a step did."""
    parts = [renaming(step.renamed), step.changed, "sent again" if step.is_repeat else ""]
    parts.append(f"no message: {step.without}" if step.without else "")
    if step.state in ("refused", "unknown"):
        parts.append(f"delivery {step.state}")
    return " · ".join(part for part in parts if part)
