"""The interface of the app towards its screens. Screens receive their host and import no app."""

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias

from textual.screen import Screen

from bwtui.model.status import ChangeSample
from bwtui.recording.change import Change
from bwtui.recording.explain import RowKey
from bwtui.tui.audit.session import AuditSession
from bwtui.tui.sources.model import Model
from bwtui.tui.sources.recorded_model import Command, RecordingSource, Then


class ScreenSelection(Protocol):
    """The selection on a screen, for the detail screen that is opened from it."""

    def selected_change(self) -> Change | None: ...

    def selected_table(self) -> str | None: ...

    def selected_key(self) -> RowKey | str:
        """Return the selected key, or why there is none."""

    def selected_sample(self) -> ChangeSample | None:
        """Return the selected change of a running relay."""

    def selected_subject(self) -> str | None:
        """Return the selected subject of the schema registry."""


class RecordingHost(Protocol):
    """Requests that a screen may make while a recording is played."""

    source: RecordingSource

    def drive(self, command: Command, then: Then | None = None) -> int:
        """Make the player carry out a command at once; return the command's number."""

    def ask_to_replay(self, *, mend: bool) -> None:
        """Ask what to replay; with ``mend`` true, only what the audit found missing."""

    def ask_to_send_again(self, key: RowKey, position: int, remark: str) -> None:
        """Ask how to send a key again; its newest message belongs to the change at ``position``."""


class ScreenHost(Protocol):
    """Requests that every screen may make."""

    model: Model
    audit: AuditSession
    #: The relay has been asked to stop.
    stopping: bool

    @property
    def recording(self) -> RecordingHost | None:
        """The host of the recording, or None if a relay is shown."""

    def show_mode(self, mode: str) -> None:
        """Switch to the screen of a mode."""

    def next_theme(self) -> None:
        """Switch to the next theme."""

    def open_details(self, name: str, selection: ScreenSelection) -> None:
        """Open a detail screen about the selection by its name, or show why that is impossible."""

    def ask_to_verify(self) -> None:
        """Ask what to verify; while an audit runs, show its progress."""

    def ask_to_try_ddl(self) -> None:
        """Ask for a file of DDL, and show whether the schema registry would accept the tables after it."""

    def ask_to_send_table(self, table: str | None) -> None:
        """Ask whether to send all rows of a table again, and make the relay do so."""

    def ask_to_repair(self) -> None:
        """Compare tables and topics again, show what would be sent, and ask whether to send it."""

    def leave_to_fleet(self, *, by_escape: bool) -> None:
        """Go to the list of all relays, or show why not; Escape does so only if the user came from there."""

    def attach(self, name: str) -> None:
        """Attach to a relay of the list of all relays."""

    def ask_to_leave(self) -> None:
        """Ask how to leave."""


#: A detail screen, why it can't be opened, or an awaitable for a screen that must search for its position
#: first.
Closer: TypeAlias = Screen[None] | str | Awaitable[Screen[None]]
#: Creates a detail screen from a selection.
Opener: TypeAlias = Callable[[ScreenHost, ScreenSelection], Closer]
