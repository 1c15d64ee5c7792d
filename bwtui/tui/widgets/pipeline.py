"""The pipeline from slot to topic, as connected boxes."""

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.widget import Widget
from textual.widgets import Sparkline

from bwtui.model.lsn import format_lsn
from bwtui.model.status import STAGES, StageStatus, Status
from bwtui.tui.base import assessment, figures
from bwtui.tui.base.plain import Content, fitted
from bwtui.tui.base.theme import TONES
from bwtui.tui.sources.model import ScreenSnapshot
from bwtui.tui.widgets import history
from bwtui.tui.widgets.line import Line
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
            lines.append(_pair("queue", f"{waiting}{limit}", width))
            lines.append(_pair("total", figures.count(stage.total), width))
        if self.content_size.height >= 6:
            lines += self._thread_activity(width)
        return Content("\n").join(lines)

    def _thread_activity(self, width: int) -> list[Content]:
        if self._title == "decode":
            # Decoding and encoding are measured as one step.
            return [Content.styled("timed with", "$quiet"), Content.styled("encode".rjust(width), "$quiet")]
        duration = figures.NONE if self._duration is None else self._now(history.brief(self._duration))
        busy = self._now(figures.percent(self._stage.busy))
        return [_pair("busy", busy, width), _pair("p50", duration, width)]

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
        """Create all boxes and lines; the style sheet shows those that fit."""
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


def _pair(name: str, value: str, width: int, tone: str = "") -> Content:
    gap = max(width - len(name) - len(value), 1)
    return Content.assemble((name, "$quiet"), " " * gap, (value, tone))


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
    return _joined(parts, width)


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
    return _joined(parts, width)


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
    return _joined(parts, width)


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
    return _joined(parts, width)


def _source(snapshot: ScreenSnapshot, status: Status, width: int) -> Content:
    wal = _wal(snapshot, status)
    lines = [
        Content.styled(fitted(status.server_version, width), "bold"),
        Content.styled(fitted(status.database, width), "$quiet"),
        _pair("slot", fitted(status.slot, width - 8), width),
        _pair("wal", f"{wal.mark} {wal.word}", width, TONES[wal.tone]),
        _pair("server LSN", format_lsn(status.server_lsn), width),
        _pair("retained", assessment.retained(status), width),
        _pair("safe", _safe_bytes(status), width),
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
        _pair("confirmed LSN", format_lsn(status.confirmed_lsn), width),
        _pair("lag", figures.size(status.wal_lag_bytes), width, tone),
        _pair("lag in time", figures.duration(status.wal_lag_seconds), width, tone),
        _pair("", f"{lag.mark} {lag.word}", width, tone),
        _pair("transactions", figures.count(status.transactions), width),
    ]
    return Content("\n").join(lines)


def _joined(parts: list[Content], width: int) -> Content:
    """Join as many parts as fit, omitting parts from the end."""
    line = parts[0]
    for part in parts[1:]:
        if line.cell_length + 2 + part.cell_length > width:
            break
        line = line + "  " + part
    return line
