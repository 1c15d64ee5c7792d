"""The acknowledgement rule: the only place that decides which LSN may be confirmed.

Invariant 1: the confirmed LSN never passes a transaction with a row that the sink has not made durable, nor,
while recording, one whose frames and delivery are not on the disk.

The FIFO holds spans. A span holds the rows of one batch; its ``lsn`` is the end of the last transaction that
was committed within it, or None while a transaction is still open. A span is done when it is sealed and none
of its rows is pending. Only the done prefix of the FIFO is popped, and the last LSN popped is the delivered
LSN. A keepalive's WAL end goes into the last span of the FIFO, and only outside a transaction: inside one,
the server may have sent it while older transactions are read and not durable. See
docs/adr/0001-read-the-stream-through-libpq.md.

With a ledger, a popped span's receipts are passed to the ledger, and an LSN may be confirmed only when the
ledger reports that everything passed to it up to there is durable.
"""

import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from bwtui.model.delivery import DeliverySpan, Receipt


class DurabilityLedger(Protocol):
    """The interface of a recording that acknowledgement needs."""

    def take_settled(self, receipts: list[Receipt]) -> None:
        """Take the receipts of a span that is done."""

    def take_unsettled(self, receipts: list[Receipt]) -> None:
        """Take the receipts of a span that is not done, as far as they are filled in."""

    def reach(self, lsn: int) -> None:
        """Request that everything taken so far become durable; `durable_lsn` is ``lsn`` afterwards."""

    @property
    def durable_lsn(self) -> int:
        """The LSN before which everything is on the disk."""


class Acknowledgements:
    """The FIFO of spans; not thread-safe, the relay's main thread owns it."""

    def __init__(
        self,
        confirmed: int = 0,
        ledger: DurabilityLedger | None = None,
        measure: Callable[[DeliverySpan, float], object] | None = None,
    ) -> None:
        """``measure`` is called for every acknowledged span, with messages or not, with the time."""
        #: Everything before this LSN is durable at the sink, and in the recording if there is one.
        self.confirmed = confirmed
        #: Everything before this LSN is durable at the sink.
        self.delivered = confirmed
        self._ledger = ledger
        self._spans: deque[DeliverySpan] = deque()
        self._bytes = 0
        self._measure = measure
        #: Since when only the ledger is waited for, by ``time.monotonic``; 0 when it is not.
        self.ledger_since = 0.0

    def seal(self, span: DeliverySpan) -> None:
        """Close ``span``, which then waits for its rows; spans are confirmed in the order of these calls."""
        span.sealed = True
        spans = self._spans
        if spans and span.lsn is not None and not (span.pending or span.failed or span.size or span.receipts):
            # A span without rows of its own is done when the span before it is. Transactions without a
            # message keep arriving during a Kafka outage, for hours: merging their spans bounds the FIFO.
            spans[-1].lsn = max(spans[-1].lsn or 0, span.lsn)
            return
        span.sealed_at = time.monotonic()
        spans.append(span)
        self._bytes += span.size

    def keepalive(self, wal_end: int) -> None:
        """Record a keepalive that arrived outside a transaction, after every span read so far was sealed."""
        spans = self._spans
        if not spans:
            self.delivered = max(self.delivered, wal_end)
            self._confirm()
        else:
            spans[-1].lsn = max(spans[-1].lsn or 0, wal_end)

    def advance(self) -> int:
        """Pop the done prefix and return the LSN that may be confirmed; it never decreases."""
        spans = self._spans
        while spans and spans[0].pending == 0 and spans[0].sealed:
            span = spans.popleft()
            self._bytes -= span.size
            if span.receipts and self._ledger is not None:
                self._ledger.take_settled(span.receipts)
            now = time.monotonic()
            if self._measure is not None:
                self._measure(span, now)
            span.settle_sampled(now)
            if span.lsn is not None and span.lsn > self.delivered:
                self.delivered = span.lsn
        self._confirm()
        return self.confirmed

    def close(self) -> None:
        """Pass the receipts of the spans that are not done to the ledger; nothing of them is confirmed."""
        for span in self._spans:
            span.settle_sampled(0.0)
        if self._ledger is not None:
            for span in self._spans:
                self._ledger.take_unsettled(span.receipts)
                span.receipts = []

    def _confirm(self) -> None:
        if self._ledger is None:
            self.confirmed = self.delivered
        elif self.confirmed < self.delivered:
            self._ledger.reach(self.delivered)
            durable = min(self.delivered, self._ledger.durable_lsn)
            if durable > self.confirmed:
                self.confirmed = durable
                self.ledger_since = 0.0
            if durable < self.delivered:
                self.ledger_since = self.ledger_since or time.monotonic()

    @property
    def oldest_since(self) -> float:
        """Since when the oldest message waits to be acknowledged, by ``time.monotonic``; 0 if none does."""
        return self._spans[0].sealed_at if self._spans else 0.0

    @property
    def is_idle(self) -> bool:
        """Return whether nothing waits to become durable."""
        return not self._spans and not self.waits_for_ledger

    @property
    def waits_for_ledger(self) -> bool:
        """Return whether the sink has made something durable that the recording has not."""
        return self.confirmed < self.delivered

    @property
    def bytes_in_flight(self) -> int:
        """Bytes in spans that are sealed and not popped yet: the bound on memory."""
        return self._bytes
