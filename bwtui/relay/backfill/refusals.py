"""What becomes of a row that Kafka, or its encoder, refuses while it is put into the stream.

Under --on-error log it is dropped like any other. Under --on-error exit the request has failed, and the
stream goes on: of its own rows none was refused, and a restart would meet the same row again.
"""

from bwtui.errors import BwtuiError
from bwtui.model.delivery import Span
from bwtui.relay.policy import RowPolicy
from bwtui.relay.routes.route import Route
from bwtui.sink.base import DeliveryFailure
from bwtui.sink.dead_letter import DroppedRow


class Refusals:
    """Stands where a `RowPolicy` is asked for."""

    def __init__(self, policy: RowPolicy, on_error: str) -> None:
        self._policy = policy
        self._is_exit = on_error == "exit"
        #: Why the request has failed.
        self.error: BwtuiError | None = None

    def refuse(self, route: Route, row: DroppedRow, error: BwtuiError, span: Span) -> None:
        """Drop ``row``, or note that the request has failed of it."""
        if self._is_exit:
            self.error = self.error or error
            return
        self._policy.refuse(route, row, error, span)

    def undelivered(self, failures: list[DeliveryFailure]) -> list[DeliveryFailure]:
        """See `RowPolicy.undelivered`."""
        return self._policy.undelivered(failures)
