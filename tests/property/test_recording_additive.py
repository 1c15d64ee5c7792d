"""Versions read each other's recordings.

No version writes a key that the first one refuses, and each ignores unknown keys of later ones.
"""

import copy
import dataclasses
import json
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from bwtui.errors import ConnectionFailed
from bwtui.model.latency import Percentiles
from bwtui.model.status import ErrorEntry, RecordingStatus, SchemaEntry, StageStatus, Status
from bwtui.model.verdict import RelayVerdict
from bwtui.recording.blocks import BlockKind, JournalBlock, SegmentFile
from bwtui.recording.payloads import statement
from bwtui.recording.reader import open_recording
from bwtui.relay.rows.journal_recorder import recorded_status
from bwtui.tui.sources.recorded_model import status_at
from tests.recorded_stream import Stream, table

#: All keys that the first version knew; it refuses an ERROR with any other key, and other states.
FIRST_ERROR = {"time", "kind", "table", "message", "hint", "count"}
FIRST_STATES = {"starting", "snapshot", "streaming", "paused", "stopped", "failed"}
ORDERS = table(1, "orders")
STATUS = Status(
    "streaming",
    "shop",
    "shop",
    verdict=RelayVerdict(
        "stalled", "Kafka has acknowledged nothing for 12 s", "kafka", since=1_790_000_000.0
    ),
    stages={"read": StageStatus(1.0)},
    latency={"total": Percentiles(1, 1, 1, 1, 1, 1)},
    recording=RecordingStatus("/r"),
)
SAID: dict[BlockKind, dict[str, Any]] = {
    BlockKind.STATUS: recorded_status(STATUS),
    BlockKind.ERROR: dataclasses.asdict(ErrorEntry(1_790_000_000.0, "outage", None, "Kafka is away", "wait")),
    BlockKind.SCHEMA: dataclasses.asdict(
        SchemaEntry("t-value", 1, 1, "public.t", "t", "value", "{}", 1_790_000_000.0)
    ),
    BlockKind.EVENT: {"event": "gap", "from_lsn": 1, "to_lsn": 2},
}
LATER = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(), inner, max_size=2),
    max_leaves=4,
)


def block(kind: BlockKind, content: dict[str, Any]) -> JournalBlock:
    return JournalBlock(kind, 3, 0, 0, 0, 0, 0, json.dumps(content).encode())


def objects(content: Any) -> list[dict[str, Any]]:
    """Return every object in a block whose keys are names and not data."""
    found = [content]
    for name in ("verdict", "recording"):
        found += [content[name]] if name in content else []
    for name in ("stages", "latency"):
        found += content.get(name, {}).values()
    return found


@given(st.data())
def test_what_a_later_version_adds_is_passed_over(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(sorted(SAID)))
    said = copy.deepcopy(SAID[kind])
    before = statement(block(kind, said), "00000001")
    for one in objects(said):
        added = data.draw(st.dictionaries(st.text().map(lambda name: f"later {name}"), LATER, max_size=2))
        one.update(added)
    after = statement(block(kind, said), "00000001")
    assert understood(kind, after) == understood(kind, before)


def understood(kind: BlockKind, content: dict[str, Any]) -> Any:
    """Return a reader's result for a block."""
    if kind == BlockKind.STATUS:
        return Status.from_json(content)
    return {name: value for name, value in content.items() if not name.startswith("later ")}


@given(st.text(), st.text(), st.text())
def test_words_of_a_later_version_are_read(state: str, condition: str, cause: str) -> None:
    said = copy.deepcopy(SAID[BlockKind.STATUS])
    said["state"] = said["phase"] = state
    said["verdict"] |= {"condition": condition, "cause": cause}
    found = Status.from_json(statement(block(BlockKind.STATUS, said), "00000001"))
    assert (found.state, found.verdict.condition, found.verdict.cause) == (state, condition, cause)


def blocks(folder: Path) -> list[tuple[BlockKind, dict[str, Any]]]:
    found: list[tuple[BlockKind, dict[str, Any]]] = []
    for path in sorted(folder.glob("*.bwj")):
        with path.open("rb") as file:
            for one in SegmentFile(file, path.name).blocks():
                if one.kind in (BlockKind.STATUS, BlockKind.ERROR):
                    found.append((one.kind, json.loads(one.payload)))
    return found


class Recorded:
    """A recording whose relay reports an outage and a stall."""

    def __init__(self, folder: Path) -> None:
        self.stream = Stream(folder)
        self.stream.status = self._status
        self.key = 0

    def _status(self) -> Status:
        report = self.stream.report
        state: Any = "stalled" if report.is_out("Kafka") else "streaming"
        verdict = RelayVerdict("stalled" if report.is_out("Kafka") else "healthy")
        return Status(
            state,
            "shop",
            "shop",
            phase="streaming",
            verdict=verdict,
            time=time.time(),
            errors=report.errors(),
        )

    def change(self) -> int:
        """Record the status and then a change; return the position of the change."""
        stream = self.stream
        self.key += 1
        # The next status would be due only after a second.
        stream.recorder._status._read_at = float("-inf")
        stream.recorder.settle()
        stream.begin()
        stream.change("insert", ORDERS, self.key, b"one")
        stream.commit()
        stream.flush()
        stream.deliver()
        stream.recorder.settle()
        return self.key - 1


def test_an_outage_has_an_end_in_a_recording_that_the_first_version_reads(tmp_path: Path) -> None:
    recorded = Recorded(tmp_path)
    report = recorded.stream.report
    begun = time.time()
    recorded.change()
    report.error("outage", ConnectionFailed("Kafka is away", "wait"), dependency="Kafka")
    out = recorded.change()
    report.recovered("Kafka")
    over = recorded.change()
    recorded.change()
    recorded.stream.wait_durable()
    recorded.stream.stop()
    kinds = set()
    for kind, content in blocks(tmp_path):
        kinds.add(kind)
        if kind == BlockKind.ERROR:
            assert content.keys() == FIRST_ERROR
        else:
            assert content["state"] in FIRST_STATES
    assert kinds == {BlockKind.STATUS, BlockKind.ERROR}
    with closing(open_recording(tmp_path)) as view:
        (entry,) = view.errors(out)
        assert entry.since is not None and entry.since >= begun
        assert entry.until is None
        assert view.status(out)["state"] == "stalled"
        assert status_at(view, out, view.time_at(out), {}, {}).state == "stalled"
        (entry,) = view.errors(over)
        assert entry.until is not None and entry.since is not None and entry.until >= entry.since
        assert view.status(over)["state"] == "streaming"


def test_another_session_does_not_say_that_an_outage_goes_on(tmp_path: Path) -> None:
    recorded = Recorded(tmp_path)
    recorded.change()
    recorded.stream.report.error("outage", ConnectionFailed("Kafka is away", "wait"), dependency="Kafka")
    recorded.change()
    recorded.stream.wait_durable()
    recorded.stream.stop()
    recorded.stream.start()
    recorded.stream.begin_pass()
    recorded.change()
    recorded.stream.stop()
    with closing(open_recording(tmp_path)) as view:
        (entry,) = view.errors(view.length)
        assert entry.is_over
