"""Messages on their way to Kafka: where each is by now, and what is still missing of a batch."""

#: In the place of a partition: no delivery report has come for the message, or Kafka refused it.
UNKNOWN, REFUSED = -1, -2


class Receipt:
    """Where the messages of one section of a recorded batch are; filled in by the sink as reports come."""

    __slots__ = ("batch", "offsets", "partitions", "section")

    def __init__(self, batch: int, section: int, count: int) -> None:
        self.batch = batch
        self.section = section
        # Lists, since to set an item of an array takes twice as long.
        self.partitions = [UNKNOWN] * count
        self.offsets = [-1] * count


#: A table by name, its messages, and the commit time of the oldest.
Part = tuple[str, int, int]


class Span:
    """Rows that were handed to the sink together.

    ``pending`` counts its messages that are not durable, and ``failed`` those among them that will never be
    so by themselves; ``size`` is in bytes; ``receipts`` are there while recording. ``sealed_at`` is when all
    of it was handed over, in seconds of the monotonic clock.

    Of a batch of the stream, ``received``, ``encoded`` and ``produced`` are seconds of the monotonic clock:
    when its first row was there to read, when its last one was encoded, and when the sink had accepted all.
    ``clock`` is what the system's clock was ahead of that one. ``parts`` are its tables, each with its
    messages and the oldest commit among them, in Unix microseconds by PostgreSQL's clock.
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

    def settle_failed(self) -> None:
        """Take out a message that had failed: it was dropped, or is delivered by now."""
        self.failed -= 1
        self.pending -= 1
