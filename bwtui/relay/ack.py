"""The acknowledgement rule: the only place that decides which LSN may be confirmed.

Invariant 1: the confirmed LSN never passes a transaction with a row that the sink has not made durable.

What is read goes into a FIFO of spans. A span holds the rows of one batch; its ``lsn`` is the end of the last
transaction that was committed within it, or None while a transaction is still open. A span is done when it is
sealed and none of its rows is pending. Only the done prefix of the FIFO is popped, and the last LSN popped is
what may be confirmed. A keepalive's WAL end goes into the same FIFO, and only outside a transaction: inside
one, the server may have sent it while older transactions are read and not durable. See
docs/adr/0001-raw-stream.md.
"""

from collections import deque


class Span:
    """Rows that were handed to the sink together.

    ``pending`` counts its messages that are not durable, and ``failed`` those among them that will never be
    so by themselves; ``size`` is in bytes.
    """

    __slots__ = ("failed", "lsn", "pending", "sealed", "size")

    def __init__(self) -> None:
        self.pending = 0
        self.size = 0
        self.failed = 0
        self.lsn: int | None = None
        self.sealed = False


class Acknowledgements:
    """The FIFO of spans; not thread-safe, the relay's main thread owns it."""

    def __init__(self, confirmed: int = 0) -> None:
        #: Everything before this LSN is durable and may be confirmed.
        self.confirmed = confirmed
        self._spans: deque[Span] = deque()
        self._bytes = 0

    def seal(self, span: Span) -> None:
        """Close ``span``, which then waits for its rows; spans are confirmed in the order of this call."""
        span.sealed = True
        self._spans.append(span)
        self._bytes += span.size

    def keepalive(self, wal_end: int) -> None:
        """Note a keepalive that came outside a transaction, and after every span read so far was sealed."""
        spans = self._spans
        if not spans:
            self.confirmed = max(self.confirmed, wal_end)
        elif spans[-1].pending == 0 and not spans[-1].size and spans[-1].failed == 0:
            spans[-1].lsn = max(spans[-1].lsn or 0, wal_end)
        else:
            span = Span()
            span.lsn = wal_end
            span.sealed = True
            spans.append(span)

    def advance(self) -> int:
        """Pop the done prefix and return the LSN that may be confirmed; it never goes back."""
        spans = self._spans
        while spans and spans[0].pending == 0 and spans[0].sealed:
            span = spans.popleft()
            self._bytes -= span.size
            if span.lsn is not None and span.lsn > self.confirmed:
                self.confirmed = span.lsn
        return self.confirmed

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits to become durable."""
        return not self._spans

    @property
    def bytes_in_flight(self) -> int:
        """Bytes in spans that were sealed and not popped yet: the bound on memory."""
        return self._bytes

    @property
    def rows_in_flight(self) -> int:
        """Rows that were sealed and are not durable yet."""
        return sum(span.pending for span in self._spans)

    @property
    def has_failed(self) -> bool:
        """Whether a row of any span could not be delivered."""
        return any(span.failed for span in self._spans)
