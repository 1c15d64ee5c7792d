"""The consumer groups that have read past a record, by their last commits."""

from collections.abc import Sequence
from dataclasses import dataclass

from bwtui.model.service_views import GroupEntry
from bwtui.tui.assessment import Tone


@dataclass(frozen=True, slots=True)
class GroupPosition:
    """The position of a group relative to a record."""

    group: str
    tone: Tone
    words: str


def readers_of(groups: Sequence[GroupEntry], topic: str, partition: int, offset: int) -> list[GroupPosition]:
    """Return the groups that read the topic; those that have not read the record come first."""
    places = [_place(group, topic, partition, offset) for group in groups if topic in group.topics]
    return sorted(places, key=lambda place: (place.tone == "good", place.group))


def _place(group: GroupEntry, topic: str, partition: int, offset: int) -> GroupPosition:
    lag = next((one for one in group.partitions if (one.topic, one.partition) == (topic, partition)), None)
    if lag is None:
        return GroupPosition(group.name, "muted", "where it is in this partition is not known")
    if lag.committed is None:
        return GroupPosition(group.name, "muted", "has never committed in this partition")
    if lag.committed > offset:
        return GroupPosition(group.name, "good", f"has read past it, up to {lag.committed:,}")
    before = offset - lag.committed + 1
    alone = ", and is not running" if group.members == 0 else ""
    return GroupPosition(
        group.name, "warn", f"has not read it: {before:,} to go from {lag.committed:,}{alone}"
    )
