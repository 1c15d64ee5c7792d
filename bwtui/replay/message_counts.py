"""Count the messages of a replay: which are selected, how many there are and how large they are."""

from dataclasses import dataclass, field
from typing import Any

from bwtui.errors import UsageError
from bwtui.recording.manifest import SealedFile
from bwtui.recording.query.language import to_sql
from bwtui.recording.sealed import SealedRecording
from bwtui.recording.selection import ChangeSelection

NOT_REFUSED = "state <> 'refused'"


@dataclass(slots=True)
class TopicMessageCount:
    """The selected messages of one recorded topic."""

    messages: int = 0
    bytes: int = 0
    largest: int = 0
    without_key: int = 0
    unplaced: int = 0
    #: Timestamps of the first and the last message in milliseconds.
    first_stamp: int = 0
    last_stamp: int = 0
    #: Messages by recorded partition.
    partitions: dict[int, int] = field(default_factory=dict)
    key_ids: dict[int, int] = field(default_factory=dict)
    value_ids: dict[int, int] = field(default_factory=dict)

    def add(self, row: Any) -> None:
        """Add a group of messages."""
        self.messages += row.messages
        self.bytes += row.bytes
        self.largest = max(self.largest, row.largest)
        self.without_key += row.without_key
        self.first_stamp = min(self.first_stamp, row.first)
        self.last_stamp = max(self.last_stamp, row.last)
        if row.recorded is None:
            self.unplaced += row.messages
        else:
            self.partitions[row.recorded] = self.partitions.get(row.recorded, 0) + row.messages
        for ids, number in ((self.key_ids, row.kid), (self.value_ids, row.vid)):
            if number is not None:
                ids[number] = ids.get(number, 0) + row.messages


@dataclass(slots=True)
class MessageCount:
    """The selected messages of all topics."""

    topics: dict[str, TopicMessageCount] = field(default_factory=dict)
    repeats: int = 0
    refused: int = 0
    with_headers: bool = False
    first_received: int = 0

    @property
    def messages(self) -> int:
        """Number of messages to send."""
        return sum(topic.messages for topic in self.topics.values())

    @property
    def bytes(self) -> int:
        """Total size of their keys and values in bytes."""
        return sum(topic.bytes for topic in self.topics.values())

    def add(self, row: Any) -> None:
        """Add a group of messages."""
        if row.refused or row.left_out:
            self.refused += row.messages if row.refused else 0
            self.repeats += 0 if row.refused else row.messages
            return
        topic = self.topics.setdefault(row.topic, TopicMessageCount(first_stamp=row.first))
        topic.add(row)
        self.with_headers |= bool(row.headers)
        self.first_received = min(self.first_received or row.first_received, row.first_received)


def files_of(sealed: SealedRecording, selection: ChangeSelection) -> list[SealedFile]:
    """Return the files that may have selected messages. Raises UsageError when there is none."""
    files = [
        file
        for file in sealed.manifest.files
        if file.kind == "changes"
        and selection.takes_table(file.table)
        and (selection.from_lsn is None or file.last_lsn >= selection.from_lsn)
        and (selection.to_lsn is None or file.first_lsn <= selection.to_lsn)
    ]
    if not files:
        raise UsageError("the recording has no matching message", "check --table and the range")
    return files


def conditions(selection: ChangeSelection) -> str:
    """Return a selection's SQL condition, without those on repeats and refused messages."""
    terms = ["topic is not null"]
    for column, sign, lsn in (("lsn", ">=", selection.from_lsn), ("lsn", "<=", selection.to_lsn)):
        terms += [] if lsn is None else [f"{column} {sign} {lsn}"]
    for sign, time in ((">=", selection.from_time), ("<=", selection.to_time)):
        terms += [] if time is None else [f"commit_time {sign} make_timestamp({time})"]
    terms += [] if selection.query is None else [f"({to_sql(selection.query)})"]
    return " and ".join(terms)


def sendable(selection: ChangeSelection) -> str:
    """Return the SQL condition that excludes refused messages and, by default, repeats."""
    return NOT_REFUSED + ("" if selection.with_repeats else " and not is_repeat")
