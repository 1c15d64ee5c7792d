"""The first screen: the pipeline and the tables; with more space, also history, latencies and services."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import ClassVar, NamedTuple

from rich.cells import cell_len
from textual.app import ComposeResult
from textual.containers import Container, Horizontal, Vertical
from textual.widget import Widget
from textual.widgets import Sparkline

from bwtui.model.lsn import format_lsn
from bwtui.model.service_views import Consumers, GroupEntry, Look, LookName, SlotEntry, Slots
from bwtui.model.status import STAGES, ChangeSample, StageStatus, Status, TableStatus
from bwtui.recording.explain import RowKey
from bwtui.tui.base import assessment, figures
from bwtui.tui.base.keys import key_for
from bwtui.tui.base.plain import Content, fitted
from bwtui.tui.base.theme import TONES
from bwtui.tui.screens.backfills import in_one_line
from bwtui.tui.screens.base import RelayScreen
from bwtui.tui.sources.journey import TypedKey, parse_typed_key, plain_key, sampled_key, tables_of
from bwtui.tui.sources.model import ScreenSnapshot
from bwtui.tui.widgets import history
from bwtui.tui.widgets.changes import ChangeList
from bwtui.tui.widgets.filter_bar import Filter, FilterBar
from bwtui.tui.widgets.grid import Cell, Grid, GridColumn, Item, ItemList
from bwtui.tui.widgets.header import Header
from bwtui.tui.widgets.history import EventList, LatencyPanel, RateChart
from bwtui.tui.widgets.journey import KeyBar
from bwtui.tui.widgets.line import Line, Panel, joined, pair, wrapped
from bwtui.tui.widgets.transport import RecordingLine

#: Cells within the boxes at both ends, the same in wide terminals, the width from which on a terminal is
#: wide, and the cells of the frame.
_END, _WIDE_END, _ROOMY, _FRAME = 28, 44, 200, 4


class StageBox(Line):
    """Shows one stage: rate and queue, in a tall box also total and times; the slow stage is marked."""

    def __init__(self, name: str) -> None:
        super().__init__(id=f"stage-{name}", classes="box")
        self._title = name
        self._stage = StageStatus()
        self._slow = False
        self._duration: float | None = None
        self._is_old = False
        self.border_title = Content(name)

    def show(self, stage: StageStatus, slow: bool, duration: float | None, *, is_old: bool) -> None:
        """Paint what changed; the slow stage is marked with a word and a heavy border.

        ``duration`` is the median of the seconds that messages spent in the stage. With ``is_old``, the
        status is old, and only the total is shown.
        """
        visible = (stage, duration, is_old)
        if visible == (self._stage, self._duration, self._is_old) and slow == self._slow and self._lines:
            return
        self._stage, self._duration, self._is_old = visible
        if slow != self._slow:
            self._slow = slow
            self.set_class(slow, "-slow")
            self.border_subtitle = "▲ SLOW" if slow else ""
        self.put(self._content())

    def on_resize(self) -> None:
        """Fit the content to the new size; shorten the title if it would be cut."""
        short = self.size.width < len(self._title) + 4
        self.border_title = Content(self._title[:3] if short else self._title)
        self.put(self._content())

    def _content(self) -> Content:
        stage, width = self._stage, self.content_size.width
        share = 0.0 if self._is_old else assessment.fullness(stage)
        tone = "$warning" if share >= assessment.FULL else "$primary"
        lines = [Content.styled(self._now(f"{figures.rate(stage.per_second)}/s").rjust(width), "bold")]
        waiting = self._now(figures.count(stage.queue))
        if self.content_size.height < 4:
            queue = waiting.rjust(6)
            bar = figures.gauge(share, width - 6) if stage.capacity else " " * (width - 6)
            lines.append(Content.assemble((bar, tone), (queue, "$quiet")))
        else:
            bar = figures.gauge(share, width) if stage.capacity else "·" * width
            limit = f" / {stage.capacity}" if stage.capacity and width >= 19 else ""
            lines.append(Content.styled(bar, tone if stage.capacity else "$line"))
            lines.append(pair("queue", f"{waiting}{limit}", width))
            lines.append(pair("total", figures.count(stage.total), width))
        if self.content_size.height >= 6:
            lines += self._thread_activity(width)
        return Content("\n").join(lines)

    def _thread_activity(self, width: int) -> list[Content]:
        if self._title == "decode":
            # Decoding and encoding are measured as one step.
            return [Content.styled("timed with", "$quiet"), Content.styled("encode".rjust(width), "$quiet")]
        duration = figures.NONE if self._duration is None else self._now(history.brief(self._duration))
        busy = self._now(figures.percent(self._stage.busy))
        return [pair("busy", busy, width), pair("p50", duration, width)]

    def _now(self, figure: str) -> str:
        """Return a present figure, or a dash if the status is old."""
        return figures.NONE if self._is_old else figure


class Arrow(Widget):
    """The connection of two boxes; its shaft is shown if there is space."""

    def render(self) -> str:
        return "▶".rjust(self.content_size.width, "─")


class Pipeline(Vertical):
    """Shows PostgreSQL, the stages and Kafka; as lines and flat boxes if space is short."""

    def compose(self) -> ComposeResult:
        self.border_title = "Pipeline"
        self.add_class("panel")
        yield Line(id="ends")
        with Horizontal(id="flow"):
            yield EndBox("PostgreSQL", id="source")
            yield Arrow(classes="end")
            for name in STAGES:
                if name != STAGES[0]:
                    yield Arrow()
                yield StageBox(name)
            yield Arrow(classes="end")
            yield EndBox("Kafka", id="sink")
        yield Line(id="position")
        yield RecordingLine(id="recording")
        with Horizontal(id="vitals"):
            yield Line(id="delivered")
            yield Sparkline(id="throughput")
            yield Line(id="engine")

    def show(self, snapshot: ScreenSnapshot) -> None:
        """Paint what changed."""
        status = snapshot.status
        if status is None:
            return
        slow = assessment.slow_stage(status)
        taken, _ = history.taken_by(status)
        for name in STAGES:
            box = self.query_one(f"#stage-{name}", StageBox)
            one = taken.get(history.STAGE_OF.get(name, ""))
            counts = status.stages.get(name, StageStatus())
            box.show(counts, name == slow, one.p50 if one else None, is_old=snapshot.as_of is not None)
        width = self.content_size.width
        boxed = bool(self.query_one("#source").display)
        vitals = bool(self.query_one("#vitals").display)
        position = (_background if boxed else _position)(snapshot, status, width, vitals)
        self.query_one("#ends", Line).put(_ends(snapshot, status, width))
        source, sink = self.query_one("#source", EndBox), self.query_one("#sink", EndBox)
        end = _END if width < _ROOMY else _WIDE_END
        source.styles.width = sink.styles.width = end + _FRAME
        source.say_when(snapshot.as_of)
        source.put(_source(snapshot, status, end))
        only_recorded = _only_recorded(snapshot, status)
        sink.set_title("Recording" if only_recorded else "Kafka")
        sink.say_when(snapshot.as_of)
        sink.put(_sink(snapshot, status, only_recorded, end))
        self.query_one("#position", Line).put(_snapshot(status, width) or position)
        self.query_one("#recording", RecordingLine).show(status.recording)
        if vitals:
            self._show_vitals(snapshot, status)

    def _show_vitals(self, snapshot: ScreenSnapshot, status: Status) -> None:
        delivered = status.stages.get("acknowledge", StageStatus()).per_second
        rate = (figures.NONE if snapshot.as_of else f"{figures.rate(delivered)}/s").rjust(8)
        chart = self.query_one("#throughput", Sparkline)
        peak, top = max(snapshot.delivered, default=0.0), figures.ceiling(snapshot.delivered)
        lines = [Content.assemble(("delivered ", "$quiet"), (rate, "bold"))]
        if self.query_one("#vitals").size.height > 1:
            cut = "of the last 2 m" if peak <= top else f"cut off at {figures.rate(top)}/s"
            lines.append(Content.assemble(("peak      ", "$quiet"), f"{figures.rate(peak)}/s".rjust(8)))
            lines.append(Content.styled(cut, "$quiet"))
        elif peak > top:
            lines[0] += Content.styled(f" ▲{figures.rate(peak)}", "$quiet")
        self.query_one("#delivered", Line).put(Content("\n").join(lines))
        # One point per cell, the newest at the right: stretched or bundled points would jump. The zero at the
        # start makes the scale begin at zero.
        room = max(chart.content_size.width - 1, 1)
        points = [min(point, top) for point in snapshot.delivered[-room:]]
        chart.data = [0.0] * (1 + room - len(points)) + points
        self.query_one("#engine", Line).put(_engine(snapshot, status))


class EndBox(Line):
    """One end of the pipeline, as a box with its title in the border."""

    _when = ""

    def __init__(self, title: str, *, id: str) -> None:
        super().__init__(id=id)
        self._title = title
        self.border_title = Content(title)
        self.add_class("box", "end")

    def set_title(self, title: str) -> None:
        """Set the title; Textual would repaint everything even for the same text."""
        if title != self._title:
            self._title = title
            self.border_title = Content(title)

    def say_when(self, as_of: float | None) -> None:
        """Show the time of the figures if they are old."""
        text = "" if as_of is None else f"as of {figures.clock(as_of)}"
        if text != self._when:
            self._when = text
            self.border_subtitle = Content(text)


def _named(name: str, value: str, tone: str = "") -> Content:
    return Content.assemble((f"{name} ", "$quiet"), (value, tone))


def _safe_bytes(status: Status) -> str:
    if status.wal_status == "lost":
        return "nothing"
    if status.safe_wal_bytes is None:
        return "no limit"
    return figures.size(max(status.safe_wal_bytes, 0))


def _engine(snapshot: ScreenSnapshot, status: Status) -> Content:
    is_old = snapshot.as_of is not None
    cpu = figures.NONE if snapshot.cpu is None or is_old else f"{snapshot.cpu * 100:.0f}%"
    memory = (figures.NONE if is_old else figures.size(status.resident_bytes)).rjust(7)
    return Content.assemble(("engine ", "$quiet"), memory, ("  cpu ", "$quiet"), cpu.rjust(4))


def _runway(snapshot: ScreenSnapshot) -> list[Content]:
    """Return how long the slot would stay safe if the relay stopped now; this is not a countdown."""
    remaining = snapshot.seconds_left()
    if remaining is None or snapshot.as_of is not None:
        return []
    return [_named("safe", f"≈ {figures.duration(remaining)} if the relay stopped now")]


def _commits(snapshot: ScreenSnapshot, status: Status) -> list[Content]:
    """Return that the relay delivers exactly once, and the rate and latency of its Kafka transactions."""
    one = status.exactly_once
    if one is None:
        return []
    if snapshot.as_of is not None or one.commit_p50 is None:
        return [Content.styled("exactly once", "bold")]
    duration = f"{figures.rate(one.commits_per_second)} commits/s, p50 {history.brief(one.commit_p50)}"
    return [Content.assemble(("exactly once ", "bold"), duration)]


def _lag(snapshot: ScreenSnapshot, status: Status) -> assessment.Assessment:
    """Judge the lag; if the status is old, return only its time."""
    if snapshot.as_of is not None:
        return assessment.Assessment("muted", f"as of {figures.clock(snapshot.as_of)}")
    return assessment.of_lag(status)


def _wal(snapshot: ScreenSnapshot, status: Status) -> assessment.Assessment:
    wal = assessment.of_wal_status(status.wal_status)
    return wal if snapshot.as_of is None or wal.tone != "good" else assessment.Assessment("muted", wal.word)


def _ends(snapshot: ScreenSnapshot, status: Status, width: int) -> Content:
    wal = _wal(snapshot, status)
    version = status.server_version.split(" ")[0]
    server = "PostgreSQL" if width >= 100 else "PG"
    parts = [
        Content.assemble((f"{server} {version}", "bold"), f" ▸ {status.slot[:16]}"),
        _named("wal", f"{wal.mark} {wal.word}", TONES[wal.tone]),
        _named("retained", assessment.retained(status)),
        _named("safe", _safe_bytes(status)),
    ]
    if snapshot.as_of is not None:
        # Right after the name, where there is always space.
        parts.insert(1, Content.styled(f"as of {figures.clock(snapshot.as_of)}", "bold $warning"))
    if _only_recorded(snapshot, status):
        parts.insert(1, Content.styled("▶ recorded only", "bold"))
    else:
        parts.append(Content.assemble(("▶ Kafka ", "bold"), status.broker))
    return joined(parts, width)


def _position(snapshot: ScreenSnapshot, status: Status, width: int, vitals: bool) -> Content:
    lag = _lag(snapshot, status)
    tone = TONES[lag.tone]
    behind = f"{figures.size(status.wal_lag_bytes)} {figures.duration(status.wal_lag_seconds)}"
    parts = [
        _named("lag", behind.ljust(15), tone),
        Content.styled(f"{lag.mark} {lag.word}".ljust(9), tone),
        *_runway(snapshot),
        *_commits(snapshot, status),
        # Without vitals, their space is taken by the chart over ten minutes.
        *([] if vitals else [_engine(snapshot, status)]),
        _named("confirmed", format_lsn(status.confirmed_lsn)),
        _named("server", format_lsn(status.server_lsn)),
        _named("received", format_lsn(status.received_lsn)),
        _named("transactions", figures.count(status.transactions)),
    ]
    return joined(parts, width)


def _background(snapshot: ScreenSnapshot, status: Status, width: int, vitals: bool) -> Content:
    """Return the figures that do not fit into the boxes, and the vitals if they are hidden."""
    spilled = figures.NONE if status.spill_bytes is None else figures.size(status.spill_bytes)
    parts = [
        *_runway(snapshot),
        *_commits(snapshot, status),
        # Without vitals, their space is taken by the chart over ten minutes, which has the latencies next to
        # it.
        *([] if vitals else [_engine(snapshot, status)]),
        *([way] if vitals and (way := history.summary(status)) else []),
        _named("publication", status.publication),
        _named("received LSN", format_lsn(status.received_lsn)),
        _named("restart LSN", format_lsn(status.restart_lsn)),
        _named("spilled by the server", spilled),
    ]
    return joined(parts, width)


def _snapshot(status: Status, width: int) -> Content | None:
    """Return the progress of the whole snapshot, or None if none is running."""
    tables = [t for t in status.tables.values() if t.snapshot_state != "none"]
    if not status.is_copying or not tables:
        return None
    done = sum(t.snapshot_state == "done" for t in tables)
    rows = sum(t.snapshot_rows for t in tables)
    estimate = sum(max(t.snapshot_estimate or 0, t.snapshot_rows) for t in tables)
    share = min(rows / estimate, 0.99) if estimate else 0.0
    pace = sum(t.rows_per_second for t in tables)
    remaining = figures.remaining((estimate - rows) / pace if pace and estimate > rows else None)
    parts = [
        Content.assemble(("snapshot ", "bold"), (figures.gauge(share, 20), "$primary")),
        Content(figures.percent(share).rjust(4)),
        _named("rows", f"{figures.count(rows)} of ~{figures.count(estimate)}"),
        _named("tables done", f"{done} of {len(tables)}"),
        *([Content(remaining)] if remaining else []),
        *([_named("workers", str(len(status.snapshot_workers)))] if status.snapshot_workers else []),
    ]
    return joined(parts, width)


def _source(snapshot: ScreenSnapshot, status: Status, width: int) -> Content:
    wal = _wal(snapshot, status)
    lines = [
        Content.styled(fitted(status.server_version, width), "bold"),
        Content.styled(fitted(status.database, width), "$quiet"),
        pair("slot", fitted(status.slot, width - 8), width),
        pair("wal", f"{wal.mark} {wal.word}", width, TONES[wal.tone]),
        pair("server LSN", format_lsn(status.server_lsn), width),
        pair("retained", assessment.retained(status), width),
        pair("safe", _safe_bytes(status), width),
    ]
    return Content("\n").join(lines)


def _only_recorded(snapshot: ScreenSnapshot, status: Status) -> bool:
    """Return whether changes are only recorded, and not sent to Kafka."""
    is_recording = snapshot.playhead is not None or status.recording is not None
    return is_recording and not status.broker


def _sink(snapshot: ScreenSnapshot, status: Status, only_recorded: bool, width: int) -> Content:
    lag = _lag(snapshot, status)
    tone = TONES[lag.tone]
    lines = [
        Content.styled("recorded only" if only_recorded else fitted(status.broker, width), "bold"),
        Content.styled(
            "nothing is sent to Kafka" if only_recorded else fitted(status.registry, width), "$quiet"
        ),
        pair("confirmed LSN", format_lsn(status.confirmed_lsn), width),
        pair("lag", figures.size(status.wal_lag_bytes), width, tone),
        pair("lag in time", figures.duration(status.wal_lag_seconds), width, tone),
        pair("", f"{lag.mark} {lag.word}", width, tone),
        pair("transactions", figures.count(status.transactions), width),
    ]
    return Content("\n").join(lines)


#: Age in seconds from which on an answer is reported as old; these service views are polled every five.
OLD_AFTER = 20.0
#: Seconds without being shown after which a panel starts to wait for an answer again.
_AWAY = 3.0


class ServicePanel(Panel):
    """Reports an old answer, but only if it has been polled for long enough."""

    _since = _last = float("-inf")

    def age(self, view: Look, snapshot: ScreenSnapshot) -> str:
        """Return the remark on an old answer, with its age in whole seconds; "" for a fresh one."""
        if snapshot.absence:
            return f"▲ as of {figures.clock(view.time)}: the relay {snapshot.absence}"
        now = snapshot.received
        if now - self._last > _AWAY or now < self._last:
            self._since = now
        self._last = now
        old = now - view.time
        if old <= OLD_AFTER:
            return ""
        if now - self._since <= OLD_AFTER:
            return f"· {figures.duration(old)} old; querying again"
        return f"▲ no answer for {figures.duration(old)}; showing the last one"

    def put_lines(self, lines: list[Content], height: int) -> None:
        """Show as many lines as fit, and the number of the others."""
        if len(lines) > height > 1:
            more = f"and {len(lines) - height + 1} more; {key_for('drill')} shows all"
            lines = [*lines[: height - 1], Content.styled(more, "$quiet")]
        self.put(lines)


def query_notice(snapshot: ScreenSnapshot, service: str) -> Content:
    """Return what the relay polls, or that it polls nothing."""
    if snapshot.absence:
        return Content.styled(f"· not queried: the relay {snapshot.absence}", "$warning")
    return Content.styled(f"· the relay is querying {service}…", "$quiet")


#: Shares of the limit from which on the bar changes its colour; the figure is next to it.
_WARN, _BAD = 0.5, 0.8


class RetainedWalPanel(ServicePanel):
    """Shows this relay's slot as soon as it is known, and the other slots a few seconds later."""

    leads_to = "slots"

    def __init__(self) -> None:
        super().__init__("WAL runway", id="runway")

    def shown_of(self, snapshot: ScreenSnapshot) -> object:
        status, view = snapshot.status, snapshot.view(Slots)
        if status is None:
            return None
        own_slot = (
            status.retained_wal_bytes,
            status.safe_wal_bytes,
            status.wal_status,
            status.verdict.stands_still,
        )
        return own_slot, snapshot.wal_rate, snapshot.as_of, view, self.age(view, snapshot)

    def draw(self, snapshot: ScreenSnapshot, width: int, height: int) -> None:
        if snapshot.status is None:
            return
        view = snapshot.view(Slots)
        own_slot = _own_slot_lines(snapshot, snapshot.status, width)
        other_slots = _other_slots_lines(snapshot, snapshot.status, self.age(view, snapshot), width)
        self.put_lines([*own_slot, *other_slots], height)
        many = len(view.slots)
        self.set_remark("" if not view.time or view.failure else "1 slot" if many == 1 else f"{many} slots")


def _own_slot_lines(snapshot: ScreenSnapshot, status: Status, width: int) -> Iterator[Content]:
    retained, safe = status.retained_wal_bytes, status.safe_wal_bytes
    if snapshot.as_of is not None:
        text = f"▲ as of {figures.clock(snapshot.as_of)}: the relay {snapshot.absence}"
        yield from wrapped(text, width, "$warning")
    if status.wal_status == "lost":
        yield from wrapped("✗ the slot has lost WAL that it needs", width, "bold $error")
        return
    if safe is None:
        yield Content.assemble(("retained ", "$quiet"), (assessment.retained(status), "bold"))
        text = "· no limit is set (max_slot_wal_keep_size): an unused slot fills the disk"
        if not status.wal_status:
            text = "· unknown so far whether a limit is set"
        yield from wrapped(text, width, "$quiet")
    else:
        yield from _bar(retained, max(safe, 0), width)
        if status.wal_status == "unreserved" or safe <= 0:
            text = "✗ the slot is about to be lost: its WAL may be removed"
            yield from wrapped(text, width, "bold $error")
        seconds_left = snapshot.seconds_left()
        if seconds_left is not None and snapshot.as_of is None:
            # While the relay keeps up, nothing is lost, so this is not a countdown.
            condition = (
                "while the relay makes no progress"
                if status.verdict.stands_still
                else "if the relay stopped now"
            )
            time = (f"≈ {figures.duration(seconds_left)}", "bold")
            yield Content.assemble(("safe ", "$quiet"), time, (f" {condition}", "$quiet"))
    if snapshot.wal_rate is not None and snapshot.as_of is None:
        rate = f"{figures.size(snapshot.wal_rate)}/s"
        yield Content.assemble(("the server writes ", "$quiet"), rate, (" of WAL", "$quiet"))


def _bar(retained: int, safe: int, width: int) -> Iterator[Content]:
    """Yield the retained share of the limit; what the server calls safe is the rest up to the limit."""
    limit = retained + safe
    share = retained / limit if limit else 0.0
    tone = "$error" if share >= _BAD else "$warning" if share >= _WARN else "$success"
    retained_bytes = Content.assemble(
        ("retained ", "$quiet"), (figures.size(retained), "bold"), (" of ", "$quiet"), figures.size(limit)
    )
    lines = "<1%" if 0 < share < 0.01 else figures.percent(share)
    gap = " " * max(width - retained_bytes.cell_length - len(lines), 1)
    yield retained_bytes + Content(gap) + Content.styled(lines, f"bold {tone}")
    yield Content.styled(figures.gauge(share, width), tone)


def _other_slots_lines(snapshot: ScreenSnapshot, status: Status, age: str, width: int) -> Iterator[Content]:
    """Yield the other slots that retain more than this one, or need attention."""
    view = snapshot.view(Slots)
    if not view.time:
        yield query_notice(snapshot, "the other slots")
        return
    if view.failure:
        yield from wrapped(f"✗ {view.failure}", width, "$error")
        return
    yield from wrapped(age, width, "$warning")
    other_slots = [slot for slot in view.slots if slot.name != status.slot]
    lines = [slot for slot in other_slots if _matters(slot, status.retained_wal_bytes)]
    for slot in sorted(lines, key=lambda one: (one.wal_status != "lost", -(one.retained_wal_bytes or 0))):
        yield _other_slot_line(slot, view.time, width)
    if not lines:
        mark = "·" if snapshot.absence else "✓"
        text = f"{mark} no other slot retains more" if other_slots else f"{mark} there is no other slot"
        yield Content.styled(text, "$quiet")
    for note in view.notes:
        yield from wrapped(f"▲ {note}", width, "$warning")


def _matters(slot: SlotEntry, retained: int) -> bool:
    return assessment.of_slot(slot).tone != "good" or (slot.retained_wal_bytes or 0) > retained


def _other_slot_line(slot: SlotEntry, now: float, width: int) -> Content:
    verdict = assessment.of_slot(slot)
    tone = TONES[verdict.tone] if verdict.tone != "good" else "$quiet"
    idle = "" if slot.inactive_since is None else f" {figures.duration(now - slot.inactive_since)}"
    keeps = "" if slot.retained_wal_bytes is None else f" {figures.size(slot.retained_wal_bytes)},"
    words = f"{keeps} {verdict.word}"
    # The user must type the name; for how long the slot has had no reader is on its own screen, too.
    words += idle if 2 + len(slot.name) + len(words) + len(idle) <= width else ""
    mark = verdict.mark if verdict.tone != "good" else "·"
    return Content.assemble(
        (f"{mark} ", tone), fitted(slot.name, max(width - 2 - len(words), 8)), (words, tone)
    )


#: Cells of the verdict, the rows and the time; minimum and maximum cells of a name.
_WORD, _ROWS, _TIME = 12, 8, 10
_SHORT_NAME, _LONG = 14, 40


class GroupsPanel(ServicePanel):
    """Lists the groups, those with the largest lag first."""

    leads_to = "consumers"

    def __init__(self) -> None:
        super().__init__("Consumer groups", id="readers")

    def shown_of(self, snapshot: ScreenSnapshot) -> object:
        view = snapshot.view(Consumers)
        return view, snapshot.absence, self.age(view, snapshot)

    def draw(self, snapshot: ScreenSnapshot, width: int, height: int) -> None:
        view = snapshot.view(Consumers)
        self.put_lines(list(_group_lines(snapshot, self.age(view, snapshot), width)), height)
        late = sum(assessment.is_behind(group, view.time) for group in view.groups)
        many = len(view.groups)
        self.set_remark(f"{late} of {many} late" if late else f"{many}, none late" if many else "")


def _group_lines(snapshot: ScreenSnapshot, age: str, width: int) -> Iterator[Content]:
    view = snapshot.view(Consumers)
    if not view.time:
        yield query_notice(snapshot, "Kafka")
        return
    if view.failure:
        yield from wrapped(f"✗ {view.failure}", width, "$error")
        return
    yield from wrapped(age, width, "$warning")
    if not view.groups:
        yield from wrapped("· no consumer group has committed an offset in these topics", width, "$quiet")
    else:
        room = _GroupLayout.of(width)
        titles = (
            (" State".ljust(_WORD + 1) if room.has_verdict else "")
            + "Rows".rjust(_ROWS)
            + "Behind".rjust(_TIME)
        )
        yield Content.styled("  " + "Group".ljust(room.name) + titles, "bold $quiet")
    for group in sorted(view.groups, key=lambda one: _lateness(one, view.time), reverse=True):
        yield _group_line(group, view.time, room, is_old=bool(snapshot.absence))
    for note in view.notes:
        yield from wrapped(f"▲ {note}", width, "$warning")


class _GroupLayout(NamedTuple):
    """The cells of a group's name, and whether its verdict fits next to it."""

    name: int
    has_verdict: bool

    @classmethod
    def of(cls, width: int) -> "_GroupLayout":
        room = width - 2 - _ROWS - _TIME
        has_verdict = room - _WORD - 1 >= _SHORT_NAME
        return cls(min(max(room - (_WORD + 1) * has_verdict, 4), _LONG), has_verdict)


def _group_line(group: GroupEntry, now: float, room: _GroupLayout, *, is_old: bool) -> Content:
    verdict = assessment.of_group(group, now)
    if is_old and verdict.tone == "good":
        # It is the verdict of that time.
        verdict = assessment.Assessment("muted", verdict.word)
    tone = TONES[verdict.tone]
    name = fitted(group.name, room.name)
    is_current = group.unread_since is not None or not (group.unread or group.uncommitted)
    age = figures.duration(_age(group, now)) if is_current else "unknown"
    return Content.assemble(
        (f"{verdict.mark} ", tone),
        (name, "$primary"),
        " " * (room.name - cell_len(name)),
        (f" {verdict.word:<{_WORD}}" if room.has_verdict else "", tone),
        (assessment.unread_of(group).rjust(_ROWS), "" if group.unread else "$quiet"),
        (age.rjust(_TIME), tone if verdict.tone != "good" else "$quiet"),
    )


def _age(group: GroupEntry, now: float) -> float:
    return 0.0 if group.unread_since is None else max(now - group.unread_since, 0.0)


def _lateness(group: GroupEntry, now: float) -> tuple[bool, float, int]:
    return assessment.of_group(group, now).tone != "good", _age(group, now), group.unread


#: Bars of a sparkline, one per second.
TREND = 12
#: Minimum seconds between two paintings: people can't read faster than twice a second, and this halves the
#: work.
PAINT_EVERY = 0.45
COLUMNS = (
    GridColumn("mark", "", 1),
    GridColumn("table", "Table", 17, grow=44),
    GridColumn("wal", "WAL/s", 7, "right", drop=1),
    GridColumn("share", "WAL%", 5, "right", drop=3),
    GridColumn("rate", "Rows/s", 7, "right"),
    GridColumn("trend", "Trend", TREND, drop=4),
    GridColumn("left", "Left", 9, "right", drop=6),
    GridColumn("p99", "p99 ms", 6, "right", drop=5),
    GridColumn("inserts", "Insert", 6, "right", drop=8),
    GridColumn("updates", "Update", 6, "right", drop=8),
    GridColumn("deletes", "Delete", 6, "right", drop=8),
    GridColumn("truncates", "Trunc", 5, "right", drop=12),
    GridColumn("messages", "Messages", 8, "right", drop=9),
    GridColumn("bytes", "Bytes", 7, "right", drop=6),
    GridColumn("key_id", "KeyId", 5, "right", drop=13),
    GridColumn("value_id", "ValId", 7, "right", drop=7),
    GridColumn("errors", "Errs", 5, "right"),
    GridColumn("dead", "Dead", 5, "right", drop=2),
    # Most topics are named after their tables.
    GridColumn("topic", "Topic", 20, drop=11, grow=30),
    GridColumn("notes", "Notes", 26, drop=10, grow=60),
)
#: Columns that a recording lacks, because it counts changes but measures no times.
_LIVE_ONLY = ("wal", "share", "p99")
SORTABLE = (
    "wal",
    "rate",
    "p99",
    "inserts",
    "updates",
    "deletes",
    "messages",
    "bytes",
    "errors",
    "dead",
    "table",
)


class TableList(ItemList):
    """Lists all tables, one per row."""

    def __init__(self) -> None:
        super().__init__(COLUMNS, SORTABLE, id="tables", noun="tables", title="Tables")
        self._painted = float("-inf")
        self._was_old = False

    def show(self, snapshot: ScreenSnapshot) -> None:
        """Paint what changed, unless the last painting is too recent."""
        status, is_old = snapshot.status, snapshot.as_of is not None
        soon = 0 <= snapshot.received - self._painted < PAINT_EVERY and is_old == self._was_old
        # A recording is moved by hand, and must follow at once.
        if status is None or (soon and snapshot.playhead is None):
            return
        self._painted, self._was_old = snapshot.received, is_old
        omitted = (
            *(_LIVE_ONLY if snapshot.playhead is not None else ()),
            *(() if status.is_copying else ("left",)),
        )
        self.set_columns(_columns(status.is_copying, omitted))
        if self.sort_column in omitted:
            self.sort_by("table")
        items = [
            table_item(name, table, snapshot.rates.get(name, ()), status.is_copying, omitted, is_old=is_old)
            for name, table in status.tables.items()
        ]
        self.set_items(items, snapshot.received)


def _columns(snapshot: bool, omitted: Sequence[str]) -> list[GridColumn]:
    title = "Snapshot" if snapshot else "Trend"
    columns = [replace(c, title=title) if c.key == "trend" else c for c in COLUMNS]
    return [column for column in columns if column.key not in omitted]


def table_item(
    name: str,
    table: TableStatus,
    points: tuple[float, ...],
    snapshot: bool,
    omitted: Sequence[str] = (),
    *,
    is_old: bool = False,
) -> Item:
    """Return the row of a table without the columns in ``omitted``; an old status has no rates."""
    trouble = assessment.has_trouble(table)
    trend = _progress_cell(table) if snapshot else _trend_cell(points)
    share = table.wal_share
    cells = (
        Cell("✗", "bad") if trouble else Cell("▲", "warn") if table.notes else Cell(""),
        Cell(name, "bad" if trouble else "strong"),
        _rate_cell(figures.size(table.wal_bytes_per_second), table.wal_bytes_per_second, is_old),
        _rate_cell("<1%" if 0 < share < 0.01 else figures.percent(share), share, is_old),
        _rate_cell(figures.rate(table.rows_per_second), table.rows_per_second, is_old),
        trend,
        _time_left_cell(table.snapshot_seconds_left),
        _milliseconds_cell(table.latency_p99, is_old),
        *(
            _count_cell(n)
            for n in (table.inserts, table.updates, table.deletes, table.truncates, table.messages)
        ),
        Cell(figures.size(table.bytes), "" if table.bytes else "muted", table.bytes),
        _id_cell(table.key_schema_id),
        _id_cell(table.value_schema_id, table.value_schema_version),
        _count_cell(table.errors, "bad"),
        _count_cell(table.dead_letters, "bad"),
        Cell(table.topic, "muted"),
        Cell("; ".join(table.notes), "warn"),
    )
    if omitted:
        cells = tuple(cell for cell, column in zip(cells, COLUMNS, strict=True) if column.key not in omitted)
    return Item(name, cells, f"{name} {table.topic} {' '.join(table.notes)}", trouble)


def _count_cell(number: int, tone: str = "") -> Cell:
    return Cell(figures.count(number), tone if number else "muted", number)


def _id_cell(number: int | None, version: int | None = None) -> Cell:
    if number is None:
        return Cell(figures.NONE, "muted")
    return Cell(str(number) if version is None else f"{number} v{version}")


def _rate_cell(text: str, rate: float, is_old: bool) -> Cell:
    return Cell(figures.NONE if is_old else text, "" if rate and not is_old else "muted", rate)


def _milliseconds_cell(seconds: float | None, is_old: bool) -> Cell:
    rank = -math.inf if seconds is None else seconds
    if seconds is None or is_old:
        return Cell(figures.NONE, "muted", rank)
    return Cell(figures.milliseconds(seconds), "", rank)


def _time_left_cell(seconds: float | None) -> Cell:
    return Cell(figures.NONE, "muted") if seconds is None else Cell(figures.duration(seconds))


def _trend_cell(points: tuple[float, ...]) -> Cell:
    moving = any(points[-TREND:])
    return Cell(figures.sparkline(points, TREND), "good" if moving else "muted")


def _progress_cell(table: TableStatus) -> Cell:
    share = assessment.snapshot_share(table)
    if table.snapshot_state == "done":
        return Cell(f"✓ {figures.count(table.snapshot_rows)} rows", "good")
    if share is None:
        running = table.snapshot_state == "running"
        return Cell(f"{figures.count(table.snapshot_rows)} rows" if running else figures.NONE, "muted")
    return Cell(f"{figures.gauge(share, 7)} {figures.percent(share).rjust(4)}", "good" if share else "muted")


#: Minimum cells for the latencies, and maximum cells that the chart can use, including frame and axis.
NARROWEST, WIDEST = 46, 161
#: Minimum width for panels side by side.
WIDE = 150
#: Lines that the pipeline takes next to a chart, as boxes and flat, and minimum lines of the chart, the
#: tables and the row below them.
_BOXES, _FLAT, _CHART, _TABLES, _LATEST = 12, 8, 11, 7, 8
#: Minimum lines of the lowest row for the changes, and for panels above each other.
_VAST = 17


#: The service views in the lowest row.
SERVICES: tuple[LookName, ...] = ("slots", "consumers")


class PanelHeights(NamedTuple):
    """Lines of each optional part; 0: it is hidden."""

    chart: int = 0
    #: 0 also if they are next to the chart.
    latency: int = 0
    #: None: all remaining lines.
    tables: int | None = None
    latest: int = 0

    @classmethod
    def of(cls, width: int, height: int, body: int, tables: int) -> "PanelHeights":
        """Return the parts that fit into a terminal of this size, of which ``body`` lines are available."""
        # Both halves of the chart have the same height, so its number of lines is odd.
        if width >= WIDE and height >= 42:
            chart = 13 + 2 * min(max(height - 45, 0) // 6, 4)
            while body - _BOXES - chart < _TABLES + _LATEST and chart > _CHART:
                chart -= 2
            remaining = body - _BOXES - chart
            return (
                cls(chart, 0, *_shared(remaining, tables)) if remaining >= _TABLES + _LATEST else cls(chart)
            )
        if width < WIDE and height >= 34:
            chart = _CHART + 2 * min((height - 34) // 6, 2)
            latency = 11 if height >= 48 else 0
            remaining = body - _FLAT - chart - latency
            return cls(chart, latency, *_shared(remaining, tables)) if height >= 58 else cls(chart, latency)
        return cls()


def _shared(lines: int, tables: int) -> tuple[int, int]:
    """Divide lines between the list of ``tables`` tables and the row below it."""
    needed = min(max(tables + 3, _TABLES), lines - _LATEST)
    return needed, lines - needed


class OverviewScreen(RelayScreen):
    """Shows pipeline, history, latencies, tables, services, events and changes, as far as they fit."""

    mode: ClassVar[str] = "overview"
    _arranged: object = None
    #: The table that was selected when the filter was opened.
    _table: str | None = None

    def body(self) -> Iterable[Widget]:
        # The first painting is styled with these classes, and need not be styled twice.
        self.update_classes(self._parts(self._rooms(self.host.model.snapshot)), update=False)
        yield Pipeline()
        yield Line(id="again")
        yield Container(RateChart(), LatencyPanel(), id="measured", classes="folder")
        yield TableList()
        services = Container(RetainedWalPanel(), GroupsPanel(), id="services", classes="folder")
        yield Container(services, EventList(), ChangeList(), id="latest", classes="folder")

    def filter_bar(self) -> FilterBar:
        return KeyBar(self._understood, self._open_key, self.apply_filter, self.focus_list, self.names)

    def action_filter(self) -> None:
        """Remember the selected table for a key without a table: a filter may hide it."""
        self._table = self.main_grid().cursor_key or self._table
        super().action_filter()

    def _open_key(self, key: RowKey) -> None:
        self.host.open_details("journey", TypedKey(key))

    def _understood(self, text: str) -> RowKey | str | None:
        """Return the key that a text names, or what is wrong with it; None if it is a filter of tables."""
        tables = tables_of(self.host.model.snapshot.status)
        if (typed := parse_typed_key(text, tables, self._table)) is not None:
            return typed
        parsed = Filter.parse(text)
        items = self.query_one(TableList).items.values()
        if not text.strip() or parsed.inverse or any(parsed.passes(item.search) for item in items):
            return None
        return plain_key(text, tables, self._table)

    def paint(self, snapshot: ScreenSnapshot) -> None:
        self._show_again(snapshot)
        rooms = self._rooms(snapshot)
        self._arrange(rooms)
        self.query_one(Pipeline).show(snapshot)
        if rooms.chart:
            self.query_one(RateChart).show(snapshot)
        if self.has_class("-timed"):
            self.query_one(LatencyPanel).show(snapshot)
        self.query_one(TableList).show(snapshot)
        if rooms.latest:
            self.query_one(RetainedWalPanel).show(snapshot)
            self.query_one(GroupsPanel).show(snapshot)
        if self.has_class("-eventful"):
            self.query_one(EventList).show(snapshot)
        if self.wants_changes:
            self.query_one(ChangeList).show(snapshot, "" if self.host.model.link == "live" else "no answer")

    def _show_again(self, snapshot: ScreenSnapshot) -> None:
        """Show the requests in progress in a line that is visible only while there are any."""
        line, content = self.query_one("#again", Line), in_one_line(snapshot.status, snapshot.received)
        if line.display != (content is not None):
            line.display = content is not None
        if content is not None:
            line.put(content)

    def _rooms(self, snapshot: ScreenSnapshot) -> PanelHeights:
        # A recording has no history of its relay: the pipeline shows the recorded figures instead.
        if snapshot.playhead is not None:
            return PanelHeights()
        width, height = self.app.size
        # The header has a third line, and more, if something is wrong.
        around = 3
        if self.ready:
            around = max(self.query_one(Header).size.height, 2) + 1 + bool(self.query_one(FilterBar).display)
            around += bool(self.query_one("#again").display)
        tables = len(snapshot.status.tables) if snapshot.status else 0
        return PanelHeights.of(width, height, height - around, tables)

    def _arrange(self, rooms: PanelHeights) -> None:
        """Set the height of each part; a maximised panel has all lines."""
        wide, alone = self.app.size.width >= WIDE, self.has_class("-maximised")
        arranged = (rooms, self.app.size.width, alone)
        if arranged == self._arranged:
            return
        self._arranged = arranged
        self.wants_changes = wide and rooms.latest >= _VAST
        self.glances = SERVICES if rooms.latest else ()
        # Set all classes at once: Textual styles every widget again after each change.
        self.update_classes(self._parts(rooms), animate=False)
        for where, lines in (
            ("#measured", rooms.chart + rooms.latency),
            ("#tables", rooms.tables),
            ("#latest", rooms.latest),
        ):
            self.query_one(where).styles.height = None if alone or not lines else lines
        latency = self.query_one(LatencyPanel)
        beside = wide and not alone
        latency.styles.width = max(NARROWEST, self.app.size.width - WIDEST) if beside else None
        latency.styles.height = rooms.latency if rooms.latency and not alone else None

    def _parts(self, rooms: PanelHeights) -> dict[str, bool]:
        wide = self.app.size.width >= WIDE
        return {
            "-chart": rooms.chart > 0,
            "-timed": rooms.latency > 0 or (wide and rooms.chart > 0),
            "-roomy": wide and rooms.chart > 0,
            "-served": rooms.latest > 0,
            "-eventful": wide and rooms.latest > 0,
            "-vast": wide and rooms.latest >= _VAST,
        }

    def on_resize(self) -> None:
        self.refresh_picture()

    def action_maximise(self) -> None:
        super().action_maximise()
        self.refresh_picture()

    def selected_table(self) -> str | None:
        return self.main_grid().cursor_key

    def selected_sample(self) -> ChangeSample | None:
        return self.focused.selected() if isinstance(self.focused, ChangeList) else None

    def selected_key(self) -> RowKey | str:
        """Return the key of the selected change in the list of changes, or of a recording's last change."""
        if self.host.model.recorded:
            return super().selected_key()
        return sampled_key(self.selected_sample(), self.host.model.snapshot.status)

    def row_text(self) -> str:
        grid = self.focused
        if isinstance(grid, ChangeList):
            return grid.copy_text()
        if isinstance(grid, EventList):
            return "\t".join(cell.text for cell in grid.rows[grid.cursor_row].cells) if grid.rows else ""
        return super().row_text()

    def open_row(self, grid: Grid) -> None:
        """Open a table; for an event or a change, switch to the screen with all of them."""
        if grid is self.main_grid():
            self.host.open_details("table", self)
        else:
            self.host.show_mode("changes" if isinstance(grid, ChangeList) else "errors")

    def on_panel_opened(self, event: Panel.Opened) -> None:
        self.host.show_mode(event.mode)

    def _restore(self) -> None:
        super()._restore()
        self.refresh_picture()
