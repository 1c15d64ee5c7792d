"""The path of a change from its COMMIT to the sink's acknowledgement, as far as it was measured."""

from collections.abc import Mapping
from dataclasses import dataclass

from bwtui.model.latency import LATENCY_STAGES, Percentiles
from bwtui.model.status import ChangeSample
from bwtui.recording.change import Change, SentMessage
from bwtui.recording.reading.seek_target import MICROS
from bwtui.tui import figures

_STAGES = LATENCY_STAGES[:-1]


@dataclass(frozen=True, slots=True)
class PathSegment:
    """A stretch of the path, named after its end; ``seconds`` is None if unknown."""

    name: str
    seconds: float | None


@dataclass(frozen=True, slots=True)
class ChangePath:
    """The beginning of a change's path, the duration of each stretch, and remarks on these figures."""

    #: "COMMIT", or the operation of a row that was read from its table.
    begin: str
    #: Unix seconds, by PostgreSQL's clock.
    time: float
    legs: tuple[PathSegment, ...]
    #: Remarks on what the figures cover, and on which are unknown and why.
    remarks: tuple[str, ...] = ()

    @property
    def total(self) -> float | None:
        """Seconds from beginning to end, or None if any stretch is unknown."""
        seconds = [leg.seconds for leg in self.legs]
        return None if not seconds or None in seconds else sum(filter(None, seconds))


def recorded_way(change: Change, message: SentMessage | None, said: str = "") -> ChangePath:
    """Return the path of a recorded change and its shown ``message``, by the times of its blocks.

    ``said`` is a remark on the latency of the messages around it.
    """
    begin = "COMMIT" if change.in_transaction else change.operation
    legs = [PathSegment("recorded", (change.received - change.commit_time) / MICROS)]
    remarks: tuple[str, ...] = ()
    if message is not None and message.noted is not None:
        legs.append(PathSegment("acknowledged", (message.noted - change.received) / MICROS))
        remarks = (
            "recorded: its batch was read, encoded and written down, and then handed to Kafka; "
            "acknowledged: all of its batch was",
        )
    elif message is not None and message.state != "unsent":
        legs.append(PathSegment("acknowledged", None))
    told = (*remarks, *_ahead(legs), *filter(None, (said,)))
    return ChangePath(begin, change.commit_time / MICROS, tuple(legs), told)


def sampled_way(sample: ChangeSample) -> ChangePath:
    """Return the path of a sampled change, by the times of its batch."""
    if sample.operation in ("snapshot", "backfill"):
        told = ("rows that are read from their table are not timed one by one",)
        return ChangePath(sample.operation, sample.commit_time, (), told)
    times = (sample.commit_time, *sample.passed) if sample.passed else ()
    legs = []
    for place, name in enumerate(_STAGES, 1):
        known = len(times) > place and times[place] and times[place - 1]
        legs.append(PathSegment(name, times[place] - times[place - 1] if known else None))
    return ChangePath("COMMIT", sample.commit_time, tuple(legs), (*_of_sample(sample), *_ahead(legs)))


def _of_sample(sample: ChangeSample) -> list[str]:
    if not sample.passed:
        return ["its stages are not known: the relay is of an older version, or does not measure here"]
    if sample.is_given_up:
        return ["its session ended before Kafka had acknowledged it: it is read and sent again"]
    batch = "1 message" if sample.batch == 1 else f"{sample.batch:,} messages"
    if not sample.passed[-1]:
        return [
            "it is under way" + (f": its batch of {batch} was not acknowledged yet" if sample.batch else "")
        ]
    return [f"of its batch, of {batch}: from its first row received to its last message acknowledged"]


def _ahead(legs: list[PathSegment]) -> list[str]:
    is_ahead = bool(legs) and legs[0].seconds is not None and legs[0].seconds < 0
    return ["PostgreSQL's clock is ahead of the relay's"] if is_ahead else []


def usual(latency: Mapping[str, Percentiles], until: float) -> str:
    """Return the latencies of all messages in the ten seconds before a moment, or an empty string."""
    told = [
        f"{stage} {figures.milliseconds(latency[stage].p50)} (p99 {figures.milliseconds(latency[stage].p99)})"
        for stage in _STAGES
        if stage in latency
    ]
    if not told:
        return ""
    return f"all messages of the ten seconds up to {figures.clock(until)}, median in ms: " + ", ".join(told)
