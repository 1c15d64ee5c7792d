"""What a session of the stream and the rows that are put into it know of each other."""

from collections.abc import Callable
from typing import Protocol

from bwtui.model.status import State
from bwtui.relay.batch import Batch
from bwtui.sink.base import DeliveryFailure

#: Seconds of one turn for rows beside the stream: while it has rows of its own, and while it has none. The
#: most is what a server and a stop may wait; a full batch of 4,000 rows takes 15 to 50 ms.
_LEAST_SECONDS, _MOST_SECONDS, _IDLE_SECONDS = 0.001, 0.1, 0.01


def seconds_beside(seconds: float, share: float, *, is_idle: bool) -> float:
    """Return the part of a turn for rows beside the stream, whose own took ``seconds``: ``share`` of both."""
    if is_idle:
        return _IDLE_SECONDS
    return max(_LEAST_SECONDS, min(_MOST_SECONDS, seconds * share / (1 - share)))


class Stream(Protocol):
    """What a session of the stream does for rows that are put into it."""

    @property
    def batch(self) -> Batch:
        """What rows are added to."""

    def promise(self) -> Callable[[], bool]:
        """Return what says whether all that was recorded so far is on the disk."""

    def ask_position(self) -> None:
        """Have the server say how far it has come."""

    def pulse(self, seconds: float) -> None:
        """Wait, take deliveries, and raise what ends the session."""

    def while_settling(self) -> None:
        """Keep the server informed while messages are waited for; raises to stop."""


class Beside(Protocol):
    """What puts rows into the stream; see `bwtui.relay.backfill.running.Backfill`."""

    @property
    def pause(self) -> float:
        """So many seconds at most the next turn may wait where the stream has nothing to say."""

    @property
    def phase(self) -> State:
        """What a relay that streams is at: "snapshot" until its first snapshot is through."""

    @property
    def is_due(self) -> bool:
        """Whether a relay that ends once it has caught up has more to send before that."""

    @property
    def wants_boundary(self) -> bool:
        """Whether rows are ready to be put in as soon as a transaction ends."""

    def begin_session(self, stream: Stream) -> None:
        """Go on over a new session of the stream."""

    def end_session(self) -> None:
        """Give up the chunk under way: what the next session reads again would come behind its rows."""

    def own(self, failures: list[DeliveryFailure]) -> list[DeliveryFailure]:
        """Take note of the failures of rows that were put in; those that are not the stream's end nothing."""

    def turn(self, position: int, seconds: float, *, at_boundary: bool, is_idle: bool) -> None:
        """Do what is due.

        The stream has sent everything that commits before ``position``, took ``seconds`` for its own rows in
        this turn, and stands between two transactions ``at_boundary``. Raises what a batch, the store and the
        router raise, never for a table's own fault.
        """
