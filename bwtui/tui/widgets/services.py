"""Panels about service views: the WAL that the slots retain, and the consumer groups."""

import textwrap
from collections.abc import Iterator
from typing import NamedTuple

from rich.cells import cell_len

from bwtui.model.service_views import Consumers, GroupEntry, Look, SlotEntry, Slots
from bwtui.model.status import Status
from bwtui.tui.base import assessment, figures
from bwtui.tui.base.keys import key_for
from bwtui.tui.base.plain import Content, fitted, printable
from bwtui.tui.base.theme import TONES
from bwtui.tui.sources.model import ScreenSnapshot
from bwtui.tui.widgets.line import Panel

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


def wrapped(text: str, width: int, style: str) -> Iterator[Content]:
    """Yield a text in as many lines as it needs, all but the first indented."""
    for number, line in enumerate(textwrap.wrap(printable(text), max(width - 2, 10))):
        yield Content.styled(f"  {line}" if number else line, style)


#: Shares of the limit from which on the bar changes its colour; the figure is next to it.
_WARN, _BAD = 0.5, 0.8


class RetainedWalPanel(ServicePanel):
    """Shows this relay's slot as soon as it is known, and the other slots a few seconds later."""

    leads_to = "slots"

    def __init__(self) -> None:
        super().__init__("WAL runway", id="runway")

    def shown_of(self, snapshot: ScreenSnapshot) -> object:
        """Return everything that the drawing depends on."""
        status, view = snapshot.status, _slots_view(snapshot)
        if status is None:
            return None
        own_slot = (
            status.retained_wal_bytes,
            status.safe_wal_bytes,
            status.wal_status,
            _stands_still(status),
        )
        return own_slot, snapshot.wal_rate, snapshot.as_of, view, self.age(view, snapshot)

    def draw(self, snapshot: ScreenSnapshot, width: int, height: int) -> None:
        """Draw this relay's slot above the others."""
        if snapshot.status is None:
            return
        view = _slots_view(snapshot)
        own_slot = _own_slot_lines(snapshot, snapshot.status, width)
        other_slots = _other_slots_lines(snapshot, snapshot.status, self.age(view, snapshot), width)
        self.put_lines([*own_slot, *other_slots], height)
        many = len(view.slots)
        self.set_remark("" if not view.time or view.failure else "1 slot" if many == 1 else f"{many} slots")


def _slots_view(snapshot: ScreenSnapshot) -> Slots:
    view = snapshot.views.get("slots")
    return view if isinstance(view, Slots) else Slots()


def _stands_still(status: Status) -> bool:
    return status.verdict.stands_still


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
                "while the relay makes no progress" if _stands_still(status) else "if the relay stopped now"
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
    view = _slots_view(snapshot)
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
        """Return everything that the drawing depends on."""
        view = _consumers_view(snapshot)
        return view, snapshot.absence, self.age(view, snapshot)

    def draw(self, snapshot: ScreenSnapshot, width: int, height: int) -> None:
        """Draw a line for each group."""
        view = _consumers_view(snapshot)
        self.put_lines(list(_group_lines(snapshot, self.age(view, snapshot), width)), height)
        late = sum(assessment.is_behind(group, view.time) for group in view.groups)
        many = len(view.groups)
        self.set_remark(f"{late} of {many} late" if late else f"{many}, none late" if many else "")


def _consumers_view(snapshot: ScreenSnapshot) -> Consumers:
    view = snapshot.views.get("consumers")
    return view if isinstance(view, Consumers) else Consumers()


def _group_lines(snapshot: ScreenSnapshot, age: str, width: int) -> Iterator[Content]:
    view = _consumers_view(snapshot)
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
