"""The actions that move a recording's position, and those that inspect one of its changes."""

from datetime import datetime
from typing import ClassVar

from textual.screen import Screen

from bwtui.errors import BwtuiError
from bwtui.model.status import ChangeSample
from bwtui.recording.change import Change
from bwtui.recording.reading.explain import RowKey, key_of
from bwtui.tui.audit.report import ReportFinding
from bwtui.tui.host import RecordingHost, ScreenHost
from bwtui.tui.keys import key_for
from bwtui.tui.plain import with_hint
from bwtui.tui.playback import Command
from bwtui.tui.state import Playhead
from bwtui.tui.widgets.compositor import PartialCompositor
from bwtui.tui.widgets.grid import Grid
from bwtui.tui.widgets.recording.seek_bar import SeekBar
from bwtui.tui.widgets.recording.transport import Timeline


class TransportScreen(Screen[None]):
    """The base of every screen; the actions that move a recording are called only for a recording."""

    #: The main list is not the recording's but the screen's own, such as a transaction.
    own_list: ClassVar[bool] = False

    def __init__(self, host: ScreenHost) -> None:
        super().__init__()
        self.host = host
        self._compositor = PartialCompositor()

    @property
    def recording(self) -> RecordingHost:
        """The host of the recording; never used for a relay."""
        recording = self.host.recording
        assert recording is not None
        return recording

    # Methods for subclasses to override.

    def main_grid(self) -> Grid:
        """Return the list that filter, sort and copy act on."""
        raise NotImplementedError

    def selected_change(self) -> Change | None:
        """Return the selected change; by default the last one at the recording's position."""
        head = self.host.model.picture.playhead
        return None if head is None else head.change

    def selected_table(self) -> str | None:
        """Return the selected table; by default the selected change's."""
        change = self.selected_change()
        return None if change is None else change.table

    def selected_key(self) -> RowKey | str:
        """Return the selected key, or why there is none; by default the selected change's."""
        change = self.selected_change()
        if change is None:
            return "No change is selected"
        return key_of(change) or f"{change.table} has no key, so its rows can't be told apart"

    def selected_sample(self) -> ChangeSample | None:
        """Return the selected change of a running relay, on a screen that has one."""
        return None

    def selected_subject(self) -> str | None:
        """Return the selected subject; by default that of the selected table's values."""
        table, schemas = self.selected_table(), self.host.model.picture.schemas
        found = [one for one in schemas if one.table == table and one.part == "value"]
        return found[-1].subject if found else None

    # Moving.

    def action_play(self) -> None:
        self.drive(lambda player: player.toggle())

    def action_step(self, changes: int) -> None:
        self.drive(lambda player: player.step(changes))

    def action_step_transaction(self, direction: int) -> None:
        self.drive(lambda player: player.step_transaction(direction))

    def action_speed(self, steps: int) -> None:
        self.drive(lambda player: player.change_speed(steps))

    def action_travel(self, end: int) -> None:
        """Go to the recording's beginning or end."""
        length = self.recording.source.view.length
        self.drive(lambda player: player.seek(length if end else 0))

    def action_error(self, direction: int) -> None:
        """Go to the next or previous error."""
        self.drive(lambda player: player.seek_error(direction))

    def action_seek(self) -> None:
        """Open the line in which a position is typed."""
        head = self.host.model.picture.playhead
        self.query_one(SeekBar).open(() if head is None else places(head))

    def on_timeline_clicked(self, event: Timeline.Clicked) -> None:
        """Go to the moment under the mouse."""
        self.drive(lambda player: player.seek_time(event.micros))

    def on_seek_bar_submitted(self, event: SeekBar.Submitted) -> None:
        """Go to the typed position, or show why that is impossible."""
        bar = self.query_one(SeekBar)
        self.recording.drive(lambda player: player.seek_text(event.text), bar.answer)

    def close_seek_bar(self) -> bool:
        """Close the line in which a position is typed; return whether it was open."""
        bars = self.query(SeekBar)
        if not bars or not bars.first().display:
            return False
        bars.first().close()
        return True

    def on_seek_bar_closed(self) -> None:
        """Return the focus to the list."""
        self.main_grid().focus()

    def drive(self, command: Command) -> int:
        """Make the player carry out a command; show its error, if any."""
        return self.recording.drive(command, self._say_error)

    # Detail screens.

    def action_look_closer(self, name: str) -> None:
        """Open a detail screen about the selection."""
        self.host.look_closer(name, self)

    # Audits.

    def action_replay(self) -> None:
        """Ask what to replay, and into which topics."""
        self.recording.ask_to_replay(mend=False)

    def action_mend(self) -> None:
        """Replay what the audit found missing."""
        report = self.host.audit.report
        if report is None:
            self._warn(f"There is no audit yet: {key_for('verify')} verifies this recording")
        elif not report.missing:
            self._warn("The audit found nothing missing: there is nothing to mend")
        else:
            self.recording.ask_to_replay(mend=True)

    def go_to_place(self, finding: ReportFinding | None, change: Change | None = None) -> None:
        """Go to a finding's change in the list of all changes, or to the finding's LSN."""
        position = change.position if change is not None else finding.position if finding else None
        if finding is None:
            self._warn("No finding is selected")
        elif position is not None:
            self.host.show_mode("changes")
            self.drive(lambda player: player.seek(position + 1))
        elif finding.lsn:
            lsn = finding.lsn
            self.host.show_mode("changes")
            self.drive(lambda player: player.seek_text(lsn))
        else:
            self._warn("It has no place in the recording: no message of it says the same")

    def _say_error(self, error: BwtuiError | None) -> None:
        if error is not None:
            self._warn(with_hint(error))

    def _warn(self, text: str) -> None:
        self.notify(text, severity="warning", timeout=4, markup=False)


def places(head: Playhead) -> list[str]:
    """Return examples of all forms of a position, for the present one."""
    moment = datetime.fromtimestamp(head.time / 1_000_000)
    change = head.change
    xid = change.xid if change is not None and change.in_transaction else ""
    here = [f"xid {xid}", *([change.lsn_text] if change is not None else [])]
    now = [f"{moment:%H:%M:%S}", f"{moment:%Y-%m-%d %H:%M:%S}"]
    return ["start", "end", *now, "+30s", "-5m", *here, "50%", f"#{max(head.position - 1, 0)}"]
