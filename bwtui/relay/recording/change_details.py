"""Details of a batch's changes besides messages: why a change has none, and which values were fetched."""

from collections.abc import Sequence

from bwtui.pgoutput.messages import UNCHANGED, Field
from bwtui.recording.format.batch import FilledValue, NoMessageReason
from bwtui.recording.format.parsing import Counts
from bwtui.relay.routes.route import TableRoute


class ChangeDetails:
    """Collects the details of the current batch; ``frame`` is the change's number in the batch."""

    def __init__(self) -> None:
        self._without: list[tuple[int, NoMessageReason, TableRoute]] = []
        self.filled: list[FilledValue] = []

    def without(self, frame: int, route: TableRoute, reason: NoMessageReason) -> None:
        """Record why a change makes no message."""
        self._without.append((frame, reason, route))

    def fill(self, frame: int, sent: Sequence[Field], completed: Sequence[Field]) -> int:
        """Record the TOAST values that were fetched for the streamed row; return their size in bytes."""
        filled = [
            FilledValue(frame, column, new)
            for column, (old, new) in enumerate(zip(sent, completed, strict=True))
            if old is UNCHANGED and isinstance(new, bytes)
        ]
        self.filled += filled
        return sum(len(value.text) for value in filled)

    def keep(self, frames: int) -> None:
        """Forget a change that ended the relay halfway: it has no frame."""
        self._without = [change for change in self._without if change[0] < frames]
        self.filled = [value for value in self.filled if value.frame < frames]

    def clear(self) -> None:
        """Begin a new batch."""
        self._without, self.filled = [], []

    def __len__(self) -> int:
        """Return the number of changes that make no message."""
        return len(self._without)

    @property
    def routes(self) -> list[TableRoute]:
        """The routes of the changes that make no message: each names the key columns."""
        return [route for _, _, route in self._without]

    @property
    def reasons(self) -> list[tuple[int, NoMessageReason]]:
        """Frames, and why they make no message."""
        return [(frame, reason) for frame, reason, _ in self._without]

    def counts(self) -> Counts:
        """Return the counters of the rows that were dropped."""
        return [
            (route.relation.qualified_name, "dropped", 1)
            for _, reason, route in self._without
            if reason == NoMessageReason.DROPPED
        ]
