"""Replay: write the messages of a recording into topics again, byte for byte, in the order of each key.

::

    job = Job(Path("recordings/shop"), target, Selection(), Options(prefix="again"))
    outcome = Replay(job, watch).run(lambda: spark_session(config=WRITE_ONCE))

A small replay runs without Spark, unless the caller requests it (``is_wanted``).

A `ReplayObserver` observes phases and progress, must confirm before anything is written, and may cancel;
screens pass their own. Progress is saved, so the next run resumes one that was cancelled or killed
(docs/replay.md, docs/adr/0023-seal-replay-and-audit-outside-the-jvm.md).
"""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from bwtui.errors import UsageError
from bwtui.kafka.scan import partitions
from bwtui.recording.folder import SegmentPath, existing_segments, segments
from bwtui.recording.sealed import SealedRecording, check_all, open_sealed, unsealed_bytes
from bwtui.recording.segment_reader import SegmentReader
from bwtui.replay.delivery import (
    ReplayControl,
    ReplayJob,
    ReplayObserver,
    ReplayOptions,
    ReplayOutcome,
    ReplayPlan,
    ReplayTarget,
    TopicPlan,
)
from bwtui.replay.steps import ReplaySteps, progress_file
from bwtui.seal.sealing import seal
from bwtui.spark.lazy_session import LazySparkSession, OpenSession
from bwtui.spark.scratch import scratch

if TYPE_CHECKING:
    from bwtui.replay.missing_messages import MissingMessages

__all__ = [
    "Replay",
    "ReplayJob",
    "ReplayObserver",
    "ReplayOptions",
    "ReplayOutcome",
    "ReplayPlan",
    "ReplayTarget",
    "TopicPlan",
]


class Replay:
    """One run of a replay."""

    def __init__(self, job: ReplayJob, watch: ReplayObserver | None = None) -> None:
        self._job = job
        self._watch = watch or ReplayObserver()
        self._control = ReplayControl(self._watch)

    def run(self, open_session: OpenSession, *, with_spark: bool = False) -> ReplayOutcome:
        """Run the replay. The session must have the configuration `bwtui.spark.session.WRITE_ONCE`.

        It is opened if the replay is large or ``with_spark`` is set.

        Raises UsageError, RefusedError, ConnectionFailed, DamagedRecording, StateFailed, SchemaRefused, or
        Interrupted if it was cancelled.
        """
        job = self._job
        first, *_ = existing_segments(job.recording)
        _ = job.target.hash
        if job.options.only_missing is not None and job.options.prefix is not None:
            raise UsageError(
                "--only-missing writes to the recording's own topics, so it can't be combined "
                "with --topic-prefix",
                "leave out --topic-prefix",
            )
        missing = self._missing()
        cluster, topics = partitions(job.target.client)
        if missing is not None:
            self._foresee(missing, first, cluster)
        spark = LazySparkSession(open_session, self._control.phase, is_required=with_spark)
        with spark.closing(), self._sealed(spark) as sealed:
            return ReplaySteps(job, self._control, spark, sealed, cluster, topics, missing).run()

    def _missing(self) -> "MissingMessages | None":
        if self._job.options.only_missing is None:
            return None
        from bwtui.replay.missing_messages import MissingMessages

        return MissingMessages(self._job.options.only_missing)

    def _foresee(self, missing: "MissingMessages", first: SegmentPath, cluster: str) -> None:
        """Check, before Spark starts, for reasons that would end the replay later."""
        job = self._job
        with contextlib.closing(SegmentReader(first)) as segment:
            recording = str(segment.head.get("recording", ""))
        if recording:
            missing.refuse_different(recording, cluster)
        # An interrupted run was confirmed when it began, so it resumes without another question.
        is_begun = not job.options.restart and progress_file(job, recording, cluster, missing).load()
        if not is_begun and not job.options.dry_run:
            self._watch.will_ask(missing.reported)

    @contextlib.contextmanager
    def _sealed(self, spark: LazySparkSession) -> Iterator[SealedRecording]:
        """Open the sealed recording, after sealing what is not sealed yet."""
        folder = self._job.recording
        sealed: SealedRecording | None = None
        with contextlib.suppress(UsageError):
            sealed = open_sealed(folder, check_files=False)
        if sealed is not None and not sealed.behind:
            self._check(sealed)
            yield sealed
            return
        with _sealable(folder) as place:
            # In a read-only folder nothing sealed can be extended: everything is sealed again elsewhere.
            session = spark.for_sealing(unsealed_bytes(place, sealed if place == folder else None))
            self._control.phase("sealing the recording")
            seal(place, lambda: session, self._watch.count)
            yield open_sealed(place, check_files=False)

    def _check(self, sealed: SealedRecording) -> None:
        self._control.phase("checking the recording")
        rows = sealed.manifest.rows
        # The check counts bytes, but progress is shown in rows everywhere.
        check_all(
            sealed.root,
            sealed.manifest.files,
            lambda done, all_: self._control.count(rows * done // all_, rows),
        )


@contextlib.contextmanager
def _sealable(folder: Path) -> Iterator[Path]:
    """Yield a folder to seal in: the recording's own, or one with links if that is read-only."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError:
        with scratch("bwtui-sealed-") as place:
            for segment in segments(folder):
                (place / segment.path.name).symlink_to(segment.path.resolve())
            yield place
        return
    yield folder
