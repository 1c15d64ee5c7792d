"""What the audit takes from a recording's journal besides its messages: passes, gaps, and how far it came."""

import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bwtui.pipeline.verify_digests import PARTS
from bwtui.recording.folder import segments
from bwtui.recording.format import Kind
from bwtui.recording.segment_reader import SegmentReader


@dataclass(slots=True)
class Facts:
    """Passes, gaps, and the confirmed LSN."""

    #: Pass → whether what it sent may be taken for confirmed once the LSN is; False: a snapshot given up.
    passes: dict[int, bool] = field(default_factory=dict)
    #: Numbers of messages before which changes were relayed that are not recorded.
    gaps: list[int] = field(default_factory=list)
    confirmed: int = 0
    sessions: set[str] = field(default_factory=set)
    #: The Kafka cluster's id, or empty.
    cluster: str = ""
    #: Segments that a crash left unfinished, or that are being written.
    unfinished: int = 0


def read_facts(folder: Path) -> Facts:
    """Read the events of every segment. Raises DamagedRecording or StateFailed."""
    facts = Facts()
    kinds: dict[int, str] = {}
    for path in segments(folder):
        if not path.is_finished:
            facts.unfinished += 1
            continue
        with contextlib.closing(SegmentReader(path)) as segment:
            _read_segment(segment, facts, kinds)
    given_up = True
    for number in sorted(kinds, reverse=True):
        if kinds[number] == "snapshot":
            facts.passes[number] = not given_up
            given_up = True
        else:
            facts.passes[number] = True
            given_up = False
    return facts


def _read_segment(segment: SegmentReader, facts: Facts, kinds: dict[int, str]) -> None:
    facts.confirmed = max(facts.confirmed, int(segment.foot.get("reached", 0)))
    facts.cluster = str(segment.known_before(1).head["source"].get("cluster") or "")
    at = {entry.offset: start for entry, start in zip(segment.index, segment.starts, strict=True)}
    for block, event in segment.json_blocks(Kind.EVENT):
        if event["event"] == "pass":
            _take_pass(event, facts, kinds)
        elif event["event"] == "gap":
            facts.gaps.append((segment.first_position + at[block.offset]) * PARTS)


def _take_pass(event: dict[str, Any], facts: Facts, kinds: dict[int, str]) -> None:
    kinds[int(event["pass"])] = event["kind"]
    facts.sessions.add(event.get("session", ""))
    # A stream begins at what its slot has confirmed.
    if event["kind"] != "snapshot":
        facts.confirmed = max(facts.confirmed, int(event["start_lsn"]))
