"""Messages on their way to Kafka: where each is by now, and what is still missing of a batch."""

from array import array

#: In the place of a partition: no delivery report has come for the message, or Kafka refused it.
UNKNOWN, REFUSED = -1, -2


class Receipt:
    """Where the messages of one section of a recorded batch are; filled in by the sink as reports come."""

    __slots__ = ("batch", "offsets", "partitions", "section")

    def __init__(self, batch: int, section: int, count: int) -> None:
        self.batch = batch
        self.section = section
        #: Of 4 and of 8 bytes each, as a recording has them.
        self.partitions = array("i", [UNKNOWN]) * count
        self.offsets = array("q", [UNKNOWN]) * count


#: A table by name, its messages, and the commit time of the oldest.
Part = tuple[str, int, int]


class Passage:
    """How far a sampled message has come: when its batch passed each stage, and where it is.

    While the batch is under way that is read from its span; then it is kept, and the span let go. Any thread
    may read it.
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

    def __init__(self, span: "Span", route: object, number: int) -> None:
        """``number``: the message's among those of ``route`` in the batch."""
        self._span: Span | None = span
        self._receipt: Receipt | None = None
        self._times: tuple[float, ...] = ()
        self.route, self.number = route, number
        #: Of its batch.
        self.messages = 0
        self.partition: int | None = None
        self.offset: int | None = None
        #: The session ended first, so that the change is read and sent again.
        self.is_given_up = False

    def handed_over(self, receipt: Receipt | None, messages: int) -> None:
        """Take note that the batch, of so many messages, went to the sink."""
        self._receipt, self.messages, self.route = receipt, messages, None

    def settle(self, now: float) -> None:
        """Keep what is known: the whole batch was acknowledged ``now``, by the monotonic clock; 0: never."""
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
        """Received, encoded, produced and acknowledged, in Unix seconds; 0 where it has not been."""
        span = self._span
        return self._times if span is None else _unix(span, 0.0)


def _unix(span: "Span", acknowledged: float) -> tuple[float, ...]:
    """Return a span's times by the system's clock; nothing of a span that nobody measures."""
    if not span.received:
        return ()
    times = (span.received, span.encoded, span.produced, acknowledged)
    return tuple(time + span.clock if time else 0.0 for time in times)


class Span:
    """Rows that were handed to the sink together.

    ``pending`` counts its messages that are not durable, and ``failed`` those among them that will never be
    so by themselves; ``size`` is in bytes; ``receipts`` are there while recording. ``sealed_at`` is when all
    of it was handed over, in seconds of the monotonic clock.

    Of a batch of the stream, ``received``, ``encoded`` and ``produced`` are seconds of the monotonic clock:
    when its first row was there to read, when its last one was encoded, and when the sink had accepted all.
    ``clock`` is what the system's clock was ahead of that one. ``parts`` are its tables, each with its
    messages and the oldest commit among them, in Unix microseconds by PostgreSQL's clock. ``sampled`` are the
    passages of its messages of which people are shown something: few, if any.
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
        self.sampled: list[Passage] = []

    def settle_failed(self) -> None:
        """Take out a message that had failed: it was dropped, or is delivered by now."""
        self.failed -= 1
        self.pending -= 1

    def settle_sampled(self, now: float) -> None:
        """Tell the sampled messages that all was acknowledged ``now``, by the monotonic clock; 0: never."""
        for passage in self.sampled:
            passage.settle(now)
