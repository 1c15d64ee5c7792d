"""The journey of a key on screen, in a recording: Kafka answers, answers wrongly, hangs or is unavailable."""

import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from bwtui.errors import ConnectionFailed
from bwtui.kafka.key_reader import KeyRecords, StoredRecord
from bwtui.model.service_views import Consumers, GroupEntry, PartitionLag
from bwtui.recording import explain as explaining
from bwtui.recording.explain import RowKey
from bwtui.tui.audit.records import SingleRecordReader
from bwtui.tui.screens import journey as journey_screens
from bwtui.tui.screens.dialogs import AskScreen, FormScreen
from bwtui.tui.screens.journey import RecordedJourney
from bwtui.tui.screens.transactions import TransactionScreen
from tests.recorded_shop import ORDERS, MemoryRecording, Tape
from tests.tui.audited import AuditedStage
from tests.tui.picture import lines, text
from tests.tui.pictured import compare


class KeyedKafka(SingleRecordReader):
    """The records of a recording, as they were sent; a test changes them, or lets Kafka hang."""

    def __init__(self, recording: MemoryRecording | None) -> None:
        super().__init__({"bootstrap.servers": "kafka:9092"}, lambda number: None)
        self.records: dict[tuple[str, int, int], StoredRecord] = {}
        for change in recording.changes() if recording is not None else ():
            for one in change.messages:
                if one.partition is not None and one.offset is not None:
                    place = (one.topic, one.partition, one.offset)
                    stamp = change.commit_time // 1000
                    self.records[place] = StoredRecord(one.partition, one.offset, stamp, one.key, one.value)
        self.answers = threading.Event()
        self.answers.set()
        self.error: ConnectionFailed | None = None
        self.asked: list[str] = []
        self.groups_found: tuple[GroupEntry, ...] = ()

    def reader(self, stopped: Callable[[], bool]) -> "KeyedKafka":  # type: ignore[override]
        return self

    def of_key(self, topic: str, is_key: Callable[[bytes], bool], partition: int | None = None) -> KeyRecords:
        self._wait("of_key")
        found = KeyRecords()
        for (name, _, _), one in sorted(self.records.items(), key=lambda item: item[0][1:]):
            if name == topic and one.key is not None and is_key(one.key):
                found.records.append(one)
                found.count += 1
        found.scanned = len(self.records)
        return found

    def record(self, topic: str, partition: int, offset: int) -> StoredRecord | str:
        self._wait("record")
        return self.records.get((topic, partition, offset), "expired")

    def groups(self, topic: str) -> Consumers:
        self._wait("groups")
        return Consumers(1.0, groups=self.groups_found)

    def close(self) -> None:
        self.asked.append("close")

    def _wait(self, what: str) -> None:
        self.asked.append(what)
        self.answers.wait(30)
        if self.error is not None:
            raise self.error


class JourneyStage(AuditedStage):
    """The screens over the shop's recording, with such a Kafka."""

    def __init__(self, folder: Path, *, with_report: bool = False, tape: Tape | None = None) -> None:
        super().__init__(folder, with_report=with_report, tape=tape)
        self.keyed = KeyedKafka(self.recording)
        self.kafka = self.keyed  # type: ignore[assignment]

    async def journey(self, key: str, table: str = "public.orders") -> RecordedJourney:
        """Open the journey of a key."""
        screen = RecordedJourney(self.app, RowKey(table, ("id",), (key.encode(),)))
        self.app.push_screen(screen)
        await self.settle()
        return screen

    async def until_asked(self) -> None:
        """Wait until the request to Kafka is out and the known part is shown; no answer has arrived."""
        while "of_key" not in self.keyed.asked or "groups" not in self.keyed.asked:
            await self.pilot.pause(0.02)
        await self.app.sample()
        await self.pilot.pause()


async def test_the_journey_begins_at_the_change_that_was_selected(tmp_path: Path) -> None:
    stage = JourneyStage(tmp_path)
    async with stage.run((160, 45)):
        await stage.press("2")
        await stage.seek("#21")
        await stage.press("x")
        assert isinstance(stage.app.screen, RecordedJourney)
        assert stage.screen.selected_change() is not None
        assert stage.screen.selected_change().position == 21  # type: ignore[union-attr]


async def test_the_way_is_drawn_and_kafka_is_asked(tmp_path: Path) -> None:
    stage = JourneyStage(tmp_path)
    stage.keyed.groups_found = (
        GroupEntry("billing", "stable", 1, ("orders",), partitions=(PartitionLag("orders", 0, 900, 900),)),
        GroupEntry("search", "empty", 0, ("orders",), partitions=(PartitionLag("orders", 0, 2, 900),)),
    )
    async with stage.run((160, 45)):
        screen = await stage.journey("9")
        shown = text(stage.app)
        assert "COMMIT" in shown
        assert "recorded" in shown
        assert "+80.0 ms" in shown
        assert "0@14 as of 12:01:00: identical to the sent message" in shown
        assert "newest record" in shown
        assert "this one; 3 records of the key in all of partition 0" in shown
        assert "+7.50 ms" in shown
        assert "87.5 ms in total" in shown
        assert "billing has read it; committed offset 900" in shown
        assert "search has not read it" in shown
        assert "by committed offsets, as of 12:01:00" in shown
        assert "not audited; v runs an audit" in shown
        assert "1 change: 1 update in public.orders; Enter shows them" in shown
        assert len(screen.points()) == 3
        await stage.press("up", "up")
        assert "newest record" in text(stage.app)
        assert "a row; 3 records of the key" in text(stage.app)
        await stage.press("enter")
        assert isinstance(stage.app.screen, TransactionScreen)


async def test_what_kafka_has_otherwise_is_marked(tmp_path: Path) -> None:
    stage = JourneyStage(tmp_path)
    last = [c for c in stage.recording.changes() if c.key == (b"9",)][-1].messages[0]
    place = (last.topic, last.partition or 0, last.offset or 0)
    assert last.value is not None
    there = stage.keyed.records[place]
    stage.keyed.records[place] = there._replace(value=last.value.replace(b"packed", b"PACKED"))
    async with stage.run((160, 45)):
        await stage.journey("9")
        shown = text(stage.app)
        assert "status is not as sent" in shown
        assert any("≠" in line and "PACKED" in line for line in lines(stage.app))
        del stage.keyed.records[place]
        await stage.press("x")
        assert "the log begins after this offset" in text(stage.app), "x queries Kafka again"
        assert "querying Kafka again" in stage.notices


async def test_a_frozen_kafka_keeps_nothing_back(tmp_path: Path) -> None:
    stage = JourneyStage(tmp_path)
    stage.keyed.answers.clear()
    async with stage.run((160, 45)):
        screen = RecordedJourney(stage.app, RowKey("public.orders", ("id",), (b"9",)))
        stage.app.push_screen(screen)
        await stage.until_asked()
        shown = text(stage.app)
        assert "querying Kafka at kafka:9092…" in shown
        assert "+80.0 ms" in shown
        assert "packed" in shown
        stage.keyed.error = ConnectionFailed("can't reach Kafka at kafka:9092", "check that the broker runs")
        stage.keyed.answers.set()
        await stage.settle()
        assert "can't reach Kafka at kafka:9092: check that the broker runs" in text(stage.app)
        stage.keyed.error = None
        await stage.press("x")
        assert "0@14 as of 12:01:00: identical to the sent message" in text(stage.app)
        stage.clock.now += 86_400
        await stage.settle()
        assert "0@14 as of 2026-01-15 12:01:00: identical" in text(stage.app)


async def test_without_kafka_the_rest_is_there(tmp_path: Path) -> None:
    stage = JourneyStage(tmp_path)
    stage.audit.connections = None
    async with stage.run((80, 24)):
        await stage.journey("9")
        assert "the Kafka brokers are unknown" in " ".join(text(stage.app).split())
        assert "packed" in text(stage.app)


async def test_a_change_without_a_message_says_why(tmp_path: Path) -> None:
    stage = JourneyStage(tmp_path)
    async with stage.run((160, 45)):
        await stage.journey("4")
        shown = text(stage.app)
        assert "dropped by --on-error log" in shown
        assert "nothing: the change has no message" in shown
        await stage.press("up")
        assert "identical to the sent message" in text(stage.app)
    stage = JourneyStage(tmp_path / "other")
    async with stage.run((160, 45)):
        await stage.journey("900")
        shown = " ".join(text(stage.app).split())
        assert "no delivery report arrived" in shown
        assert "acknowledged unknown" in shown


async def test_the_last_audit_has_its_tick_and_its_cross(tmp_path: Path) -> None:
    stage = JourneyStage(tmp_path, with_report=True)
    stage.raw["window"]["last_lsn"] = "FF/FFFFFFFF"
    stage.audit.take(json.dumps(stage.raw).encode())
    async with stage.run((250, 70)):
        await stage.press("5", "enter", "x")
        assert isinstance(stage.app.screen, RecordedJourney)
        assert "✗ lost_acked" in text(stage.app)
        await stage.press("down")
        assert "✓ no anomaly found; other findings of this key: 1" in " ".join(text(stage.app).split())


async def test_a_key_without_a_change_says_so(tmp_path: Path) -> None:
    stage = JourneyStage(tmp_path)
    async with stage.run((80, 24)):
        await stage.journey("no such key")
        assert "the recording has no change of this key" in text(stage.app)


async def test_ten_thousand_changes_of_one_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explaining, "KEPT", 2_000)
    tape = Tape()
    for number in range(10_000):
        tape.begin()
        tape.add("update", ORDERS, (b"1", b"state %d" % number, b"1.00"))
        tape.wait(0.01)
    stage = JourneyStage(tmp_path, tape=tape)
    async with stage.run((160, 45)):
        await stage.journey("1")
        shown = text(stage.app)
        assert "10,000 changes · showing the last 2,000" in shown
        assert "state 9999" in shown
        await stage.press("home")
        assert "state 8000" in text(stage.app)
        assert lines(stage.app)[2].count("█") > 50


@pytest.mark.parametrize("size", [(80, 24), (160, 45), (250, 70)])
async def test_snapshot(tmp_path: Path, size: tuple[int, int]) -> None:
    stage = JourneyStage(tmp_path)
    stage.keyed.groups_found = (
        GroupEntry("billing", "stable", 1, ("orders",), partitions=(PartitionLag("orders", 0, 900, 900),)),
        GroupEntry("search", "empty", 0, ("orders",), partitions=(PartitionLag("orders", 0, 2, 900),)),
    )
    async with stage.run(size):
        await stage.journey("9")
        await stage.press("up")
        await compare(stage, f"journey-{size[0]}x{size[1]}")


async def test_a_key_is_sent_again_after_a_dry_run(tmp_path: Path) -> None:
    stage = JourneyStage(tmp_path)
    plan = {"messages": 1, "bytes": 47, "topics": {"orders": {"messages": 1, "bytes": 47, "existed": False}}}
    async with stage.run((160, 45)):
        await stage.journey("9")
        await stage.press("R")
        assert isinstance(stage.app.screen, FormScreen)
        assert "public.orders id=9" in text(stage.app)
        assert "[x] only its newest message" in text(stage.app)
        await stage.press("enter")
        await stage.until_reading()
        where = stage.commands[0][stage.commands[0].index("--where") + 1]
        newest = [change.position for change in stage.recording.changes() if change.key == (b"9",)][-1]
        assert where == f"table = 'public.orders' and key.\"id\" = '9' and position = {newest}"
        assert stage.commands[0][-1] == "--dry-run"
        await stage.end(plan)
        assert isinstance(stage.app.screen, AskScreen)
        assert "would send 1 messages" in text(stage.app)
        await stage.press("y")
        await stage.until_reading()
        assert stage.commands[1][-1] == "--yes"
        assert stage.commands[1][:-1] == stage.commands[0][:-1]
        await stage.end({"sent": 1, "seconds": 1, "topics": {}})
        assert "sent 1 messages" in text(stage.app)


async def test_sending_again_says_what_would_be_overwritten(tmp_path: Path) -> None:
    stage = JourneyStage(tmp_path)
    last = [change for change in stage.recording.changes() if change.key == (b"9",)][-1].messages[0]
    later = StoredRecord(0, 999, 1_768_478_999_000, last.key, b'{"id": "9"}')
    stage.keyed.records["orders", 0, 999] = later
    async with stage.run((160, 45)):
        await stage.journey("9")
        await stage.press("R")
        assert "0@999" in text(stage.app)
        await stage.press("shift+tab", "shift+tab", "space", "tab", "tab", "enter")
        await stage.until_reading()
        assert "position" not in " ".join(stage.commands[0]), "all of its messages"
        await stage.end({}, code=4, said="bwtui: error: no\n")


async def test_what_can_t_be_sent_again_says_why(tmp_path: Path) -> None:
    stage = JourneyStage(tmp_path)
    async with stage.run((120, 40)):
        await stage.press("2", "R")
        assert not isinstance(stage.app.screen, FormScreen), "only in a journey"
        await stage.journey("no such key")
        await stage.press("R")
        assert "No message of this key was sent" in stage.notices


async def test_while_the_recording_is_read_nobody_walks_through_what_is_still_growing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mutated(steps: object) -> None:
        raise RuntimeError("deque mutated during iteration")

    monkeypatch.setattr(journey_screens, "newest_of", mutated)
    stage = JourneyStage(tmp_path)
    async with stage.run((120, 40)):
        screen = await stage.journey("9")
        screen.story.finished = False
        await stage.press("R")
        assert "The recording is still being read" in stage.notices


async def test_after_damage_the_newest_message_is_not_known(tmp_path: Path) -> None:
    stage = JourneyStage(tmp_path)
    async with stage.run((120, 40)):
        stage.recording.damaged_at = 100
        await stage.journey("9")
        await stage.press("R")
        assert not isinstance(stage.app.screen, FormScreen)
        assert "can't be determined: the recording is damaged" in stage.notices
        assert "still being read" not in stage.notices


async def test_a_row_as_of_a_moment_has_its_journey(tmp_path: Path) -> None:
    stage = JourneyStage(tmp_path)
    async with stage.run((120, 36)):
        await stage.press("down", "a")
        await stage.press("down", "x")
        assert isinstance(stage.app.screen, RecordedJourney)
        assert stage.app.screen.key.columns == ("id",)
        assert stage.app.screen.story.count
