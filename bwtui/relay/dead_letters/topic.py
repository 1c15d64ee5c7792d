"""Copy the dead letters of a topic into a file that is read like the relay's own."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from bwtui.durable_files import open_private
from bwtui.errors import ConnectionFailed
from bwtui.kafka.client import Config
from bwtui.kafka.dead_letter_topic import DeadLetterTopicReader
from bwtui.model.service_views import DeadLetterTopic
from bwtui.spark.scratch import scratch


@contextlib.contextmanager
def spooled(config: Config, topic: str) -> Iterator[tuple[Path, DeadLetterTopic]]:
    """Yield a file with the dead letters of ``topic``, readable by its owner only, and the reader's result.

    At most the newest 20,000 records of each partition are read. Raises ConnectionFailed if reading fails.
    """
    with scratch("bwtui-letters-") as folder:
        path = folder / "dead-letters.jsonl"
        with open(path, "wb", opener=open_private) as file:

            def keep(value: bytes) -> None:
                # Line breaks between the tokens of a JSON text have no meaning, and JSON strings contain
                # none.
                file.write(value.replace(b"\n", b" ") + b"\n")

            reader = DeadLetterTopicReader(config, topic, keep)
            try:
                read = _read(reader)
            finally:
                reader.close()
        yield path, read


def _read(reader: DeadLetterTopicReader) -> DeadLetterTopic:
    while True:
        before = reader.poll()
        if before.failure:
            raise ConnectionFailed(
                f"the dead letters in topic {before.topic} can't be read: {before.failure}",
                "check -b/--broker and --dead-letter-topic; or omit --from-topic to read the relay's file",
            )
        if reader.is_through:
            return before
