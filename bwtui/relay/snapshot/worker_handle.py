"""The engine's side of one worker: its process, what it reads, and its unsettled messages."""

import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from bwtui.errors import ConnectionFailed
from bwtui.model.delivery import Receipt
from bwtui.relay.snapshot.worker_protocol import (
    Heartbeat,
    HeartbeatReply,
    NonBlockingChannel,
    StartWorker,
    TableProgress,
)
from bwtui.signals.parent_death import signalled_with_us
from bwtui.source.snapshot import SnapshotTable

#: Safe path (-P), as for the engine itself.
COMMAND = (sys.executable, "-P", "-m", "bwtui.relay.snapshot.worker")
#: Maximum silence to count between two polls: this process may have stood still itself.
_MOST_SILENT_SECONDS = 1.0


@dataclass(slots=True)
class SnapshotTask:
    """Tables, or one range of a table."""

    number: int
    tables: Sequence[SnapshotTable]
    #: How often a worker was lost while it read this task.
    losses: int = 0
    #: Dead letters stored for it, by digest: when it is read again, each is stored only once.
    stored_letters: dict[bytes, int] = field(default_factory=dict)
    #: Dead letters met since it was last started.
    new_letters: dict[bytes, int] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """Its tables."""
        return [table.relation.qualified_name for table in self.tables]


class WorkerHandle:
    """One worker, wherever it runs."""

    #: Its process id, once that is known, and its machine, if that is not this one.
    pid = 0
    host = ""

    def __init__(self, end: NonBlockingChannel, begin: StartWorker) -> None:
        self.end = end
        end.send(begin)
        #: The task that it reads; None before the first one, and while there is none for it.
        self.task: SnapshotTask | None = None
        self.is_idle = False
        self.beat: Heartbeat | None = None
        self.progress: dict[str, TableProgress] = {}
        self.sent_plans: set[int] = set()
        #: Messages that are not answered yet.
        self.messages: deque[Any] = deque()
        #: Receipts of recorded messages in flight, by batch and section.
        self.receipts: dict[tuple[int, int], Receipt] = {}
        self._silent = 0.0
        self._polled_at = time.monotonic()

    @property
    def name(self) -> str:
        """The worker's process, for messages."""
        return f"process {self.pid}"

    @property
    def silent_seconds(self) -> float:
        """Seconds of silence while this process was listening."""
        return self._silent

    @property
    def is_lost(self) -> bool:
        """True if it has disconnected, and all its messages were answered."""
        return self.end.is_over and not self.messages

    @property
    def has_ended(self) -> bool:
        """True if it is known to have ended, after it was killed."""
        raise NotImplementedError

    @property
    def is_cut_off(self) -> bool:
        """True if its end will never be known."""
        return False

    def awaited_end_error(self) -> ConnectionFailed:
        """Return what to report while the relay waits for its end, and how to end that."""
        raise NotImplementedError

    def unknown_end_error(self) -> ConnectionFailed:
        """Return what to report if the relay does not wait for its end any longer."""
        return ConnectionFailed(
            f"a snapshot worker ({self.name}) was lost and may still send rows",
            "make sure that this process has ended there, then start the relay again, which "
            "takes a new snapshot",
        )

    def kill(self) -> str:
        """End it, if it has not ended, and return how it ended."""
        raise NotImplementedError

    def poll(self) -> list[Heartbeat]:
        """Take the messages that it has sent; return the heartbeats among them."""
        now = time.monotonic()
        self._silent += min(now - self._polled_at, _MOST_SILENT_SECONDS)
        self._polled_at = now
        messages = self.end.messages()
        if messages:
            self._silent = 0.0
        self.messages += (message for message in messages if not isinstance(message, Heartbeat))
        self.end.flush()
        return [message for message in messages if isinstance(message, Heartbeat)]

    def answer_heartbeat(self) -> None:
        """Answer its heartbeat: the snapshot is still ours."""
        self.end.send(HeartbeatReply())


class LocalWorkerHandle(WorkerHandle):
    """A worker that is a child of this process."""

    def __init__(self, begin: StartWorker) -> None:
        """Start it. Raises OSError."""
        ours, theirs = socket.socketpair()
        try:
            # In a session of its own, so that Ctrl-C reaches only the engine, which ends the worker.
            self._process: subprocess.Popen[bytes] = subprocess.Popen(
                COMMAND,
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                start_new_session=True,
                preexec_fn=signalled_with_us(signal.SIGKILL),  # noqa: PLW1509  # Two functions of libc.
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        super().__init__(NonBlockingChannel(ours), begin)
        self.pid = self._process.pid

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def awaited_end_error(self) -> ConnectionFailed:
        return self._not_ended(", so the stream can't start yet")

    def unknown_end_error(self) -> ConnectionFailed:
        return self._not_ended("")

    def _not_ended(self, so: str) -> ConnectionFailed:
        return ConnectionFailed(
            f"a snapshot worker ({self.name}) was killed but has not ended{so}",
            "it is blocked on a disk or file system, which no signal interrupts (state D in ps): "
            "fix that disk or file system",
        )

    def kill(self) -> str:
        """End it, if it has not ended, and return how it ended. Its CPU time counts as ours from then on."""
        # If it has disconnected, let it end on its own, so that its exit code is known.
        if self._process.poll() is None and not (self.end.is_over and self._ends_soon()):
            self._process.kill()
            # It may be in a sleep that no signal interrupts.
            self._ends_soon()
        self.end.close()
        code = self._process.returncode
        if code is None:
            return "was lost"
        return f"was killed by signal {-code}" if code < 0 else "ended"

    def _ends_soon(self) -> bool:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        return self._process.returncode is not None
