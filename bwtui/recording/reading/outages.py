"""When the outages in a recording began and ended.

An ERROR block records that an outage began. Later STATUS blocks record its end, in a form that older versions
ignore (see `bwtui.relay.recording.json_blocks.recorded_status`).
"""

from dataclasses import replace

from bwtui.model.status import ErrorEntry
from bwtui.recording.format.blocks import BlockKind
from bwtui.recording.format.statements import parse_outages
from bwtui.recording.reading.segment_reader import SegmentReader

_Which = tuple[str, str | None, str]


class Outages:
    """The outages in the last status of each session; pass the segments in reverse order."""

    def __init__(self) -> None:
        self._session = ""
        self._is_former = False
        self._is_found = False
        self._said: dict[_Which, ErrorEntry] = {}

    def go_back_to(self, segment: SegmentReader, stop: int) -> None:
        """Read the blocks of ``segment`` before ``stop``, unless a later status of its session was found."""
        session = segment.head["session"]
        if session != self._session:
            self._is_former, self._session = bool(self._session), session
            self._is_found, self._said = False, {}
        if self._is_found:
            return
        for entry in reversed(segment.index[:stop]):
            if entry.kind == BlockKind.STATUS:
                self._is_found = True
                status = segment.json_at(entry)
                self._said = {
                    _which(one): self._ended(one, status.get("time", 0.0)) for one in parse_outages(status)
                }
                return

    def _ended(self, outage: ErrorEntry, time: float) -> ErrorEntry:
        if outage.until is not None or outage.since is None or not self._is_former:
            return outage
        # The session that was waiting has ended.
        return replace(outage, until=max(time, outage.since))

    def known(self, entry: ErrorEntry) -> ErrorEntry:
        """Return an entry with the recorded beginning and end of its outage."""
        outage = self._said.get(_which(entry))
        return replace(entry, since=outage.since if outage else None, until=outage.until if outage else None)


def _which(entry: ErrorEntry) -> _Which:
    return entry.kind, entry.table, entry.message
