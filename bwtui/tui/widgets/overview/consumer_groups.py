"""The consumer groups of the relay's topics: the verdict on each, and its lag in rows and in time."""

from collections.abc import Iterator
from typing import NamedTuple

from rich.cells import cell_len

from bwtui.model.service_views import Consumers, GroupEntry
from bwtui.tui import assessment, figures
from bwtui.tui.plain import Content, fitted
from bwtui.tui.state import ScreenSnapshot
from bwtui.tui.theme import TONES
from bwtui.tui.widgets.overview.service_panel import ServicePanel, asked, wrapped

#: Cells of the verdict, the rows and the time; minimum and maximum cells of a name.
_WORD, _ROWS, _TIME = 12, 8, 10
_SHORT, _LONG = 14, 40


class GroupsPanel(ServicePanel):
    """Lists the groups, those with the largest lag first."""

    leads_to = "consumers"

    def __init__(self) -> None:
        super().__init__("Consumer groups", id="readers")

    def shown_of(self, picture: ScreenSnapshot) -> object:
        """Return everything that the drawing depends on."""
        look = _look(picture)
        return look, picture.absence, self.age(look, picture)

    def draw(self, picture: ScreenSnapshot, width: int, height: int) -> None:
        """Draw a line for each group."""
        look = _look(picture)
        self.put_lines(list(_told(picture, self.age(look, picture), width)), height)
        late = sum(assessment.is_behind(group, look.time) for group in look.groups)
        many = len(look.groups)
        self.set_remark(f"{late} of {many} late" if late else f"{many}, none is late" if many else "")


def _look(picture: ScreenSnapshot) -> Consumers:
    look = picture.looks.get("consumers")
    return look if isinstance(look, Consumers) else Consumers()


def _told(picture: ScreenSnapshot, age: str, width: int) -> Iterator[Content]:
    look = _look(picture)
    if not look.time:
        yield asked(picture, "Kafka")
        return
    if look.failure:
        yield from wrapped(f"✗ {look.failure}", width, "$error")
        return
    yield from wrapped(age, width, "$warning")
    if not look.groups:
        yield from wrapped("· no consumer group has committed an offset in these topics", width, "$quiet")
    else:
        room = _GroupLayout.of(width)
        titles = (
            (" Is".ljust(_WORD + 1) if room.has_word else "") + "Rows".rjust(_ROWS) + "Behind".rjust(_TIME)
        )
        yield Content.styled("  " + "Group".ljust(room.name) + titles, "bold $quiet")
    for group in sorted(look.groups, key=lambda one: _lateness(one, look.time), reverse=True):
        yield _group(group, look.time, room, is_old=bool(picture.absence))
    for note in look.notes:
        yield from wrapped(f"▲ {note}", width, "$warning")


class _GroupLayout(NamedTuple):
    """The cells of a group's name, and whether its verdict fits next to it."""

    name: int
    has_word: bool

    @classmethod
    def of(cls, width: int) -> "_GroupLayout":
        left = width - 2 - _ROWS - _TIME
        has_word = left - _WORD - 1 >= _SHORT
        return cls(min(max(left - (_WORD + 1) * has_word, 4), _LONG), has_word)


def _group(group: GroupEntry, now: float, room: _GroupLayout, *, is_old: bool) -> Content:
    verdict = assessment.of_group(group, now)
    if is_old and verdict.tone == "good":
        # It is the verdict of that time.
        verdict = assessment.Assessment("muted", verdict.word)
    tone = TONES[verdict.tone]
    name = fitted(group.name, room.name)
    is_known = group.unread_since is not None or not (group.unread or group.uncommitted)
    age = figures.duration(_age(group, now)) if is_known else "not known"
    return Content.assemble(
        (f"{verdict.mark} ", tone),
        (name, "$primary"),
        " " * (room.name - cell_len(name)),
        (f" {verdict.word:<{_WORD}}" if room.has_word else "", tone),
        (assessment.unread_of(group).rjust(_ROWS), "" if group.unread else "$quiet"),
        (age.rjust(_TIME), tone if verdict.tone != "good" else "$quiet"),
    )


def _age(group: GroupEntry, now: float) -> float:
    return 0.0 if group.unread_since is None else max(now - group.unread_since, 0.0)


def _lateness(group: GroupEntry, now: float) -> tuple[bool, float, int]:
    return assessment.of_group(group, now).tone != "good", _age(group, now), group.unread
