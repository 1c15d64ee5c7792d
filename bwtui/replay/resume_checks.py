"""Refuse to resume an interrupted replay if anything that it depends on has changed.

The progress is kept by partition and position. With different key bytes, a different partitioner or a
recreated topic, the same progress would skip messages that were never sent, and send others twice.
"""

from collections.abc import Mapping

from bwtui.errors import RefusedError
from bwtui.kafka.offsets import PinnedTopics
from bwtui.replay.job import ReplayPlan
from bwtui.replay.progress import ReplayProgress, RouteProgress
from bwtui.replay.rows import Hash
from bwtui.replay.schemas import SchemaUse

_RESTART = "use --restart to replay from the beginning"


def refuse_changed(
    earlier: ReplayProgress,
    plan: ReplayPlan,
    topics: Mapping[str, int],
    ids: Mapping[str, str],
    placed_by: Hash,
) -> None:
    """Raise RefusedError if the progress in ``earlier`` is no longer valid.

    ``topics`` has the number of partitions of each topic of the cluster, ``ids`` the ids of the target
    topics.
    """
    for topic in plan.topics:
        saved = earlier.routes.get(topic.recorded)
        if saved is None:
            continue
        if not topic.exists:
            raise RefusedError(
                f"topic {topic.topic} was deleted, with the messages that this replay had sent to it",
                _RESTART,
            )
        # A broker without topic ids reports none.
        if saved.topic_id != ids.get(topic.topic, saved.topic_id):
            raise RefusedError(
                f"topic {topic.topic} was recreated since this replay began: the messages sent to "
                "it are lost",
                _RESTART,
            )
        if saved.partitions != topics[topic.topic]:
            raise RefusedError(
                f"topic {topic.topic} has {topics[topic.topic]} partitions, but had "
                f"{saved.partitions} when this "
                "replay began: keys would move to different partitions",
                _RESTART,
            )
        if saved.hash != placed_by:
            raise RefusedError(
                f"this replay began with the partitioner hash {saved.hash}, not {placed_by}: keys "
                "would move to "
                "different partitions",
                f"give the same partitioner with -C as before, or {_RESTART}",
            )
        for use in plan.schemas.uses:
            if use.recorded_topic == topic.recorded:
                _refuse_other_id(use, saved)


def refuse_cut(progress: ReplayProgress, pinned: PinnedTopics) -> None:
    """Raise RefusedError if a topic ends before the messages that were sent to it."""
    for (topic, partition), (_, high) in pinned.offsets.items():
        lane = progress.lanes.get(f"{topic}/{partition}")
        if lane is not None and high <= lane.last_offset:
            raise RefusedError(
                f"topic {topic}, partition {partition}, ends at offset {high}, but the broker had "
                "acknowledged "
                f"messages of this replay up to offset {lane.last_offset}: it has lost the end of the log",
                _RESTART,
            )


def _refuse_other_id(use: SchemaUse, saved: RouteProgress) -> None:
    before = (saved.keys if use.part == "key" else saved.values).get(use.recorded_id)
    if before in (None, use.id):
        return
    now = "is not registered there" if use.id is None else f"would be under {use.id}"
    raise RefusedError(
        f"earlier messages refer to the schema of {use.subject} by id {before}, but it {now}",
        f"give the same registry with -r as before, or {_RESTART}",
    )
