"""The journey of a key: a timeline of its changes, the path of the selected one, and all its fields."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from textual.containers import Container
from textual.widget import Widget

from bwtui.model.status import FieldChange
from bwtui.recording.reading.explain import RowKey
from bwtui.tui import figures
from bwtui.tui.audit.kafka_records import Ask, DecodedPart, RecordDecoder
from bwtui.tui.host import ScreenHost
from bwtui.tui.journey.audit_result import AuditResult, AuditSubject, audited
from bwtui.tui.journey.change_path import ChangePath
from bwtui.tui.journey.field_comparison import field_ways, hole
from bwtui.tui.journey.group_positions import readers_of
from bwtui.tui.journey.kafka_lookups import FetchedRecord, IsKey, KafkaLookups, Place
from bwtui.tui.keys import key_for
from bwtui.tui.plain import Content
from bwtui.tui.screens.base import RelayScreen
from bwtui.tui.state import ScreenSnapshot
from bwtui.tui.widgets.columns import GridColumn
from bwtui.tui.widgets.detail import Detail
from bwtui.tui.widgets.grid import Grid
from bwtui.tui.widgets.journey.change_path import Fact, way_content
from bwtui.tui.widgets.journey.fields import FieldList
from bwtui.tui.widgets.journey.lifeline import Lifeline, Point

if TYPE_CHECKING:
    from bwtui.kafka.key_reader import StoredRecord

#: The keys that follow a changed key and that send one again, for use in sentences.
FOLLOW = partial(key_for, "look_closer('journey')")
AGAIN = partial(key_for, "send_again")
#: The columns of a change; each kind of journey may add its own.
COLUMNS = (
    GridColumn("mark", "", 1),
    GridColumn("time", "Committed", 12),
    GridColumn("op", "Op", 10),
    GridColumn("fields", "What changed", 18, grow=80),
    GridColumn("lsn", "LSN", 11, "right", drop=2, grow=17),
    GridColumn("xid", "Xid", 8, "right", drop=1),
    GridColumn("place", "Part@offset", 12, "right", drop=3, grow=18),
)
#: Maximum consumer groups that are listed one by one.
_GROUPS = 6


def renaming(renamed: str) -> str:
    """Return in which direction a change led from one key to another; "" if it did not change the key."""
    words = {"from": "was another key before", "to": "has another key since"}
    return f"{words[renamed]}: {FOLLOW()} follows it" if renamed else ""


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

    def __init__(self, host: ScreenHost, key: RowKey) -> None:
        super().__init__(host)
        self.key = key
        self.kafka = KafkaLookups(host.audit.side, self.reader, host.model.clock)
        self._shown: object = None
        #: The topic and partition of the last Kafka query.
        self._asked: tuple[str, int | None] | None = None

    # Methods for subclasses to override.

    def chosen(self) -> SelectedChange | None:
        """Return the selected change, once it is available."""
        raise NotImplementedError

    def points(self) -> Sequence[Point]:
        """Return all changes for the timeline, in the order of the list."""
        raise NotImplementedError

    def why_nothing(self) -> str:
        """Return why no change is selected."""
        raise NotImplementedError

    def reader(self, ask: Ask) -> RecordDecoder:
        """Return a decoder of records; called in the thread that queries Kafka."""
        raise NotImplementedError

    # The screen.

    def body(self) -> Iterable[Widget]:
        """Return the timeline, the changes next to the path of one of them, and its fields."""
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
        """Return the key of the journey."""
        return self.key

    def row_text(self) -> str:
        """Return the selected field or change as text to copy."""
        field = self.query_one(FieldList)
        if self.focused is field and (way := field.selected()) is not None:
            values = (way.before, way.after, way.kafka, way.newest)
            return "\t".join([way.name, *("NULL" if value is None else value for value in values)])
        return super().row_text()

    def paint(self, picture: ScreenSnapshot) -> None:
        self.fill()
        self.show_chosen()

    def fill(self) -> None:
        """Show the changes that are available."""
        raise NotImplementedError

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
            self.query_one(FieldList).show([], "")
            return
        size = (way.content_size.width, self.has_class("-tall"))
        today = figures.moment(self.host.model.clock())[:10]
        asked = (self.kafka.version, self.kafka.seconds_waited, id(self.host.audit.report), today)
        identity = (chosen.identity, size, asked, self.app.theme)
        if identity != self._shown:
            self._shown = identity
            self._show(chosen, way)

    def _show(self, chosen: SelectedChange, way: Detail) -> None:
        held = self._held(chosen)
        said, wrong = self._said_of(chosen, held)
        newest = self.kafka.found.newest if self.kafka.found is not None else None
        facts = (
            *chosen.facts,
            Fact.of("Kafka holds", said),
            *self._of_newest(chosen, held),
            *self._of_readers(chosen),
            Fact.of("last audit", audited(self.host.audit.report, chosen.subject, self.host.model.clock())),
            *chosen.more,
        )
        way.border_title = Content(chosen.title)
        width = way.scrollable_content_region.width
        content = way_content(
            chosen.way, facts, self.app.theme_variables, width=width, is_tall=self.has_class("-tall")
        )
        way.show((self._shown,), content)
        stored = None if held is None or isinstance(held.what, str) else held.what
        ways = field_ways(chosen.fields, self._decoded(stored), self._decoded(newest), wrong)
        self.query_one(FieldList).show(ways, "no fields of this change are available")

    def _decoded(self, stored: "StoredRecord | None") -> DecodedPart | None:
        reader = self.kafka.reader
        return None if stored is None or reader is None else reader.row(stored.value)

    def _held(self, chosen: SelectedChange) -> FetchedRecord | None:
        """Return the record or hole at the change's place; None if it is unknown."""
        place = chosen.subject.place
        return None if place is None else self.kafka.held(place)

    def as_of(self, seconds: float) -> str:
        """Return the time of a Kafka query, which is not repeated automatically."""
        return f"as of {figures.when(seconds, self.host.model.clock())}"

    def _said_of(self, chosen: SelectedChange, held: FetchedRecord | None) -> tuple[AuditResult, set[str]]:
        """Return whether Kafka holds the change, and the fields that differ."""
        place, reader = chosen.subject.place, self.kafka.reader
        if place is None and chosen.unplaced:
            return AuditResult("muted", chosen.unplaced), set()
        if held is None or place is None or reader is None:
            if self.kafka.failure:
                return AuditResult("bad", self.kafka.failure), set()
            return AuditResult("muted", self.kafka.waits_for_records() or "not asked yet"), set()
        what = held.what
        said, wrong = (hole(what), set[str]()) if isinstance(what, str) else chosen.judge(what, reader)
        where = f"{place[1]}@{place[2]} {self.as_of(held.time)}"
        return replace(said, words=f"{where}: {said.words}"), wrong

    def _of_newest(self, chosen: SelectedChange, held: FetchedRecord | None) -> list[Fact]:
        """Return which record of the key is the newest."""
        found, place = self.kafka.found, chosen.subject.place
        if found is None:
            return []
        where = (
            "the topic" if self._asked is None or self._asked[1] is None else f"partition {self._asked[1]}"
        )
        cut = f"among the newest {found.looked:,} offsets of"
        searched = f"{cut if found.is_cut else 'in all of'} {where}"
        more = "; some of it is damaged" if found.is_damaged else ""
        if held is None or held.time != self.kafka.found_time:
            more += f", {self.as_of(self.kafka.found_time)}"
        newest = found.newest
        if newest is None:
            return [Fact("newest there", f"no record of the key {searched}{more}", "warn")]
        records = "1 record" if found.count == 1 else f"{found.count:,} records"
        told = f"{records} of the key {searched}{more}"
        if place is not None and (newest.partition, newest.offset) == place[1:]:
            return [Fact("newest there", f"this one; {told}", "good")]
        kind = "a tombstone" if newest.value is None else "a row"
        where = f"{newest.partition}@{newest.offset} of {figures.moment(newest.timestamp / 1000)}"
        return [Fact("newest there", f"{where}, {kind}; {told}")]

    def _of_readers(self, chosen: SelectedChange) -> list[Fact]:
        """Return which groups have read past the change."""
        place = chosen.subject.place
        if place is None:
            return []
        if self.kafka.groups_failure:
            return [Fact("read by", self.kafka.groups_failure, "bad")]
        if self.kafka.groups is None:
            waits = self.kafka.waits_for_groups() or ("" if self.kafka.failure else "not asked yet")
            return [Fact("read by", waits, "muted")] if waits else []
        asked = self.as_of(self.kafka.groups_time)
        groups = readers_of(self.kafka.groups.groups, *place)
        if not groups:
            return [Fact("read by", f"no group has committed an offset in this topic, {asked}", "muted")]
        facts = [Fact("" if number else "read by", f"{one.group} {one.words}", one.tone)
                 for number, one in enumerate(groups[:_GROUPS])]  # fmt: skip
        if len(groups) > _GROUPS:
            facts.append(Fact("", f"and {len(groups) - _GROUPS} more groups", "muted"))
        return [*facts, Fact("", f"by what they last committed, {asked}", "muted")]

    # Kafka queries.

    def ask_kafka(self, topic: str, knows: Callable[[RecordDecoder], IsKey], partition: int | None) -> None:
        """Query Kafka for the key's records and the groups that read their topic."""
        if self._asked != (topic, partition):
            self._asked = (topic, partition)
            self.run_worker(self._search(topic, knows, partition), group="records", exclusive=True)
            self.run_worker(self._ask_for_groups(topic), group="groups", exclusive=True)

    def look_at_place(self) -> None:
        """Read the record of the selected change, unless the search has found it."""
        chosen = self.chosen()
        place = None if chosen is None else chosen.subject.place
        if chosen is None or place is None or self.kafka.found is None:
            return
        if self._held(chosen) is None:
            self.run_worker(self._look_at(place), group="place", exclusive=True)

    def ask_again(self) -> None:
        """Discard Kafka's answers, so that they are queried again."""
        self._asked = None
        self.kafka.forget()
        self.show_chosen()

    async def _search(
        self, topic: str, knows: Callable[[RecordDecoder], IsKey], partition: int | None
    ) -> None:
        await self.kafka.search(topic, knows, partition)
        if self.is_attached:
            self.refresh_picture()
        self.look_at_place()

    async def _look_at(self, place: Place) -> None:
        await self.kafka.look_at(place)
        self.show_chosen()

    async def _ask_for_groups(self, topic: str) -> None:
        await self.kafka.look_at_groups(topic)
        self.show_chosen()

    def open_row(self, grid: Grid) -> None:
        """Open the transaction of a change."""
        if grid is self.main_grid():
            self.open_transaction()

    def open_transaction(self) -> None:
        """Show the rest of the change's transaction; by default focus the change's details."""
        self.query_one("#way", Detail).focus()


def versions(schemas: Mapping[int, int | None], number: int | None) -> str:
    """Return a schema's id with its version."""
    if number is None:
        return figures.NONE
    version = schemas.get(number)
    return str(number) if version is None else f"{number} v{version}"
