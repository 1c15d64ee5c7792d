"""The interfaces between a session of the stream and the backfill that adds rows to it."""

from collections.abc import Callable
from typing import Protocol

from bwtui.model.status import State
from bwtui.relay.batch import OutgoingBatch
from bwtui.sink.base import DeliveryFailure

#: Time in seconds for backfilled rows in one turn: minimum and maximum while the stream has rows of its own,
#: and a fixed time while it has none. The maximum is how long a server and a stop may have to wait; a full
#: batch of 4,000 rows takes 15 to 50 ms.
_LEAST_SECONDS, _MOST_SECONDS, _IDLE_SECONDS = 0.001, 0.1, 0.01


def seconds_beside(seconds: float, share: float, *, is_idle: bool) -> float:
    """Return the time for backfilled rows after a turn that took ``seconds``: ``share`` of both."""
    if is_idle:
        return _IDLE_SECONDS
    return max(_LEAST_SECONDS, min(_MOST_SECONDS, seconds * share / (1 - share)))


class BackfillStream(Protocol):
    """A session of the stream, as far as a backfill uses it."""

    @property
    def batch(self) -> OutgoingBatch:
        """The batch that rows are added to."""

    def promise(self) -> Callable[[], bool]:
        """Return a function that reports whether everything recorded so far is on the disk."""

    def ask_position(self) -> None:
        """Ask the server for its position."""

    def pulse(self, seconds: float) -> None:
        """Wait, handle deliveries, and raise the error that ends the session."""

    def while_settling(self) -> None:
        """Keep the server informed while waiting for messages; raises to stop."""


class StreamHook(Protocol):
    """The hook that adds rows to the stream; see `bwtui.relay.backfill.backfill.Backfill`."""

    @property
    def pause(self) -> float:
        """Maximum wait in seconds before the next turn, if the stream has nothing to read."""

    @property
    def phase(self) -> State:
        """State of a streaming relay: "snapshot" until its first snapshot is done."""

    @property
    def is_due(self) -> bool:
        """True if a relay that ends once it has caught up has more to send first."""

    @property
    def wants_boundary(self) -> bool:
        """Whether rows are ready to be added as soon as a transaction ends."""

    def begin_session(self, stream: BackfillStream) -> None:
        """Resume with a new session of the stream."""

    def end_session(self) -> None:
        """Abandon the current chunk: changes that the next session reads again would follow its rows."""

    def claim_failures(self, failures: list[DeliveryFailure]) -> list[DeliveryFailure]:
        """Handle the failures of backfilled rows; return the failures for the stream to handle."""

    def turn(self, position: int, seconds: float, *, at_boundary: bool, is_idle: bool) -> None:
        """Do the next step of work.

        The stream has sent everything that commits before ``position``, took ``seconds`` for its own rows in
        this turn, and is between two transactions if ``at_boundary``. Raises the errors of a batch, the store
        and the router, but never an error of a table itself.
        """
