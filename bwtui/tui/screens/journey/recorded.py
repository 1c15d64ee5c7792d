"""The journey of a key in a recording: all its changes, as far as the recording has been read."""

import threading
from collections.abc import Iterable, Sequence
from functools import partial
from typing import ClassVar

from textual import work

from bwtui.errors import BwtuiError
from bwtui.model.latency import Percentiles, latency_from_json
from bwtui.model.lsn import format_lsn
from bwtui.model.status import FieldChange
from bwtui.recording.change import OF_TRANSACTIONS, Change, SentMessage
from bwtui.recording.fields import as_text, differences
from bwtui.recording.reading.explain import (
    HistoryStep,
    KeyHistory,
    RowKey,
    explain,
    key_before,
    key_of,
    row_before,
)
from bwtui.recording.reading.seek_target import MICROS
from bwtui.recording.reading.transaction import TransactionCounts, counted
from bwtui.recording.view import RecordingView
from bwtui.tui import figures
from bwtui.tui.audit.field_pairs import message_of
from bwtui.tui.audit.kafka_records import Ask, RecordDecoder
from bwtui.tui.host import Closer, ScreenHost, ScreenSelection
from bwtui.tui.journey.audit_result import AuditResult, AuditSubject
from bwtui.tui.journey.change_path import recorded_way, usual
from bwtui.tui.journey.field_comparison import sent_against
from bwtui.tui.journey.key_matching import same_bytes
from bwtui.tui.journey.replay_query import newest_of, query_of
from bwtui.tui.keys import key_for
from bwtui.tui.screens.journey.base import COLUMNS, JourneyScreen, SelectedChange, renaming, versions
from bwtui.tui.widgets.changes import OPERATIONS
from bwtui.tui.widgets.columns import Cell, GridColumn, GridRow
from bwtui.tui.widgets.grid import Grid
from bwtui.tui.widgets.journey.change_path import Fact
from bwtui.tui.widgets.journey.lifeline import Point
from bwtui.tui.widgets.recording.change import WITHOUT, delivery_words

#: Maximum changes of a transaction that are counted.
_COUNTED = 20_000


class RecordedJourney(JourneyScreen):
    """Filled while the recording is read; Esc stops the reading, and goes back."""

    columns: ClassVar[tuple[GridColumn, ...]] = (*COLUMNS, GridColumn("schema", "ValId", 5, "right", drop=4))

    def __init__(self, host: ScreenHost, key: RowKey, position: int | None = None) -> None:
        """``position`` is the change to select first; by default the key's last one."""
        super().__init__(host, key)
        self.story = KeyHistory(key)
        self._wanted = position
        self._cancelled = threading.Event()
        self._failure: BwtuiError | None = None
        self._filled: object = None
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
                return "TRUNCATE empties whole tables: it is about no single row, so no key has this journey"
            return key
        is_own = change is not None and key in (key_of(change), key_before(change))
        return cls(host, key, change.position if change is not None and is_own else None)

    def followed(self) -> Closer:
        """Return the journey of the other key if the selected change changed it; else query Kafka again."""
        change = self.selected_change()
        keys = (key_of(change), key_before(change)) if change is not None else ()
        other = next((key for key in keys if key is not None and key != self.key), None)
        if other is None:
            self.ask_again()
            self._ask_kafka()
            return "This change left the key alone; Kafka is asked again"
        return RecordedJourney(self.host, other, None if change is None else change.position)

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
            self._warn(f"Which message of the key is its newest can't be known: {self._failure.message}")
        elif not self.story.finished:
            # Until then a different thread adds steps, so iterating over them is not safe.
            self._warn(
                "The recording is still being read: which message of the key is its newest is not known yet"
            )
        elif (newest := newest_of(self.story.steps)) is None:
            self._warn("No message of this key was sent, so there is none to send again")
        elif query_of(self.key) is None:
            self._warn("This key holds a large value that was not sent, so no query finds it")
        else:
            self.recording.ask_to_send_again(self.key, newest.position, self._newer_there(newest))

    def _newer_there(self, newest: HistoryStep) -> str:
        """Return the effect on the key's latest value, if the topic has a newer record or that is unknown."""
        found = self.kafka.found
        if found is None:
            return "Whether its topic holds a newer record of the key is not known: Kafka has not answered."
        there = found.newest
        if there is None or (there.partition, there.offset) == (newest.partition, newest.offset):
            return ""
        if there.timestamp < newest.commit_time // 1_000:
            return ""
        where = f"{there.partition}@{there.offset} of {figures.moment(there.timestamp / 1000)}"
        return f"Its topic holds a newer record of the key ({where}): what is sent becomes its latest value."

    def open_transaction(self) -> None:
        self.host.look_closer("transaction", self)

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
            self._select(finished)
        grid.empty_text = self.why_nothing()
        grid.set_remark(self._progress())

    def _select(self, finished: bool) -> None:
        """Select the requested change, or the last one once all are read, until the user moves the cursor."""
        if self._wanted == -1 or not self._steps:
            return
        if self._wanted is None and finished:
            self.main_grid().move_to(len(self._steps) - 1)
            self._wanted = -1
        elif any(step.position == self._wanted for step in self._steps):
            self.main_grid().move_to_key(str(self._wanted))
            self._wanted = -1

    def on_grid_moved(self, event: Grid.Moved) -> None:
        """Keep the user's selection."""
        self._wanted = -1

    def on_grid_highlighted(self, event: Grid.Highlighted) -> None:
        """Read the selected step again, to show it in full."""
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
            parts.append(f"the last {len(story.steps):,} are shown")
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
            said = usual(latency, float(status.get("time") or 0))
            return change, differences(change, row_before(view, step, change)), said

        try:
            self._read = await self.recording.source.search(read)
        except BwtuiError as error:
            self.notify(error.message, severity="error", markup=False)
            return
        self._ask_kafka()
        self.show_chosen()
        self.look_at_place()
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
            found = await source.study(partial(counted, start=start, stop=min(stop, start + _COUNTED)))
        except BwtuiError:
            # The list shows the damage.
            return
        self._transaction = (change.position, transaction_words(stop - start, found))
        self.show_chosen()

    def _ask_kafka(self) -> None:
        """Search for the key as this change sent it; a different topic or partition needs a new search."""
        step, change = self._step(), self.selected_change()
        message = None if step is None or change is None else self._message(change)
        if message is not None and message.key is not None and message.state != "unsent":
            key = message.key
            self.ask_kafka(message.topic, lambda _: same_bytes(key), message.partition)

    def _message(self, change: Change) -> SentMessage | None:
        """Return the change's message of this key; a change without a key has only one."""
        renamed = change.operation == "update" and key_before(change) == self.key != key_of(change)
        found = message_of(change, 0 if renamed else len(change.messages) - 1)
        return found or next(iter(change.messages), None)

    # The selected change.

    def chosen(self) -> SelectedChange | None:
        change = self.selected_change()
        if change is None or self._read is None:
            return None
        _, fields, said = self._read
        message = self._message(change)
        way = recorded_way(change, message, said)
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
            identity=(change.position, fields, message, transaction, said),
            title=f"Change at position {change.position:,}",
            way=way,
            facts=tuple(self._facts(change, message)),
            more=tuple(_more(change, transaction)),
            fields=fields,
            subject=subject,
            unplaced="" if place else _unplaced(change, message),
            judge=lambda stored, reader: (
                (AuditResult("muted", ""), set())
                if message is None
                else sent_against(message, change, stored, reader)
            ),
        )

    def _facts(self, change: Change, message: SentMessage | None) -> Iterable[Fact]:
        for one in change.messages:
            tone, words = delivery_words(one)
            kind = "tombstone" if one.value is None else figures.size(len(one.value))
            ids = [
                f"{name} schema {versions(self._versions, number)}"
                for name, number in (("key", one.key_schema_id), ("value", one.value_schema_id))
                if number is not None
            ]
            yield Fact("message", ", ".join((f"{one.topic} {words}", kind, *ids)), tone)
        if not change.messages:
            reason = WITHOUT.get(change.without or "", change.without or "no reason recorded")
            yield Fact("no message", reason, "bad" if change.without == "dropped" else "warn")
        if change.is_repeat:
            yield Fact("sent again", "an earlier pass recorded this change already", "muted")
        if change.filled:
            yield Fact(
                "filled", f"put in by the relay, as PostgreSQL did not send it: {', '.join(change.filled)}"
            )


def _more(change: Change, transaction: str) -> Iterable[Fact]:
    if change.operation == "snapshot":
        yield Fact("snapshot", f"row {change.ordinal:,} of its table, as of LSN {change.lsn_text}")
    elif not change.in_transaction:
        yield Fact(
            change.operation, f"put into the stream at lsn {change.lsn_text}, pass {change.pass_number}"
        )
    if not change.in_transaction:
        return
    number = (
        f"lsn {change.lsn_text}, xid {change.xid}, change {change.ordinal:,} of it, pass {change.pass_number}"
    )
    yield Fact("transaction", number)
    if transaction:
        yield Fact("", f"{transaction}; {key_for('drill')} shows them")


def transaction_words(number: int, found: TransactionCounts) -> str:
    """Return what a transaction of ``number`` changes did."""
    shown = [f"{', '.join(words)} in {table}" for table, words in list(found.by_table.items())[:4]]
    left = len(found.by_table) - len(shown)
    rest = f" and {left} more tables" if left > 0 else ""
    many = "1 change" if number == 1 else f"{number:,} changes"
    cut = f", of the first {_COUNTED:,}" if number > _COUNTED else ""
    return f"{many}: {', '.join(shown)}{rest}{cut}"


def _unplaced(change: Change, message: SentMessage | None) -> str:
    """Return why the record of a change can't be looked for."""
    if message is None:
        return "nothing of it: it made no message"
    return {
        "unsent": "not asked: it was recorded without Kafka",
        "refused": "nothing of it: Kafka refused it",
        "unknown": "not known: no word came of where it is; the records of its key are below",
    }.get(message.state, "its place is not known")


def _is_bad(step: HistoryStep) -> bool:
    return step.without == "dropped" or step.state == "refused"


def step_row(step: HistoryStep) -> GridRow:
    """Return a step as a row."""
    sign, tone = OPERATIONS.get(step.operation, (" ", ""))
    bad = _is_bad(step)
    place = figures.NONE if step.offset is None else f"{step.partition}@{step.offset}"
    schema = figures.NONE if step.value_schema_id is None else str(step.value_schema_id)
    cells = (
        Cell("✗", "bad") if bad else Cell("»", "muted") if step.is_repeat else Cell(""),
        Cell(figures.precise_clock(step.commit_time / MICROS), "muted"),
        Cell(f"{sign} {step.operation}", tone),
        Cell(_story(step), "warn" if step.renamed or step.changed else "muted"),
        Cell(format_lsn(step.lsn), "muted"),
        Cell(str(step.xid) if step.operation in OF_TRANSACTIONS else "", "muted"),
        Cell(place, "muted"),
        Cell(schema, "muted"),
    )
    return GridRow(str(step.position), cells)


def _story(step: HistoryStep) -> str:
    """Return in a few words what a step did."""
    parts = [renaming(step.renamed), step.changed, "sent again" if step.is_repeat else ""]
    parts.append(f"no message: {step.without}" if step.without else "")
    if step.state in ("refused", "unknown"):
        parts.append(f"delivery {step.state}")
    return " · ".join(part for part in parts if part)
