"""Whatever is requested and done, a restart at any moment loses nothing and continues with the same task."""

import contextlib
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from bwtui.errors import RefusedError
from bwtui.model.backfill import BackfillCommand, BackfillRequest, BackfillState
from bwtui.relay.history.backfill_store import BackfillStore, BackfillTask

TABLES = ("public.a", "public.b", 'x y."Z"')


class Tasks(RuleBasedStateMachine):
    """A store, and a simple model of the expected contents of its disk."""

    def __init__(self) -> None:
        super().__init__()
        self.home = tempfile.TemporaryDirectory()
        self.folder = Path(self.home.name) / "backfills"
        self.store = BackfillStore(self.folder)
        self.ids: list[str] = []
        #: Number of saved chunks by task id.
        self.chunks: dict[str, int] = {}
        self.task: BackfillTask | None = None

    def teardown(self) -> None:
        self.home.cleanup()

    @rule(table=st.sampled_from(TABLES))
    def submit(self, table: str) -> None:
        with contextlib.suppress(RefusedError):
            id = self.store.submit(BackfillRequest(table))
            assert id not in self.ids
            self.ids.append(id)
            self.chunks[id] = 0

    @rule(number=st.integers(0, 5), what=st.sampled_from(("pause", "resume", "cancel")))
    def ask(self, number: int, what: BackfillCommand) -> None:
        if number < len(self.ids):
            with contextlib.suppress(RefusedError):
                self.store.control(self.ids[number], what)

    @rule()
    def next(self) -> None:
        self.task = self.store.next()
        assert self.store.next() is self.task

    @rule(state=st.sampled_from(("running", "running", "running", "done", "failed")), is_saved=st.booleans())
    def chunk(self, state: BackfillState, is_saved: bool) -> None:
        task = self.task
        if task is None:
            return
        task.chunks += 1
        task.after = (str(task.chunks),)
        if is_saved:
            task.state = state
            self.store.save(task)
            self.chunks[task.id] = task.chunks
            if task.is_over:
                self.task = None

    @rule()
    def restart(self) -> None:
        self.store = BackfillStore(self.folder)
        self.task = None

    @invariant()
    def nothing_is_lost(self) -> None:
        """Check that another process would find the same tasks and continue with the same one."""
        # This is read first; it changes nothing on the disk as long as no file is damaged.
        other = BackfillStore(self.folder)
        following = other.next()
        theirs = {status.id: status for status in other.statuses()}
        assert list(theirs) == self.ids[-len(theirs) :] if len(self.ids) > 20 else list(theirs) == self.ids
        for id, status in theirs.items():
            assert status.chunks == self.chunks[id]
        ours = self.store.next()
        self.task = ours
        assert (ours and ours.id) == (following and following.id)
        for status in self.store.statuses():
            same = theirs[status.id]
            assert status.is_over == same.is_over
            assert status.is_over is False or status.state == same.state


Tasks.TestCase.settings = settings(
    max_examples=30, stateful_step_count=25, suppress_health_check=list(HealthCheck)
)
test_tasks = Tasks.TestCase
