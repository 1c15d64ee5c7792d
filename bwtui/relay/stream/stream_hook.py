"""The interfaces between a session of the stream and the backfill that adds rows to it."""

from collections.abc import Callable
from typing import Protocol

from bwtui.model.status import State
from bwtui.relay.rows.batch import OutgoingBatch
from bwtui.sink.destination import DeliveryFailure


class BackfillStream(Protocol):
    """A session of the stream, as far as a backfill uses it.

    ``promise`` returns a function that reports whether everything recorded so far is on the disk. ``pulse``
    waits, handles deliveries, and raises the error that ends the session; ``while_settling`` only keeps the
    server informed, and raises to stop.
    """

    @property
    def batch(self) -> OutgoingBatch: ...

    def promise(self) -> Callable[[], bool]: ...

    def ask_position(self) -> None: ...

    def pulse(self, seconds: float) -> None: ...

    def while_settling(self) -> None: ...


class StreamHook(Protocol):
    """The hook that adds rows to the stream; see `bwtui.relay.backfill.backfill.Backfill`.

    ``pause``: maximum wait in seconds before the next turn, if the stream has nothing to read. ``phase``:
    "snapshot" until the first snapshot is done. ``is_due``: a relay that ends once it has caught up has more
    to send first. ``wants_boundary``: rows are ready to be added as soon as a transaction ends.
    ``end_session`` abandons the current chunk: changes that the next session reads again would follow its
    rows. ``claim_failures`` handles the failures of backfilled rows, and returns those of the stream.
    """

    @property
    def pause(self) -> float: ...

    @property
    def phase(self) -> State: ...

    @property
    def is_due(self) -> bool: ...

    @property
    def wants_boundary(self) -> bool: ...

    def begin_session(self, stream: BackfillStream) -> None: ...

    def end_session(self) -> None: ...

    def claim_failures(self, failures: list[DeliveryFailure]) -> list[DeliveryFailure]: ...

    def turn(self, position: int, seconds: float, *, at_boundary: bool, is_idle: bool) -> None:
        """Do the next step of work.

        The stream has sent everything that commits before ``position``, took ``seconds`` for its own rows in
        this turn, and is between two transactions if ``at_boundary``. Raises the errors of a batch, the store
        and the router, but never an error of a table itself.
        """
