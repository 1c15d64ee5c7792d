"""What the screens on the services have in common: they say when and with what success was looked."""

from typing import ClassVar

from textual import events

from bwtui.model.looks import Look
from bwtui.tui import figures
from bwtui.tui.plain import Content
from bwtui.tui.screens.base import RelayScreen
from bwtui.tui.state import Picture
from bwtui.tui.widgets.line import Line
from bwtui.tui.widgets.listing import Listing

#: An answer this old is said to be old, in seconds.
OLD_AFTER = 10.0


class LookScreen(RelayScreen):
    """One or more lists under a sentence; the relay's process asks the service while this is shown."""

    #: Who is asked, for the sentences about that.
    service: ClassVar[str] = "PostgreSQL"
    #: What it shows is what was so at the start, and does not age.
    ages: ClassVar[bool] = True
    #: The list that had the focus last, for the actions on lists.
    _list: Listing | None = None

    def paint(self, picture: Picture) -> None:
        """Show a picture."""
        assert self.wants_look is not None
        look = picture.looks.get(self.wants_look)
        parts = [self._trouble(look, picture)]
        if look is not None and not look.failure and look.time:
            parts.insert(0, self.show_look(look, picture))
        said = self.query_one("#said", Line)
        said.put(Content("\n").join([part for part in parts if part.plain]), layout=True)

    def show_look(self, look: Look, picture: Picture) -> Content:
        """Fill the lists, and return the sentence on what they mean."""
        raise NotImplementedError

    def _trouble(self, look: Look | None, picture: Picture) -> Content:
        """Say why there is nothing, that it is old, or what is missing; nothing where all is well."""
        if look is not None and look.failure:
            return Content.styled(f" ✗ {look.failure}", "$error")
        if look is None or not look.time:
            return Content.styled(f" · the relay asks {self.service}…", "$quiet")
        lines = [Content.styled(f" ▲ {note}", "$warning") for note in look.notes]
        age = picture.received - look.time
        if self.ages and age > OLD_AFTER:
            text = f" ▲ {self.service} has not answered for {figures.duration(age)}: this is how it was then"
            lines.insert(0, Content.styled(text, "bold $warning"))
        return Content("\n").join(lines)

    def main_grid(self) -> Listing:
        """Return the list that has the focus, or had it last."""
        return self._list or self.query(Listing).first()

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        """Filter, sort and copy go to the list with the focus."""
        if isinstance(event.widget, Listing):
            self._list = event.widget
