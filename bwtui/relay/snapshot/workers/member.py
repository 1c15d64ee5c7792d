"""The engine's side of one worker: its process, what it reads, and what of it is not settled."""

import signal
import socket
import subprocess
import sys
import time
from collections import deque
from contextlib import suppress
from typing import Any

from bwtui.errors import ConnectionFailed
from bwtui.model.delivery import Receipt
from bwtui.relay.snapshot.workers.channel import EngineEnd
from bwtui.relay.snapshot.workers.plan import Task
from bwtui.relay.snapshot.workers.words import Beat, Begin, GoOn, Progress
from bwtui.signals.parent_death import signalled_with_us

#: Safe path (-P), as for the engine itself.
COMMAND = (sys.executable, "-P", "-m", "bwtui.relay.snapshot.workers.worker")
#: Between two looks a worker counts as silent for no longer: we may have stood still ourselves.
_MOST_SILENT_SECONDS = 1.0


class Member:
    """One worker, wherever it is."""

    #: Its process, once that is known, and the machine that it is on, if that is another one.
    pid = 0
    host = ""

    def __init__(self, end: EngineEnd, begin: Begin) -> None:
        self.end = end
        end.send(begin)
        #: What it reads; None before the first, and while there is none for it.
        self.task: Task | None = None
        self.is_idle = False
        self.beat: Beat | None = None
        self.progress: dict[str, Progress] = {}
        self.known_plans: set[int] = set()
        #: What it has said that is not answered.
        self.words: deque[Any] = deque()
        #: Of messages that are recorded and on their way, by batch and section.
        self.receipts: dict[tuple[int, int], Receipt] = {}
        self._silent = 0.0
        self._looked_at = time.monotonic()

    @property
    def name(self) -> str:
        """Its process, as people find it."""
        return f"process {self.pid}"

    @property
    def silent_seconds(self) -> float:
        """For how long it has said nothing, while somebody listened."""
        return self._silent

    @property
    def is_lost(self) -> bool:
        """Whether it is gone, and all that it has said was answered."""
        return self.end.is_over and not self.words

    @property
    def is_gone(self) -> bool:
        """Whether it is known that it has ended, once it was killed."""
        raise NotImplementedError

    @property
    def is_cut_off(self) -> bool:
        """Whether that will never be known."""
        return False

    def awaited(self) -> ConnectionFailed:
        """Return what to tell while it is waited for, and how to end that."""
        raise NotImplementedError

    def unknown_end(self) -> ConnectionFailed:
        """Return what to tell where nobody waits any longer for its end."""
        return ConnectionFailed(
            f"a worker of the snapshot ({self.name}) was lost, and may still send rows of it",
            "see that this process has ended there, and start again, which takes a new snapshot",
        )

    def kill(self) -> str:
        """End it, if it has not ended, and return how it did."""
        raise NotImplementedError

    def look(self) -> list[Beat]:
        """Take what it has said; return the beats among it."""
        now = time.monotonic()
        self._silent += min(now - self._looked_at, _MOST_SILENT_SECONDS)
        self._looked_at = now
        words = self.end.words()
        if words:
            self._silent = 0.0
        self.words += (word for word in words if not isinstance(word, Beat))
        self.end.flush()
        return [word for word in words if isinstance(word, Beat)]

    def go_on(self) -> None:
        """Answer its beat: the snapshot is ours as yet."""
        self.end.send(GoOn())


class NearMember(Member):
    """A worker that is a child of ours."""

    def __init__(self, begin: Begin) -> None:
        """Start it. Raises OSError."""
        ours, theirs = socket.socketpair()
        try:
            # In a session of its own: Ctrl-C is for the engine, which ends it.
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
        super().__init__(EngineEnd(ours), begin)
        self.pid = self._process.pid

    @property
    def is_gone(self) -> bool:
        """Whether it is known that it has ended, once it was killed."""
        return self._process.poll() is not None

    def awaited(self) -> ConnectionFailed:
        """Return what to tell while it is waited for, and how to end that."""
        return self._not_ended(", so the stream does not begin yet")

    def unknown_end(self) -> ConnectionFailed:
        """Return what to tell where nobody waits any longer for its end."""
        return self._not_ended("")

    def _not_ended(self, so: str) -> ConnectionFailed:
        return ConnectionFailed(
            f"a worker of the snapshot ({self.name}) was killed and has not ended{so}",
            "it waits for a disk or a file system, which no signal ends (state D in ps): see to that one",
        )

    def kill(self) -> str:
        """End it, if it has not ended, and return how it did. Its CPU time is ours from then on."""
        # One that has hung up is let end by itself, so that how it did is known.
        if self._process.poll() is None and not (self.end.is_over and self._ends_soon()):
            self._process.kill()
            # It may sleep where no signal reaches it.
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
