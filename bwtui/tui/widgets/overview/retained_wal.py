"""The WAL that the slot retains, its limit, the time until the limit, and slots that retain more."""

from collections.abc import Iterator

from bwtui.model.service_views import SlotEntry, Slots
from bwtui.model.status import Status
from bwtui.tui import assessment, figures
from bwtui.tui.plain import Content, fitted
from bwtui.tui.state import ScreenSnapshot
from bwtui.tui.theme import TONES
from bwtui.tui.widgets.overview.service_panel import ServicePanel, asked, wrapped

#: Shares of the limit from which on the bar changes its colour; the figure is next to it.
_WARN, _BAD = 0.5, 0.8


class RetainedWalPanel(ServicePanel):
    """Shows this relay's slot as soon as it is known, and the other slots a few seconds later."""

    leads_to = "slots"

    def __init__(self) -> None:
        super().__init__("WAL runway", id="runway")

    def shown_of(self, picture: ScreenSnapshot) -> object:
        """Return everything that the drawing depends on."""
        status, look = picture.status, _look(picture)
        if status is None:
            return None
        own = (status.retained_wal_bytes, status.safe_wal_bytes, status.wal_status, _stands(status))
        return own, picture.wal_rate, picture.as_of, look, self.age(look, picture)

    def draw(self, picture: ScreenSnapshot, width: int, height: int) -> None:
        """Draw this relay's slot above the others."""
        if picture.status is None:
            return
        look = _look(picture)
        own = _own(picture, picture.status, width)
        others = _others(picture, picture.status, self.age(look, picture), width)
        self.put_lines([*own, *others], height)
        many = len(look.slots)
        self.set_remark("" if not look.time or look.failure else "1 slot" if many == 1 else f"{many} slots")


def _look(picture: ScreenSnapshot) -> Slots:
    look = picture.looks.get("slots")
    return look if isinstance(look, Slots) else Slots()


def _stands(status: Status) -> bool:
    return status.verdict.stands_still


def _own(picture: ScreenSnapshot, status: Status, width: int) -> Iterator[Content]:
    retained, safe = status.retained_wal_bytes, status.safe_wal_bytes
    if picture.as_of is not None:
        text = f"▲ as of {figures.clock(picture.as_of)}: the relay {picture.absence}"
        yield from wrapped(text, width, "$warning")
    if status.wal_status == "lost":
        yield from wrapped("✗ the slot has lost the WAL that it needs", width, "bold $error")
        return
    if safe is None:
        yield Content.assemble(("retained ", "$quiet"), (assessment.retained(status), "bold"))
        text = "· no limit is set (max_slot_wal_keep_size): a slot that nobody reads fills the disk"
        if not status.wal_status:
            text = "· it is not known yet whether a limit is set"
        yield from wrapped(text, width, "$quiet")
    else:
        yield from _bar(retained, max(safe, 0), width)
        if status.wal_status == "unreserved" or safe <= 0:
            text = "✗ the slot is about to be lost: its WAL may be removed"
            yield from wrapped(text, width, "bold $error")
        left = picture.seconds_left()
        if left is not None and picture.as_of is None:
            # While the relay keeps up, nothing is lost, so this is not a countdown.
            stands = "while the relay stands still" if _stands(status) else "if the relay stopped now"
            time = (f"≈ {figures.duration(left)}", "bold")
            yield Content.assemble(("safe ", "$quiet"), time, (f" {stands}", "$quiet"))
    if picture.wal_rate is not None and picture.as_of is None:
        rate = f"{figures.size(picture.wal_rate)}/s"
        yield Content.assemble(("the server writes ", "$quiet"), rate, (" of WAL", "$quiet"))


def _bar(retained: int, safe: int, width: int) -> Iterator[Content]:
    """Yield the retained share of the limit; what the server calls safe is the rest up to the limit."""
    limit = retained + safe
    share = retained / limit if limit else 0.0
    tone = "$error" if share >= _BAD else "$warning" if share >= _WARN else "$success"
    kept = Content.assemble(
        ("retained ", "$quiet"), (figures.size(retained), "bold"), (" of ", "$quiet"), figures.size(limit)
    )
    told = "<1%" if 0 < share < 0.01 else figures.percent(share)
    gap = " " * max(width - kept.cell_length - len(told), 1)
    yield kept + Content(gap) + Content.styled(told, f"bold {tone}")
    yield Content.styled(figures.gauge(share, width), tone)


def _others(picture: ScreenSnapshot, status: Status, age: str, width: int) -> Iterator[Content]:
    """Yield the other slots that retain more than this one, or need attention."""
    look = _look(picture)
    if not look.time:
        yield asked(picture, "for the other slots")
        return
    if look.failure:
        yield from wrapped(f"✗ {look.failure}", width, "$error")
        return
    yield from wrapped(age, width, "$warning")
    others = [slot for slot in look.slots if slot.name != status.slot]
    told = [slot for slot in others if _matters(slot, status.retained_wal_bytes)]
    for slot in sorted(told, key=lambda one: (one.wal_status != "lost", -(one.retained_wal_bytes or 0))):
        yield _other(slot, look.time, width)
    if not told:
        mark = "·" if picture.absence else "✓"
        text = f"{mark} no other slot keeps more" if others else f"{mark} there is no other slot"
        yield Content.styled(text, "$quiet")
    for note in look.notes:
        yield from wrapped(f"▲ {note}", width, "$warning")


def _matters(slot: SlotEntry, retained: int) -> bool:
    return assessment.of_slot(slot).tone != "good" or (slot.retained_wal_bytes or 0) > retained


def _other(slot: SlotEntry, now: float, width: int) -> Content:
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
