"""What a recording says where a pass begins, and what it lacks there."""

from collections.abc import Callable
from typing import Any, Literal

from bwtui.model.position import Position
from bwtui.recording.format.statements import Pass
from bwtui.relay.recording.as_json import gap_error, gap_json, late_beginning
from bwtui.relay.report import Report


class Gaps:
    """Notes, and reports, what was relayed without being recorded."""

    def __init__(self, report: Report, say: Callable[[dict[str, Any]], object]) -> None:
        """``say`` writes an event."""
        self._report = report
        self._say = say

    def note(self, since: int | None, until: int) -> None:
        """Note that what commits before ``until`` is not recorded; None: of nothing before is anything."""
        if since is None:
            self._report.error("notice", late_beginning(until))
        elif until > since:
            self._say(gap_json(since, until))
            self._report.error("recording", gap_error(since, until))


def pass_said(
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
    """Return the statement of a pass whose first batch is ``batch``."""
    said: Pass = {
        "pass": number,
        "kind": kind,
        "start_lsn": start_lsn,
        "first_batch": batch,
        "seen": list(seen),
        "session": session.hex(),
    }
    if exactly_once:
        said["exactly_once"] = True
    if behind is not None:
        said["behind"] = {"lsn": behind.lsn, "ordinal": behind.ordinal}
        if behind.recorded is not None:
            recorded = behind.recorded
            said["behind"]["recorded"] = {
                "session": recorded.session,
                "pass": recorded.pass_number,
                "position": recorded.position,
            }
    return said


def lacking(behind: Position | None, seen: tuple[int, int], reached: int) -> int:
    """Return up to which LSN Kafka has what is not recorded, and is not read again; 0: there is no such part.

    Everything up to ``reached`` is recorded, and up to the change ``seen``. Of a whole transaction that an
    older relay has not counted nobody knows whether ``seen`` is its last change: better told than hidden.
    """
    if behind is None or not behind.lsn or behind.lsn < reached:
        return 0
    newest = behind.changes if behind.ordinal is None else behind.ordinal
    is_recorded = newest is not None and (behind.lsn, newest) <= seen
    return 0 if is_recorded else behind.lsn + 1
