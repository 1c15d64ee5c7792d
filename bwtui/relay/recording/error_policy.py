"""Handle a disk that can't take more of a recording: stop the relay, or continue without recording."""

import json
from typing import Any

from bwtui.errors import StateFailed
from bwtui.model.status import ErrorEntry
from bwtui.recording.format.blocks import BlockKind
from bwtui.recording.segment import OutgoingBlock
from bwtui.relay.recording.json_blocks import error_json, gap_error, gap_json, past_numbering
from bwtui.relay.run_state import RunState
from bwtui.settings import RelaySettings


class RecordErrorPolicy:
    """The decision to give up the recording, according to --on-record-error."""

    def __init__(self, settings: RelaySettings, report: RunState) -> None:
        self._settings = settings
        self._report = report
        #: True if the disk error was reported, and true if the relay then continued without recording.
        self.is_reported = False
        self.gave_up = False
        self._last_errors: list[ErrorEntry] = []

    def give_up(self, error: StateFailed) -> None:
        """Report that the recording ended. Raises ``error`` unless the relay may continue without it."""
        self.is_reported = True
        if self._settings.record_only:
            raise error
        if self._settings.on_record_error == "stop":
            hint = (
                f"{error.hint}; with --on-record-error stop-recording the relay would continue "
                "without recording"
            )
            raise StateFailed(error.message, hint)
        self.gave_up = True
        self._report.on_error = self._keep
        hint = f"the relay continues without recording; {error.hint}"
        self._report.error("recording", StateFailed(error.message, hint))

    def at_last_number(self, subject: str) -> bool:
        """Give up if ``subject`` has run out of numbers, and return whether it has. Raises StateFailed."""
        if subject:
            self.give_up(past_numbering(subject))
        return bool(subject)

    def _keep(self, entry: ErrorEntry) -> None:
        if entry.kind == "recording":
            self._last_errors.append(entry)

    def last_blocks(self, since: int) -> tuple[int, list[OutgoingBlock]]:
        """Report the gap that begins at ``since``; return its end, and its blocks for the recording."""
        until = self._report.confirmed_lsn
        blocks: list[tuple[BlockKind, dict[str, Any]]] = []
        if until > since:
            self._report.error("recording", gap_error(since, until))
            blocks.append((BlockKind.EVENT, gap_json(since, until)))
        blocks += [(BlockKind.ERROR, error_json(entry)) for entry in self._last_errors]
        return max(since, until), [
            OutgoingBlock(kind, [json.dumps(content).encode()]) for kind, content in blocks
        ]
