"""Send the messages of a replay: tasks that report to a coordinator, and their progress, which is saved."""

import contextlib
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from bwtui.errors import BwtuiError, Interrupted
from bwtui.kafka.offsets import pin
from bwtui.replay.coordinator import Coordinator, LaneDone
from bwtui.replay.job import ReplayJob, ReplayObserver, ReplayOutcome, ReplayPlan
from bwtui.replay.lane import LaneResult
from bwtui.replay.outage import KafkaOutage
from bwtui.replay.placement import PartitionSurvey, RowPlacement, share_out
from bwtui.replay.progress import LaneProgress, ProgressFile, ReplayProgress, RouteProgress
from bwtui.replay.resume_checks import refuse_cut
from bwtui.replay.rows import ReplayRoute
from bwtui.replay.send import TaskSettings
from bwtui.replay.target import fitting, topic_ids
from bwtui.replay.unconfirmed_tail import LaneCutoff, count_duplicates

_SAVE_SECONDS = 0.5
_LOOK_SECONDS = 0.1
#: Timeout for the tasks of a cancelled replay to stop cleanly.
_END_SECONDS = 30.0
#: The reported rate is an average over this time.
_RATE_SECONDS = 5.0


class RowSource(Protocol):
    """The rows of a replay, from files or from Spark."""

    def received_at(self, position: int) -> int | None:
        """Return when a message at a position was received, in Unix microseconds."""


class ReplayEngine(Protocol):
    """Runs the tasks of `bwtui.replay.send`."""

    @property
    def host(self) -> str:
        """Address on which the tasks' coordinator listens."""

    @property
    def tasks(self) -> int:
        """Maximum number of tasks."""

    def send(self, placing: RowPlacement, work: TaskSettings) -> list[LaneResult]:
        """Send the messages, and return the result of each lane. Raises what a task raises."""

    def cancel(self) -> None:
        """Stop the tasks without waiting for Kafka."""

    def abandon(self, ended: threading.Event) -> None:
        """Stop the tasks without waiting, except for ``ended``. May raise KeyboardInterrupt."""


class ReplayDelivery:
    """Sends the messages of a plan."""

    def __init__(
        self,
        job: ReplayJob,
        watch: ReplayObserver,
        engine: ReplayEngine,
        file: ProgressFile,
        progress: ReplayProgress,
    ) -> None:
        self._job = job
        self._watch = watch
        self._engine = engine
        self._file = file
        self._progress = progress
        self._places: list[tuple[str, int]] = []
        self._cuts: dict[tuple[str, int], LaneCutoff] = {}
        #: Number of messages sent to each lane before this attempt.
        self._before: dict[int, int] = {}
        self._saved = 0.0
        self._failed: BwtuiError | None = None
        self._rates: deque[tuple[float, int]] = deque()

    def run(
        self,
        plan: ReplayPlan,
        rows: RowSource,
        routes: list[ReplayRoute],
        surveys: list[PartitionSurvey],
        raw: bool,
    ) -> ReplayOutcome:
        """Send the messages that no earlier run has sent. Raises Interrupted, or what a task raised."""
        is_resumed = self._progress.runs > 0
        self._begin(plan, routes)
        before, began = self._progress.sent, time.monotonic()
        outage = KafkaOutage(self._job.target.client, [route.topic for route in routes], self._is_stopped)
        results = self._send(plan, rows, self._placing(plan, routes, surveys, raw), is_resumed)
        already_there = sum(lane.found for lane in results)
        doubled = sum(lane.doubled for lane in results)
        while any(lane.unknown for lane in results):
            self._note_cuts(results)
            # As after a killed run, the topics show which of these messages were written.
            self._wait_for_kafka(outage)
            results = self._send(plan, rows, self._placing(plan, routes, surveys, raw), has_tails=True)
        self._finish(results)
        doubled += self._look_for_late()
        sent, seconds = self._progress.sent - before - already_there, time.monotonic() - began
        return ReplayOutcome(plan, "done", sent, already_there, doubled, self._progress.sent, seconds)

    def _note_cuts(self, results: list[LaneResult]) -> None:
        for row in results:
            if row.unknown:
                lane = self._lane(row.lane)
                cut = self._cuts.setdefault(self._places[row.lane], LaneCutoff(lane.tail, lane.messages))
                cut.unknown += row.unknown

    def _look_for_late(self) -> int:
        """Return the maximum number of messages doubled by requests that arrived after the search."""
        if not self._cuts:
            return 0
        self._watch.phase("checking for late duplicates")
        lanes = self._progress.lanes
        return count_duplicates(
            self._job.target.client, self._cuts, lambda place: lanes[f"{place[0]}/{place[1]}"].messages
        )

    def _send(
        self, plan: ReplayPlan, rows: RowSource, placing: RowPlacement, has_tails: bool
    ) -> list[LaneResult]:
        """Send the rest; with ``has_tails`` the topics may have messages that the progress lacks."""
        self._before = {lane: self._lane(lane).messages for lane in range(len(self._places))}
        options, target = self._job.options, self._job.target
        token = secrets.token_hex(16)
        with Coordinator(
            self._engine.host, token, options.rate, self._take_report, self._is_stopped
        ) as coordinator:
            tails = {lane: self._lane(lane).tail for lane in self._before} if has_tails else {}
            work = TaskSettings(
                fitting(target.client, target.producer, [route.topic for route in placing.routes]),
                dict(target.client),
                self._places,
                coordinator.address,
                options.pace,
                self._pace_from(plan, rows),
                tails,
            )
            return self._collect(lambda: self._engine.send(placing, work))

    def _wait_for_kafka(self, outage: KafkaOutage) -> None:
        self._watch.phase("waiting for Kafka")
        try:
            outage.wait(self._progress.sent)
        except BwtuiError:
            self._file.save(self._progress)
            raise
        if self._is_stopped():
            self._file.save(self._progress)
            raise self._interrupted(self._failed)
        self._watch.phase("sending")

    def _pace_from(self, plan: ReplayPlan, rows: RowSource) -> int:
        """Return the recorded time at which pacing starts: an earlier run has waited for what is before."""
        reached = max((lane.position for lane in self._progress.lanes.values()), default=-1)
        is_paced = self._job.options.pace is not None and reached >= 0
        return (rows.received_at(reached) if is_paced else None) or plan.count.first_received

    def _begin(self, plan: ReplayPlan, routes: list[ReplayRoute]) -> None:
        """Save the plan in the progress before anything is written."""
        progress = self._progress
        progress.runs += 1
        progress.total = plan.messages
        progress.is_finished = False
        pinned = pin(self._job.target.client, [route.topic for route in routes])
        refuse_cut(progress, pinned)
        ids = topic_ids(self._job.target.client, [route.topic for route in routes])
        for route in routes:
            progress.routes[route.recorded] = RouteProgress(
                route.topic,
                ids[route.topic],
                route.partitions,
                route.keeps_partitions,
                route.hash,
                {**route.keys},
                {**route.values},
            )
            for partition in range(route.partitions):
                self._places.append((route.topic, partition))
                end = pinned.offsets[route.topic, partition][1]
                progress.lanes.setdefault(f"{route.topic}/{partition}", LaneProgress(end))
        self._file.save(progress)

    def _placing(
        self, plan: ReplayPlan, routes: list[ReplayRoute], surveys: list[PartitionSurvey], raw: bool
    ) -> RowPlacement:
        counts = {
            route.first_lane + partition: messages
            for route, survey in zip(routes, surveys, strict=True)
            for partition, messages in survey.messages.items()
        }
        done = {
            lane: (one.position, one.part)
            for lane in range(len(self._places))
            for one in [self._lane(lane)]
            if one.position >= 0
        }
        tasks = share_out(counts, len(self._places), self._engine.tasks)
        return RowPlacement(routes, tasks, done, plan.count.with_headers, raw)

    def _lane(self, lane: int) -> LaneProgress:
        topic, partition = self._places[lane]
        return self._progress.lanes[f"{topic}/{partition}"]

    # -- the job -------------------------------------------------------------------------------------------

    def _collect(self, send: Callable[[], list[LaneResult]]) -> list[LaneResult]:
        """Run the job in a thread, so that it can stop cleanly when it is cancelled."""
        sent: list[LaneResult] = []
        failed: list[BaseException] = []
        # An event, because a thread whose join was interrupted counts as ended in Python 3.11 and 3.12.
        ended = threading.Event()

        def run() -> None:
            try:
                sent.extend(send())
            except BaseException as error:
                failed.append(error)
            finally:
                ended.set()

        thread = threading.Thread(target=run, name="replay", daemon=True)
        thread.start()
        try:
            self._wait(ended)
        except KeyboardInterrupt:
            # First let messages in flight become durable, and save that.
            self._failed = Interrupted()
            try:
                self._end(ended)
            except KeyboardInterrupt:
                self._engine.abandon(ended)
        if ended.is_set():
            # If the process ends while the thread is about to, the objects it refers to are never released.
            thread.join()
        if self._is_stopped():
            with contextlib.suppress(BwtuiError):
                self._file.save(self._progress)
            raise self._interrupted(self._failed)
        if failed:
            self._file.save(self._progress)
            raise failed[0]
        return sent

    def _wait(self, ended: threading.Event) -> None:
        while not ended.wait(_LOOK_SECONDS):
            if self._is_stopped():
                self._end(ended)
                return

    def _end(self, ended: threading.Event) -> None:
        deadline = time.monotonic() + _END_SECONDS
        while not ended.wait(_LOOK_SECONDS) and time.monotonic() < deadline:
            if not self._rates:
                # Nothing was sent yet: the tasks are still searching for their rows.
                self._engine.cancel()
        if not ended.is_set():
            self._engine.cancel()
            ended.wait(_END_SECONDS)

    def _is_stopped(self) -> bool:
        return self._failed is not None or self._watch.is_cancelled()

    def _interrupted(self, error: BwtuiError | None) -> BwtuiError:
        if error is not None and not isinstance(error, Interrupted):
            return error
        done, total = self._progress.sent, self._progress.total
        return Interrupted(
            f"interrupted after {done:,} of {total:,} messages", "run the same command again to resume"
        )

    # -- progress ------------------------------------------------------------------------------------------

    def _take_report(self, lanes: dict[int, LaneDone]) -> None:
        """Apply a task's report; reports arrive one at a time."""
        for lane, (messages, position, part, offset) in lanes.items():
            lane_progress = self._lane(lane)
            lane_progress.messages = self._before[lane] + messages
            if position >= 0:
                lane_progress.position, lane_progress.part, lane_progress.last_offset = position, part, offset
        now = time.monotonic()
        if now - self._saved >= _SAVE_SECONDS:
            self._saved = now
            try:
                self._file.save(self._progress)
            except BwtuiError as error:
                self._failed = error
        done = self._progress.sent
        self._rates.append((now, done))
        while len(self._rates) > 2 and now - self._rates[0][0] > _RATE_SECONDS:
            self._rates.popleft()
        since, before = self._rates[0]
        rate = (done - before) / (now - since) if now > since else 0.0
        seconds_left = (self._progress.total - done) / rate if rate else None
        self._watch.progress(done, self._progress.total, rate, seconds_left)

    def _finish(self, results: list[LaneResult]) -> None:
        for row in results:
            lane = self._lane(row.lane)
            lane.messages = self._before[row.lane] + row.sent + row.found
            if row.position >= 0:
                lane.position, lane.part, lane.last_offset = row.position, row.part, row.offset
        self._progress.is_finished = True
        self._file.save(self._progress)
        self._watch.progress(self._progress.sent, self._progress.total, 0.0, 0.0)
