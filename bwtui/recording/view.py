"""The interface of an open recording, for the screens, the command line and the tests.

Positions count the recording's changes from 0 (`Change.position`); `length` is one past the last.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from bwtui.model.status import ErrorEntry, SchemaEntry
from bwtui.recording.change import Change


@dataclass(frozen=True, slots=True)
class TableCounts:
    """Number of changes and messages of one table, from the beginning of the recording up to a position."""

    topic: str = ""
    snapshot_rows: int = 0
    #: Number of backfilled rows.
    backfill_rows: int = 0
    inserts: int = 0
    updates: int = 0
    deletes: int = 0
    truncates: int = 0
    #: Number of tombstones for keys without a row in the table.
    cleanups: int = 0
    messages: int = 0
    bytes: int = 0
    dropped: int = 0
    key_schema_id: int | None = None
    value_schema_id: int | None = None
    key_columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TimelineBucket:
    """An interval of the timeline: times in Unix microseconds, and its number of changes and errors."""

    start: int
    end: int
    changes: int
    errors: int
    first_position: int


@dataclass(frozen=True, slots=True)
class RecordingOrigin:
    """The origin of a recording, without passwords."""

    recording: str = ""
    database: str = ""
    system_identifier: str = ""
    server_version: str = ""
    slot: str = ""
    publication: str = ""
    broker: str = ""
    cluster: str = ""
    registry: str = ""
    output_format: str = "avro"
    topic_prefix: str = ""
    #: Further keys of the HEAD block's "source".
    more: dict[str, Any] = field(default_factory=dict)


class RecordedTransaction(NamedTuple):
    """A transaction, as far as it was recorded without interruption; times in Unix microseconds."""

    #: Its changes are those in ``[start, stop)``.
    start: int
    stop: int
    rows: int
    xid: int
    lsn: int
    commit_time: int
    #: When its first change was recorded.
    received: int
    #: When it was known to be durable at the sink and in the recording; 0 if that is not recorded.
    confirmed: int = 0
    #: True if it was recorded before.
    is_repeat: bool = False


class RecordingView(Protocol):
    """A recording that is open for reading. Every method except `changes` takes well under a second.

    All reading methods raise DamagedRecording when a byte that they need does not match its checksum.
    """

    name: str
    source: RecordingOrigin
    #: One past the last change.
    length: int
    #: Unix microseconds of the first and the last block, and the first and the last commit LSN.
    first_time: int
    last_time: int
    first_lsn: int
    last_lsn: int

    def changes(self, start: int = 0, stop: int | None = None) -> Iterator[Change]:
        """Yield the changes in ``[start, stop)``, with one batch in memory."""

    def at_time(self, time: int) -> int:
        """Return the position of the first change recorded at ``time`` (Unix microseconds) or later."""

    def at_lsn(self, lsn: int) -> int:
        """Return the position of the first change whose transaction commits at ``lsn`` or later."""

    def of_xid(self, xid: int, start: int = 0) -> int | None:
        """Return the position of the first change of transaction ``xid`` from ``start`` on, or None."""

    def transaction(self, position: int) -> tuple[int, int]:
        """Return the positions ``[start, stop)`` of the transaction that ``position`` belongs to.

        Each snapshot row is a unit of its own.
        """

    def transactions(self, start: int, stop: int) -> Iterator[RecordedTransaction]:
        """Yield the transactions with changes that begin in ``[start, stop)``, oldest first.

        Each is complete, even if it ends after ``stop``. Changes are not read.
        """

    def newest_transactions(self, stop: int, most: int) -> int:
        """Return the position from which on about ``most`` transactions, or all, precede ``stop``."""

    def time_at(self, position: int) -> int:
        """Return when the change at ``position`` was recorded; past the end, when the recording ended."""

    def counts(self, position: int) -> dict[str, TableCounts]:
        """Return the counts of what was relayed before ``position``, by table."""

    def status(self, position: int) -> dict[str, Any]:
        """Return the relay's last recorded status before ``position``, as in `Status.to_json`, or {}."""

    def errors(self, position: int) -> list[ErrorEntry]:
        """Return the errors and notices recorded before ``position``, oldest first, at most 1,000."""

    def schemas(self, position: int) -> list[SchemaEntry]:
        """Return the schemas that were registered before ``position``."""

    def timeline(self, buckets: int) -> list[TimelineBucket]:
        """Divide the whole recording into at most ``buckets`` intervals of equal duration."""

    def close(self) -> None:
        """Close the files."""


#: Called with the progress of a long read: changes read, and the total.
OnProgress = Callable[[int, int], None]
