"""The actions that move a recording, and those that look closer at a change of it."""

from typing import TYPE_CHECKING, Any, ClassVar, cast

from bwtui.errors import BwtuiError
from bwtui.recording.change import Change
from bwtui.recording.reading.explain import Key, key_of
from bwtui.tui.audit.report import Finding
from bwtui.tui.playback import Command, RecordedModel
from bwtui.tui.widgets.seek_bar import SeekBar
from bwtui.tui.widgets.transport import Timeline

if TYPE_CHECKING:
    from bwtui.tui.recording_app import RecordingApp
    from bwtui.tui.screens.base import RelayScreen


class TransportActions:
    """Every screen of a recording has them; live, none of them is ever called."""

    #: The main list is not the recording but something of its own, such as a transaction.
    own_list: ClassVar[bool] = False

    @property
    def takes_ends(self) -> bool:
        """Whether g and G mean the recording's ends; in a list of its own they mean the list's."""
        return self._screen.relay.model.recorded and not self.own_list

    @property
    def recording(self) -> "RecordingApp":
        """The app, where it plays a recording."""
        return cast("RecordingApp", self._screen.app)

    @property
    def _screen(self) -> "RelayScreen":
        return cast("RelayScreen", self)

    # What a screen may know better.

    def selected_change(self) -> Change | None:
        """Return the selected change; by default the last one that has happened."""
        head = self._screen.relay.model.picture.playhead
        return None if head is None else head.change

    def selected_table(self) -> str | None:
        """Return the table that is meant; by default the selected change's."""
        change = self.selected_change()
        return None if change is None else change.table

    # Moving.

    def action_play(self) -> None:
        """Play, or stand still."""
        self.drive(lambda player: player.toggle())

    def action_step(self, changes: int) -> None:
        """Move by one change."""
        self.drive(lambda player: player.step(changes))

    def action_step_transaction(self, direction: int) -> None:
        """Move by one transaction."""
        self.drive(lambda player: player.step_transaction(direction))

    def action_speed(self, steps: int) -> None:
        """Play faster or slower."""
        self.drive(lambda player: player.change_speed(steps))

    def action_travel(self, end: int) -> None:
        """Go to the beginning or the end."""
        length = self._model.recording.view.length
        self.drive(lambda player: player.seek(length if end else 0))

    def action_error(self, direction: int) -> None:
        """Go to the next error, or to the one before."""
        self.drive(lambda player: player.seek_error(direction))

    def action_seek(self) -> None:
        """Type a place to go to."""
        self._screen.query_one(SeekBar).open()

    def on_timeline_clicked(self, event: Timeline.Clicked) -> None:
        """Go to the moment under the mouse."""
        self.drive(lambda player: player.seek_time(event.micros))

    def on_seek_bar_submitted(self, event: SeekBar.Submitted) -> None:
        """Go where the text says, or say why not."""
        bar = self._screen.query_one(SeekBar)
        self.recording.drive(lambda player: player.seek_text(event.text), bar.answer)

    def close_seek_bar(self) -> bool:
        """Close the line where a place is typed; return whether it was open."""
        bars = self._screen.query(SeekBar)
        if not bars or not bars.first().display:
            return False
        bars.first().close()
        return True

    def on_seek_bar_closed(self) -> None:
        """Give the focus back to the list."""
        self._screen.main_grid().focus()

    def drive(self, command: Command) -> int:
        """Have the player do something; what it can't do is told."""
        return self.recording.drive(command, self._tell)

    # Looking closer.

    def action_transaction(self) -> None:
        """Show all changes of a transaction."""
        change = self.selected_change()
        if change is None:
            self._say("No change is selected")
        else:
            self.recording.show_transaction(change)

    def action_explain(self) -> None:
        """Show what became of a row."""
        change = self.selected_change()
        if change is None:
            self._say("No change is selected")
        elif change.operation == "truncate":
            self._say(
                "TRUNCATE empties whole tables: it is about no single row, so there is no key to explain"
            )
        elif (key := key_of(change)) is None:
            self._say(f"{change.table} has no key, so its rows can't be told apart")
        else:
            self.explain(key)

    def explain(self, key: Key) -> None:
        """Show what became of a key."""
        self.recording.show_key(key)

    def action_as_of(self) -> None:
        """Show a table's rows as of this position."""
        table = self.selected_table()
        if table is None:
            self._say("No table is selected")
        else:
            self.recording.show_rows(table)

    # Audits.

    def action_replay(self) -> None:
        """Ask what to replay, and into what."""
        self.recording.ask_to_replay(mend=False)

    def action_mend(self) -> None:
        """Replay what the audit found missing."""
        report = self._screen.relay.desk.report
        if report is None:
            self._say("There is no audit yet: v verifies this recording")
        elif not report.missing:
            self._say("The audit found nothing missing: there is nothing to mend")
        else:
            self.recording.ask_to_replay(mend=True)

    def go_to_place(self, finding: Finding | None, change: Change | None = None) -> None:
        """Go to a finding's change in the list of all changes, or to where its LSN is."""
        position = change.position if change is not None else finding.position if finding else None
        if finding is None:
            self._say("No finding is selected")
        elif position is not None:
            self._screen.relay.show_mode("changes")
            self.drive(lambda player: player.seek(position + 1))
        elif finding.lsn:
            lsn = finding.lsn
            self._screen.relay.show_mode("changes")
            self.drive(lambda player: player.seek_text(lsn))
        else:
            self._say("It has no place in the recording: no message of it says the same")

    @property
    def _model(self) -> RecordedModel:
        return cast(RecordedModel, self._screen.relay.model)

    def _tell(self, error: BwtuiError | None) -> None:
        if error is not None:
            self._say(error.message + (f": {error.hint}" if error.hint else ""))

    def _say(self, text: str) -> None:
        cast(Any, self._screen).notify(text, severity="warning", timeout=4, markup=False)
