"""The letters of a topic of dead letters, put into a file that is read like the relay's own."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from bwtui.durable import private
from bwtui.errors import ConnectionFailed
from bwtui.kafka.client import Config
from bwtui.kafka.letters import LetterReader
from bwtui.model.looks import Letters
from bwtui.spark.scratch import scratch


@contextlib.contextmanager
def spooled(config: Config, topic: str) -> Iterator[tuple[Path, Letters]]:
    """Yield a file with the letters of ``topic``, for its owner alone, and what was read.

    Of each partition the newest 20,000 records are read. Raises ConnectionFailed where that can't be done.
    """
    with scratch("bwtui-letters-") as folder:
        path = folder / "dead-letters.jsonl"
        with open(path, "wb", opener=private) as file:

            def keep(value: bytes) -> None:
                # Between the parts of a JSON text a line break means nothing, and its strings have none.
                file.write(value.replace(b"\n", b" ") + b"\n")

            reader = LetterReader(config, topic, keep)
            try:
                read = _read(reader)
            finally:
                reader.close()
        yield path, read


def _read(reader: LetterReader) -> Letters:
    while True:
        before = reader.look()
        if before.failure:
            raise ConnectionFailed(
                f"the letters in topic {before.topic} can't be read: {before.failure}",
                "check -b/--broker and --dead-letter-topic; without --from-topic the relay's file is read",
            )
        if reader.is_through:
            return before
