"""The event at the beginning of a pass, and the changes that the recording lacks there."""

from collections.abc import Callable
from typing import Any, Literal

from bwtui.model.position import Position
from bwtui.recording.format.statements import Pass
from bwtui.relay.recording.json_blocks import gap_error, gap_json, late_beginning
from bwtui.relay.run_state import RunState


class GapReporter:
    """Records and reports changes that were relayed without being recorded."""

    def __init__(self, report: RunState, say: Callable[[dict[str, Any]], object]) -> None:
        """``say`` writes an event."""
        self._report = report
        self._say = say

    def note(self, since: int | None, until: int, cut: int = 0) -> bool:
        """Report that commits from ``since`` to ``until`` are not recorded; None: from the very beginning.

        ``cut``: the number of bytes that were cut off a torn end. Returns whether there is a gap.
        """
        if since is None:
            self._report.error("notice", late_beginning(until))
        elif until > since:
            self._say(gap_json(since, until))
            self._report.error("recording", gap_error(since, until, cut))
            return True
        return False


def pass_event(
    number: int,
    kind: Literal["snapshot", "stream"],
    start_lsn: int,
    batch: int,
    seen: tuple[int, int],
    session: bytes,
    behind: Position | None,
    *,
    exactly_once: bool,
) -> Pass:
    """Return the event of a pass whose first batch is ``batch``."""
    content: Pass = {
        "pass": number,
        "kind": kind,
        "start_lsn": start_lsn,
        "first_batch": batch,
        "seen": list(seen),
        "session": session.hex(),
    }
    if exactly_once:
        content["exactly_once"] = True
    if behind is not None:
        content["behind"] = {"lsn": behind.lsn, "ordinal": behind.ordinal}
        if behind.recorded is not None:
            recorded = behind.recorded
            content["behind"]["recorded"] = {
                "session": recorded.session,
                "pass": recorded.pass_number,
                "position": recorded.position,
            }
    return content


def lacking(behind: Position | None, seen: tuple[int, int], reached: int) -> int:
    """Return the LSN up to which Kafka has unrecorded changes that are not read again; 0 if there are none.

    Everything up to ``reached`` is recorded, and so is everything up to the change ``seen``. An older relay
    did not count the changes of a complete transaction, so ``seen`` may or may not be its last change.
    Reporting a gap that does not exist is better than hiding one.
    """
    if behind is None or not behind.lsn or behind.lsn < reached:
        return 0
    newest = behind.changes if behind.ordinal is None else behind.ordinal
    is_recorded = newest is not None and (behind.lsn, newest) <= seen
    return 0 if is_recorded else behind.lsn + 1
