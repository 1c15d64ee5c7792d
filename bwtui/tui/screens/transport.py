"""The actions that move a recording, and those that look closer at a change of it."""

from datetime import datetime
from typing import ClassVar

from textual.screen import Screen

from bwtui.errors import BwtuiError
from bwtui.model.status import ChangeSample
from bwtui.recording.change import Change
from bwtui.recording.reading.explain import Key, key_of
from bwtui.tui.audit.report import Finding
from bwtui.tui.host import Host, RecordingHost
from bwtui.tui.keys import key_for
from bwtui.tui.plain import with_hint
from bwtui.tui.playback import Command
from bwtui.tui.state import Playhead
from bwtui.tui.widgets.compositor import PartialCompositor
from bwtui.tui.widgets.grid import Grid
from bwtui.tui.widgets.recording.seek_bar import SeekBar
from bwtui.tui.widgets.recording.transport import Timeline


class TransportScreen(Screen[None]):
    """Every screen of a recording has these actions; live, none of them is ever called."""

    #: The main list is not the recording but something of its own, such as a transaction.
    own_list: ClassVar[bool] = False

    def __init__(self, host: Host) -> None:
        super().__init__()
        self.host = host
        self._compositor = PartialCompositor()

    @property
    def recording(self) -> RecordingHost:
        """The recording that is played; not asked for live."""
        recording = self.host.recording
        assert recording is not None
        return recording

    # What a screen may know better.

    def main_grid(self) -> Grid:
        """Return the list that filter, sort and copy act on."""
        raise NotImplementedError

    def selected_change(self) -> Change | None:
        """Return the selected change; by default the last one that has happened."""
        head = self.host.model.picture.playhead
        return None if head is None else head.change

    def selected_table(self) -> str | None:
        """Return the table that is meant; by default the selected change's."""
        change = self.selected_change()
        return None if change is None else change.table

    def selected_key(self) -> Key | str:
        """Return the key that is meant, or why there is none; by default the selected change's."""
        change = self.selected_change()
        if change is None:
            return "No change is selected"
        return key_of(change) or f"{change.table} has no key, so its rows can't be told apart"

    def selected_sample(self) -> ChangeSample | None:
        """Return the selected change of a relay that runs, on a screen that has one."""
        return None

    def selected_subject(self) -> str | None:
        """Return the subject that is meant; by default that of the selected table's values."""
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
        """Go to the beginning or the end."""
        length = self.recording.source.view.length
        self.drive(lambda player: player.seek(length if end else 0))

    def action_error(self, direction: int) -> None:
        """Go to the next error, or to the one before."""
        self.drive(lambda player: player.seek_error(direction))

    def action_seek(self) -> None:
        """Type a place to go to."""
        head = self.host.model.picture.playhead
        self.query_one(SeekBar).open(() if head is None else places(head))

    def on_timeline_clicked(self, event: Timeline.Clicked) -> None:
        """Go to the moment under the mouse."""
        self.drive(lambda player: player.seek_time(event.micros))

    def on_seek_bar_submitted(self, event: SeekBar.Submitted) -> None:
        """Go where the text says, or say why not."""
        bar = self.query_one(SeekBar)
        self.recording.drive(lambda player: player.seek_text(event.text), bar.answer)

    def close_seek_bar(self) -> bool:
        """Close the line where a place is typed; return whether it was open."""
        bars = self.query(SeekBar)
        if not bars or not bars.first().display:
            return False
        bars.first().close()
        return True

    def on_seek_bar_closed(self) -> None:
        """Give the focus back to the list."""
        self.main_grid().focus()

    def drive(self, command: Command) -> int:
        """Have the player do something; say what it can't do."""
        return self.recording.drive(command, self._say_error)

    # Looking closer.

    def action_look_closer(self, name: str) -> None:
        """Open another screen about what is selected."""
        self.host.look_closer(name, self)

    # Audits.

    def action_replay(self) -> None:
        """Ask what to replay, and into what."""
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

    def go_to_place(self, finding: Finding | None, change: Change | None = None) -> None:
        """Go to a finding's change in the list of all changes, or to where its LSN is."""
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
    """Return the forms of a place, each as it would be written where a recording stands."""
    moment = datetime.fromtimestamp(head.time / 1_000_000)
    change = head.change
    xid = change.xid if change is not None and change.in_transaction else ""
    here = [f"xid {xid}", *([change.lsn_text] if change is not None else [])]
    now = [f"{moment:%H:%M:%S}", f"{moment:%Y-%m-%d %H:%M:%S}"]
    return ["start", "end", *now, "+30s", "-5m", *here, "50%", f"#{max(head.position - 1, 0)}"]
