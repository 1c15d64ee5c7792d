"""The app over all relays: a list that stays until the user attaches to a relay or leaves."""

from collections.abc import Callable, Mapping
from typing import ClassVar

from bwtui.errors import BwtuiError
from bwtui.tui.app import RelayApp
from bwtui.tui.audit.session import AuditSession
from bwtui.tui.choices.choices import Choices
from bwtui.tui.fleet.model import FleetModel
from bwtui.tui.fleet.screen import FleetScreen
from bwtui.tui.host import ScreenHost
from bwtui.tui.screens.base import RelayScreen
from bwtui.tui.state import ViewSettings
from bwtui.tui.terminal_session import run_app


class FleetApp(RelayApp):
    """Shows the list of relays; ends with the name of the chosen relay, or with none."""

    MODE_SCREENS: ClassVar[Mapping[str, Callable[[ScreenHost], RelayScreen]]] = {"fleet": FleetScreen}
    DEFAULT_MODE = "fleet"
    # Textual resolves the path relative to this file.
    CSS_PATH = "../bwtui.tcss"

    def __init__(
        self, model: FleetModel, selected: str | None = None, choices: Choices | None = None
    ) -> None:
        """``selected`` is the relay to select first, such as the one that was just left."""
        super().__init__(model, ViewSettings(rate=1, choices=choices or Choices()), AuditSession())
        self.fleet = model
        self.chosen: str | None = None
        self._selected = selected

    async def sample(self) -> None:
        """Take a sample; select the initial relay once the list contains it."""
        await super().sample()
        if self._selected is not None and self.front is not None and self.front.ready:
            self.front.main_grid().move_to_key(self._selected)
            self._selected = None

    def attach(self, name: str) -> None:
        """End with the name of a relay."""
        self.chosen = name
        self.exit("attach")

    def on_unmount(self) -> None:
        self.fleet.close()

    def ask_to_leave(self) -> None:
        """Leave without a question, because the relays keep running."""
        self.exit("quit")


def choose(selected: str | None = None, choices: Choices | None = None) -> str | None:
    """Show all relays until the user attaches to one, and return its name, or None if the user leaves.

    Raises BwtuiError if the screens ended with an error.
    """
    app = FleetApp(FleetModel(), selected, choices)
    run_app(app, "the relays were left as they were: 'bwtui status' lists them")
    if app.return_code:
        raise BwtuiError("the screens ended on an error", "'bwtui status' lists the relays")
    return app.chosen
