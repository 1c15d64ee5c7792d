"""A replay's job and options, its plan, its outcome, and the watch that observes it."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict

from bwtui.errors import Interrupted
from bwtui.recording.selection import ChangeSelection
from bwtui.replay.message_counts import MessageCount
from bwtui.replay.schemas import SchemaMap
from bwtui.replay.target import ReplayTarget


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """The options of a replay."""

    #: Replaces the recorded topic prefix; None keeps the recorded topics.
    prefix: str | None = None
    keep_ids: bool = False
    rate: float | None = None
    pace: float | None = None
    dry_run: bool = False
    #: Start from scratch, ignoring the progress of an earlier run.
    restart: bool = False
    #: A report of `bwtui verify`: send only the messages that it reports as missing.
    only_missing: Path | None = None


@dataclass(frozen=True, slots=True)
class ReplayJob:
    """A recording, a selection, and a target."""

    recording: Path
    target: ReplayTarget
    selection: ChangeSelection
    #: Folder in which progress is saved.
    state: Path
    options: ReplayOptions = field(default_factory=ReplayOptions)


@dataclass(slots=True)
class TopicPlan:
    """The messages for one topic."""

    recorded: str
    topic: str
    messages: int
    bytes: int
    exists: bool
    #: True if every message has a key, so that the topic may be compacted.
    has_keys: bool
    #: Messages by partition; empty while unknown.
    partitions: dict[int, int] = field(default_factory=dict)
    #: Number of messages by partition that the topic may already have within the time window.
    held: dict[int, int] = field(default_factory=dict)
    placement: str = "key"


class MissingCounts(TypedDict):
    """Number of messages that a report lists as missing, and how they are handled."""

    reported: int
    #: Number of these that are sent.
    messages: int
    #: Number sent after newer messages of their keys, and number of keys whose newest message is sent again.
    late: int
    sent_again: int
    #: Number that are in the topics again, and number for which the recording has no message.
    there: int
    without_message: int


@dataclass(slots=True)
class ReplayPlan:
    """The plan of a replay."""

    count: MessageCount
    topics: list[TopicPlan] = field(default_factory=list)
    schemas: SchemaMap = field(default_factory=SchemaMap)
    #: Number of messages that an earlier run has sent.
    resumed: int = 0
    is_resumed: bool = False
    #: Only with ``--only-missing``.
    missing: MissingCounts | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def messages(self) -> int:
        """Number of messages, sent or not."""
        return sum(topic.messages for topic in self.topics)

    @property
    def held(self) -> int:
        """Number of messages that the topics may already have within the time window."""
        return sum(sum(topic.held.values()) for topic in self.topics)


@dataclass(slots=True)
class ReplayOutcome:
    """The result of a replay."""

    plan: ReplayPlan
    state: str
    #: Number of messages sent by this run.
    sent: int = 0
    #: Number of messages that a killed run had written but not saved in its progress; not sent again.
    found: int = 0
    #: Maximum number of messages that are in a topic twice.
    doubled: int = 0
    done: int = 0
    seconds: float = 0.0


class ReplayObserver:
    """Observes a replay; its methods may be called from other threads."""

    def phase(self, name: str) -> None:
        """Report that a new phase begins."""

    def count(self, done: int, total: int) -> None:
        """Report the progress of a phase before sending."""

    def progress(self, done: int, total: int, rate: float, left: float | None) -> None:
        """Report the number of durable messages, the total, messages per second, and seconds left."""

    def will_ask(self, missing: int) -> None:
        """Raise if the user can't be asked to confirm this number of missing messages.

        This is called before any work begins, since ``--only-missing`` always needs a confirmation.
        """

    def confirm(self, plan: ReplayPlan) -> None:
        """Raise to prevent that anything is written."""

    def is_cancelled(self) -> bool:
        """Return True to stop; messages in flight become durable, and the next run resumes there."""
        return False


class ReplayControl:
    """Reports a run's progress to a watch, and ends the run between two steps if the watch cancels it."""

    def __init__(self, watch: ReplayObserver) -> None:
        self.watch = watch

    def phase(self, name: str) -> None:
        """Report a new phase. Raises Interrupted if the run was cancelled."""
        if self.watch.is_cancelled():
            raise Interrupted()
        self.watch.phase(name)

    def count(self, done: int, total: int) -> None:
        """Report the progress of a phase. Raises Interrupted if the run was cancelled."""
        if self.watch.is_cancelled():
            raise Interrupted()
        self.watch.count(done, total)
