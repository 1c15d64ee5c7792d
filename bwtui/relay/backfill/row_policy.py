"""Handle backfilled rows that Kafka or their encoder refuses.

Under --on-error log such a row is dropped like any other. Under --on-error exit the request fails, and the
stream continues: none of its own rows was refused, and a restart would meet the same row again. A topic that
accepts nothing fails the request, too, and the stream is read again after that; if the stream itself has rows
for that topic, these end the relay.
"""

from collections.abc import Collection
from dataclasses import replace

from bwtui.errors import BwtuiError, RefusedError, ServiceRefused
from bwtui.model.backfill import BackfillRequest
from bwtui.model.delivery import DeliverySpan
from bwtui.relay.batch_bisector import RestartFromConfirmed
from bwtui.relay.policy import RowPolicy
from bwtui.relay.routes.route import TableRoute
from bwtui.sink.base import DeliveryFailure
from bwtui.sink.dead_letter_writer import DroppedRow

#: Maximum times that the session that reads by a condition may end.
_ENDS = 5


class BackfillFailed(Exception):
    """The request has failed.

    Other errors belong to the stream, whose messages are handled at the same time.
    """

    def __init__(self, error: BwtuiError) -> None:
        super().__init__(error.message)
        self.error = error


class ChunkSessionFailures:
    """Counts how often in a row the session that reads a chunk has ended, while the stream's has not."""

    def __init__(self) -> None:
        self._count = 0

    def note(self, request: BackfillRequest, error: BwtuiError) -> None:
        """Count one more. Raises BackfillFailed if a condition may be the cause."""
        self._count += 1
        if self._count < _ENDS or not request.where:
            return
        message = (
            f"the session that reads rows of {request.table} ended {self._count} times in a row, while the "
            f"stream's session did not: {error.message}"
        )
        raise BackfillFailed(
            RefusedError(message, f"check whether the condition ends the session: {request.where}")
        )


class BackfillRowPolicy:
    """Takes the place of a `RowPolicy` for backfilled rows."""

    def __init__(self, policy: RowPolicy, on_error: str, topic: str = "") -> None:
        """``topic`` is the topic of the rows."""
        self._policy = policy
        self._is_exit = on_error == "exit"
        self._topic = topic
        #: Rows and tombstones that were dropped and stored as dead letters.
        self.dropped = 0
        #: Why the request has failed: because of a row, or because its topic accepts nothing.
        self.error: BwtuiError | None = None
        self.shut: ServiceRefused | None = None

    def refuse(self, route: TableRoute, row: DroppedRow, error: BwtuiError, span: DeliverySpan) -> None:
        """Drop ``row``, or note that the request has failed because of it."""
        if self._is_exit:
            self.error = self.error or error
            return
        self._policy.refuse(route, row, error, span)
        self.dropped += 1

    def claim_failures(
        self, failures: list[DeliveryFailure], spans: Collection[DeliverySpan]
    ) -> list[DeliveryFailure]:
        """Note if the topic accepts nothing, and return ``failures``; those in ``spans`` then end nothing."""
        return [self._as_outage(failure) if failure.span in spans else failure for failure in failures]

    def _as_outage(self, failure: DeliveryFailure) -> DeliveryFailure:
        if not failure.is_setup or failure.topic != self._topic:
            return failure
        self.shut = self.shut or ServiceRefused(failure.reason, failure.hint)
        return replace(failure, is_setup=False, is_outage=True)

    def undelivered(self, failures: list[DeliveryFailure]) -> list[DeliveryFailure]:
        """See `RowPolicy.undelivered`, also for its errors; all ``failures`` are of backfilled rows."""
        failures = [self._as_outage(failure) for failure in failures]
        if self.shut is not None:
            raise RestartFromConfirmed(failures)
        return self._policy.undelivered(failures)
