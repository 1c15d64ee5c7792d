"""The base of the screens that show service views: they report failures and old answers."""

from typing import ClassVar

from textual import events

from bwtui.model.service_views import Look
from bwtui.tui import figures
from bwtui.tui.plain import Content
from bwtui.tui.screens.base import RelayScreen
from bwtui.tui.state import ScreenSnapshot
from bwtui.tui.widgets.item_list import ItemList
from bwtui.tui.widgets.line import Line

#: Seconds after which an answer is reported as old, and a missing one as missing; services are polled every
#: second or two.
OLD_AFTER, MISSING_AFTER = 5.0, 3.0


class ServiceViewScreen(RelayScreen):
    """One or more lists below a sentence; the relay's process polls the service while the screen is shown."""

    #: The name of the polled service, for sentences.
    service: ClassVar[str] = "PostgreSQL"
    #: A command that queries the service without a relay.
    instead: ClassVar[str] = ""
    #: False if the data was collected when the relay started, and does not age.
    ages: ClassVar[bool] = True
    #: The list that had the focus last, for the actions on lists.
    _list: ItemList | None = None
    #: Start of the time without any answer, by the clock of the screens.
    _asked: float | None = None

    def on_screen_resume(self) -> None:
        """Restart the time without an answer: nothing was polled while a different screen was shown."""
        self._asked = None

    def paint(self, picture: ScreenSnapshot) -> None:
        assert self.wants_look is not None
        look = picture.looks.get(self.wants_look)
        parts = [self._trouble(look, picture)]
        is_known = look is not None and bool(look.time) and not look.failure
        for listing in self.query(ItemList):
            listing.say_why_empty("" if is_known else "not known", is_known=is_known)
        if look is not None and is_known:
            # The screen may have a more specific reason for an empty list.
            parts.insert(0, self.show_look(look, picture))
        said = self.query_one("#said", Line)
        said.put(Content("\n").join([part for part in parts if part.plain]), layout=True)

    def show_look(self, look: Look, picture: ScreenSnapshot) -> Content:
        """Fill the lists, and return a sentence about them."""
        raise NotImplementedError

    def _trouble(self, look: Look | None, picture: ScreenSnapshot) -> Content:
        """Return why there is no data, that it is old, or what is missing; nothing without a problem."""
        if picture.absence and (self.ages or look is None):
            return self._not_asked(look, picture)
        if look is not None and look.failure:
            return Content.styled(f" ✗ {look.failure}", "$error")
        if look is None or not look.time:
            return self._no_answer(picture)
        self._asked = None
        lines = [Content.styled(f" ▲ {note}", "$warning") for note in look.notes]
        age = picture.received - look.time
        if self.ages and age > OLD_AFTER + self.rest_after(look):
            text = f" ▲ {self.service} has not answered for {figures.duration(age)}: this is how it was then"
            lines.insert(0, Content.styled(text, "bold $warning"))
        return Content("\n").join(lines)

    def rest_after(self, look: Look) -> float:
        """Return the seconds for which the relay pauses after a slow poll."""
        return 0.0

    def _no_answer(self, picture: ScreenSnapshot) -> Content:
        """Return which service is polled and, after a while, for how long there has been no answer."""
        if self._asked is None:
            self._asked = picture.received
        waited = picture.received - self._asked
        if waited <= MISSING_AFTER:
            return Content.styled(f" · the relay asks {self.service}…", "$quiet")
        text = f" ▲ {self.service} has not answered for {figures.duration(waited)}: nothing is known yet"
        return Content.styled(text, "bold $warning")

    def _not_asked(self, look: Look | None, picture: ScreenSnapshot) -> Content:
        """Return that no relay polls the service, how old the lists are, and what to do."""
        was = f"; this is how it was at {figures.clock(look.time)}" if look is not None and look.time else ""
        start = "start it" if picture.absence == "does not run" else "the line above says what to do"
        todo = f"{start}, or: {self.instead}" if self.instead else start
        return Content.assemble(
            (f" ▲ not asked: the relay {picture.absence}{was}", "bold $warning"), (f" → {todo}", "$warning")
        )

    def main_grid(self) -> ItemList:
        """Return the list that has the focus, or had it last."""
        return self._list or self.query(ItemList).first()

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        """Let filter, sort and copy act on the list with the focus."""
        if isinstance(event.widget, ItemList):
            self._list = event.widget
