"""What a screen may ask of the app that shows it. Screens are given their host, and import no app."""

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias

from textual.screen import Screen

from bwtui.model.status import ChangeSample
from bwtui.recording.change import Change
from bwtui.recording.reading.explain import Key
from bwtui.tui.audit.session import AuditSession
from bwtui.tui.playback import Command, RecordingSource, Then
from bwtui.tui.state import Model


class Selection(Protocol):
    """What is selected on a screen, for another one that looks closer at it."""

    def selected_change(self) -> Change | None:
        """Return the selected change."""

    def selected_table(self) -> str | None:
        """Return the selected table."""

    def selected_key(self) -> Key | str:
        """Return the selected key, or why there is none."""

    def selected_sample(self) -> ChangeSample | None:
        """Return the selected change of a relay that runs."""

    def selected_subject(self) -> str | None:
        """Return the selected subject of the schema registry."""


class RecordingHost(Protocol):
    """What a screen may ask where a recording is played."""

    source: RecordingSource

    def drive(self, command: Command, then: Then | None = None) -> int:
        """Have the player do something at once; return the command's number."""

    def ask_to_replay(self, *, mend: bool) -> None:
        """Ask what to replay; with ``mend``, only what the audit found missing."""

    def ask_to_send_again(self, key: Key, position: int, remark: str) -> None:
        """Ask how to send a key again whose newest message is of the change at ``position``."""


class Host(Protocol):
    """What every screen may ask."""

    model: Model
    audit: AuditSession
    #: The relay was asked to stop.
    stopping: bool

    @property
    def recording(self) -> RecordingHost | None:
        """The recording that is played, if it is one."""

    def show_mode(self, mode: str) -> None:
        """Go to a screen by the name of its mode."""

    def next_theme(self) -> None:
        """Go on to the next theme."""

    def look_closer(self, name: str, selection: Selection) -> None:
        """Open a screen about what is selected, by its name, or say why that can't be."""

    def ask_to_verify(self) -> None:
        """Ask what to verify; while that runs, show how far it is."""

    def ask_to_try_ddl(self) -> None:
        """Ask for a file of DDL, and say what the schema registry would say of the tables after it."""

    def ask_to_send_table(self, table: str | None) -> None:
        """Ask whether all rows of a table are to be sent again, and have the relay do so."""

    def ask_to_repair(self) -> None:
        """Compare tables and topics anew, show what would be sent, and ask whether to send it."""

    def leave_to_fleet(self, *, by_escape: bool) -> None:
        """Go to the list of all relays, or say why not; by Escape only where the user came from there."""

    def attach(self, name: str) -> None:
        """Attach to a relay of that list."""

    def ask_to_leave(self) -> None:
        """Ask how to leave."""


#: A screen that looks closer, or why it can't; one whose place is looked up first comes later.
Closer: TypeAlias = Screen[None] | str | Awaitable[Screen[None]]
#: Makes such a screen of what is selected.
Opener: TypeAlias = Callable[[Host, Selection], Closer]
