"""Read the audit's facts from a recording's journal: passes, gaps, and the confirmed LSNs."""

import contextlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from bwtui.audit.core import PARTS
from bwtui.errors import DamagedRecording
from bwtui.recording.blocks import BlockKind, SegmentFile
from bwtui.recording.folder import SegmentPath, segments
from bwtui.recording.payloads import Event, LastSentChange, parse_event
from bwtui.recording.segment_reader import SegmentReader

LARGEST = (1 << 63) - 1


@dataclass(slots=True)
class JournalFacts:
    """The facts in the segments of a recording, apart from its messages."""

    #: Pass → whether its messages count as confirmed once the LSN is; False for an abandoned snapshot.
    passes: dict[int, bool] = field(default_factory=dict)
    #: Pass over the stream → the LSN up to which all of it had reached Kafka, by its own report.
    reached: dict[int, int] = field(default_factory=dict)
    #: The passes in which each change was to be written to Kafka once.
    exactly_once: set[int] = field(default_factory=set)
    #: Pass → the ID before which Kafka has committed everything that it sent, acknowledged or not, and
    #: nothing after.
    committed: dict[int, int] = field(default_factory=dict)
    #: Pass → the run that it belongs to.
    runs: dict[int, str] = field(default_factory=dict)
    #: The ID of the first message after each gap.
    gaps: list[int] = field(default_factory=list)
    #: The highest LSN that the recording reports as confirmed, or 0.
    confirmed: int = 0
    #: The IDs of the relay's sessions in hexadecimal, as in the messages' headers.
    sessions: set[str] = field(default_factory=set)
    #: The Kafka cluster's ID, or empty.
    cluster: str = ""
    #: Number of changes in the segments that were read.
    changes: int = 0
    #: Number of segments that were not read: they are not sealed, or not even finished.
    later: int = 0
    #: Changes that commit at or after this LSN may have been sent again in those segments.
    resumed: int = LARGEST


def read_facts(folder: Path, names: Collection[str] | None = None) -> JournalFacts:
    """Read the events of the segments in ``names``, or of every finished one.

    The facts must come from the same segments as the messages: changes that a later segment confirms were
    sent again by a session of which the audit has no messages. Raises DamagedRecording or StateFailed.
    """
    facts = JournalFacts()
    kinds: dict[int, str] = {}
    for path in segments(folder):
        if not path.is_finished or (names is not None and path.path.name not in names):
            facts.later += 1
            _read_later(path, facts)
            continue
        with contextlib.closing(SegmentReader(path)) as segment:
            _read_segment(segment, facts, kinds)
    if not facts.later:
        facts.resumed = LARGEST
    is_abandoned = True
    for number in sorted(kinds, reverse=True):
        if kinds[number] == "snapshot":
            facts.passes[number] = not is_abandoned
            facts.reached.pop(number, None)
            is_abandoned = True
        else:
            facts.passes[number] = True
            facts.reached.setdefault(number, 0)
            is_abandoned = False
    return facts


def _read_segment(segment: SegmentReader, facts: JournalFacts, kinds: dict[int, str]) -> None:
    facts.changes += segment.changes
    facts.confirmed = max(facts.confirmed, int(segment.foot.get("reached", 0)))
    facts.cluster = str(segment.head["source"].get("cluster") or "")
    newest = -1
    if (last := segment.last_transaction()) is not None:
        # The rest of the transaction may be in the next segment.
        facts.resumed, newest = last.commit_lsn, segment.first_position + last.position
    _read_reached(segment, facts)
    for position, _, event in segment.events():
        if event["event"] == "pass":
            _take_pass(event, facts, kinds)
            if position > newest:
                facts.resumed = event["start_lsn"]
        elif event["event"] == "gap":
            facts.gaps.append(position * PARTS)


def _read_reached(segment: SegmentReader, facts: JournalFacts) -> None:
    """Record how far each pass came; only passes over the stream report it."""
    number = segment.head["pass"]["pass"]
    for entry in segment.index:
        if entry.kind == BlockKind.EVENT:
            event = segment.event_at(entry)
            number = event["pass"] if event["event"] == "pass" else number
        elif entry.kind == BlockKind.REACHED:
            facts.reached[number] = max(facts.reached.get(number, 0), entry.last_lsn)


def _take_pass(event: Event, facts: JournalFacts, kinds: dict[int, str]) -> None:
    kinds[event["pass"]] = event["kind"]
    facts.runs[event["pass"]] = event.get("session", "")
    if event.get("exactly_once"):
        facts.exactly_once.add(event["pass"])
    facts.sessions.add(event.get("session", ""))
    # A stream begins at the LSN that its slot has confirmed.
    if event["kind"] != "snapshot":
        facts.confirmed = max(facts.confirmed, event["start_lsn"])
    # Changes that were in Kafka when a pass with --exactly-once began are not sent again either.
    if (last_sent := event.get("behind")) is not None:
        facts.confirmed = max(facts.confirmed, last_sent["lsn"] + (last_sent["ordinal"] is None))
        _take_recorded(event, last_sent, facts)


def _take_recorded(event: Event, last_sent: LastSentChange, facts: JournalFacts) -> None:
    """Record what Kafka had committed of an earlier pass, if the position belongs to this recording."""
    recorded = last_sent.get("recorded")
    # A session may be missing from the recording, so that a later pass has its number. Another recording has
    # passes with the same numbers, too.
    if recorded is None or recorded["pass"] >= event["pass"]:
        return
    if facts.runs.get(recorded["pass"]) == recorded["session"]:
        facts.committed[recorded["pass"]] = recorded["position"] * PARTS


def _read_later(path: SegmentPath, facts: JournalFacts) -> None:
    """Record the sessions that write an unread segment, and the LSN at which they begin."""
    for event in _passes(path):
        facts.sessions.add(event.get("session", ""))
        if event.get("kind") == "stream":
            facts.resumed = min(facts.resumed, event["start_lsn"])


def _passes(path: SegmentPath) -> Iterator[Event]:
    """Yield the passes that begin in a segment, as far as it can be read."""
    with (
        contextlib.suppress(OSError, DamagedRecording),
        path.path.open("rb") as file,
    ):
        source = SegmentFile(file, path.path.name)
        for block in source.blocks(with_payload=False):
            if block.kind == BlockKind.EVENT:
                event = parse_event(source.block(block.offset), path.path.name)
                if event["event"] == "pass":
                    yield event
