"""A replay's job and options, its plan, its outcome, and the watch that follows it."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict

from bwtui.errors import Interrupted
from bwtui.recording.selection import Selection
from bwtui.replay.plan import Count
from bwtui.replay.schemas import SchemaMap
from bwtui.replay.target import Target


@dataclass(frozen=True, slots=True)
class Options:
    """How to replay."""

    #: In place of the recorded prefix of topics; None: the topics of the recording.
    prefix: str | None = None
    keep_ids: bool = False
    rate: float | None = None
    pace: float | None = None
    dry_run: bool = False
    #: Begin anew, whatever an earlier run has done.
    restart: bool = False
    #: A report of `bwtui verify`: only what it found missing.
    only_missing: Path | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """What is replayed into what."""

    recording: Path
    target: Target
    selection: Selection
    #: Where progress is kept.
    state: Path
    options: Options = field(default_factory=Options)


@dataclass(slots=True)
class TopicPlan:
    """What goes into one topic."""

    recorded: str
    topic: str
    messages: int
    bytes: int
    exists: bool
    #: Every message has one, so that the topic may be compacted.
    has_keys: bool
    #: By partition; empty while that is not known.
    partitions: dict[int, int] = field(default_factory=dict)
    #: By partition, what may be there of the window already.
    held: dict[int, int] = field(default_factory=dict)
    placement: str = "key"


class MissingCounts(TypedDict):
    """How many messages a report has as missing, and what becomes of them."""

    reported: int
    #: Of these, how many are sent.
    messages: int
    #: How many will stand after newer ones of their keys, and how many keys' newest message is sent again.
    late: int
    sent_again: int
    #: How many are in the topics by now, and of how many the recording has no message.
    there: int
    without_message: int


@dataclass(slots=True)
class Plan:
    """What a replay is about to do."""

    count: Count
    topics: list[TopicPlan] = field(default_factory=list)
    schemas: SchemaMap = field(default_factory=SchemaMap)
    #: What an earlier run has done: messages.
    resumed: int = 0
    is_resumed: bool = False
    #: Of ``--only-missing``.
    missing: MissingCounts | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def messages(self) -> int:
        """How many messages there are, sent or not."""
        return sum(topic.messages for topic in self.topics)

    @property
    def held(self) -> int:
        """How many messages of the window the topics may hold already."""
        return sum(sum(topic.held.values()) for topic in self.topics)


@dataclass(slots=True)
class Outcome:
    """What a replay did."""

    plan: Plan
    state: str
    #: By this run.
    sent: int = 0
    #: Written, but not noted, by an earlier run that was killed; not sent again.
    found: int = 0
    #: At most so many are in a topic twice.
    doubled: int = 0
    done: int = 0
    seconds: float = 0.0


class Watch:
    """Follows a replay; its methods may be called from other threads."""

    def phase(self, name: str) -> None:
        """Something else is being done now."""

    def count(self, done: int, total: int) -> None:
        """So much of what is being done before anything is sent is done."""

    def progress(self, done: int, total: int, rate: float, left: float | None) -> None:
        """So many messages of all are durable, at so many a second, with so many seconds left."""

    def will_ask(self, missing: int) -> None:
        """Raise, before any work is done, if nobody can be asked whether to send so many missing messages.

        ``--only-missing`` is never begun without asking.
        """

    def confirm(self, plan: Plan) -> None:
        """Raise to keep anything from being written."""

    def is_cancelled(self) -> bool:
        """Whether to stop: what is on its way becomes durable, and the next run goes on from there."""
        return False


class Control:
    """Tells a watch how a run goes, and ends the run between two steps when the watch says so."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch

    def phase(self, name: str) -> None:
        """Tell what is being done now. Raises Interrupted when it was cancelled."""
        if self.watch.is_cancelled():
            raise Interrupted()
        self.watch.phase(name)

    def count(self, done: int, total: int) -> None:
        """Tell how many messages or rows of it are done. Raises Interrupted when it was cancelled."""
        if self.watch.is_cancelled():
            raise Interrupted()
        self.watch.count(done, total)
