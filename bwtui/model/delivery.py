"""The delivery state of messages: offsets of each, and what is outstanding of a batch."""

from array import array

#: Used instead of a partition: there is no delivery report yet, or Kafka rejected the message.
UNKNOWN, REFUSED = -1, -2


class Receipt:
    """Offsets of the messages of one section of a recorded batch; the sink adds them as reports arrive."""

    __slots__ = ("batch", "offsets", "partitions", "section")

    def __init__(self, batch: int, section: int, count: int) -> None:
        self.batch = batch
        self.section = section
        #: Arrays of 4-byte and 8-byte numbers, as a recording stores them.
        self.partitions = array("i", [UNKNOWN]) * count
        self.offsets = array("q", [UNKNOWN]) * count


#: A table's name, its number of messages, and the commit time of the oldest.
Part = tuple[str, int, int]


class SamplePassage:
    """The progress of a sampled message: when its batch passed each stage, and its offset.

    While the batch is in progress, this reads from its span; afterwards it keeps the values and releases the
    span. Any thread may read it.
    """

    __slots__ = (
        "_receipt",
        "_span",
        "_times",
        "is_given_up",
        "messages",
        "number",
        "offset",
        "partition",
        "route",
    )

    def __init__(self, span: "DeliverySpan", route: object, number: int) -> None:
        """``number`` is the message's index among those of ``route`` in the batch."""
        self._span: DeliverySpan | None = span
        self._receipt: Receipt | None = None
        self._times: tuple[float, ...] = ()
        self.route, self.number = route, number
        #: Number of messages in its batch.
        self.messages = 0
        self.partition: int | None = None
        self.offset: int | None = None
        #: True if the session ended first: the change is read and sent again.
        self.is_given_up = False

    def handed_over(self, receipt: Receipt | None, messages: int) -> None:
        """Note that the batch, with this number of messages, was handed to the sink."""
        self._receipt, self.messages, self.route = receipt, messages, None

    def settle(self, now: float) -> None:
        """Keep the values: the whole batch was acknowledged ``now`` (monotonic clock), or never if 0."""
        span, receipt = self._span, self._receipt
        if span is None:
            return
        self._times = _unix(span, now)
        self.is_given_up = not now
        if receipt is not None and receipt.partitions[self.number] >= 0:
            self.partition, self.offset = receipt.partitions[self.number], receipt.offsets[self.number]
        self._span = self._receipt = self.route = None

    @property
    def passed(self) -> tuple[float, ...]:
        """Unix times of stages: received, encoded, produced and acknowledged; 0 if not passed yet."""
        span = self._span
        return self._times if span is None else _unix(span, 0.0)


def _unix(span: "DeliverySpan", acknowledged: float) -> tuple[float, ...]:
    """Return a span's times by the system's clock; nothing for a span without measurements."""
    if not span.received:
        return ()
    times = (span.received, span.encoded, span.produced, acknowledged)
    return tuple(time + span.clock if time else 0.0 for time in times)


class DeliverySpan:
    """Rows that were handed to the sink together.

    ``pending`` counts its messages that are not durable, ``failed`` those of them that never will be without
    a retry by the relay. ``size`` is in bytes. ``receipts`` exist only while recording. ``sealed_at`` is when
    all of it was handed over, in seconds of the monotonic clock.

    For a batch of the stream, ``received``, ``encoded`` and ``produced`` are in seconds of the monotonic
    clock: when its first row was available, when its last one was encoded, and when the sink had accepted
    all. ``clock`` is the difference between the system's clock and the monotonic clock. ``parts`` has its
    tables, each with the number of messages and the oldest commit time in Unix microseconds by PostgreSQL's
    clock. ``sampled`` has the passages of messages that are shown to users: few, if any.
    """

    __slots__ = (
        "clock",
        "encoded",
        "failed",
        "lsn",
        "parts",
        "pending",
        "produced",
        "receipts",
        "received",
        "sampled",
        "sealed",
        "sealed_at",
        "size",
    )

    def __init__(self) -> None:
        self.pending = 0
        self.size = 0
        self.failed = 0
        self.lsn: int | None = None
        self.sealed = False
        self.sealed_at = 0.0
        self.receipts: list[Receipt] = []
        self.received = self.encoded = self.produced = self.clock = 0.0
        self.parts: list[Part] = []
        self.sampled: list[SamplePassage] = []

    def settle_failed(self) -> None:
        """Remove a failed message: it was dropped, or has been delivered since."""
        self.failed -= 1
        self.pending -= 1

    def settle_sampled(self, now: float) -> None:
        """Settle the sampled messages: all was acknowledged ``now`` (monotonic clock), or never if 0."""
        for passage in self.sampled:
            passage.settle(now)
