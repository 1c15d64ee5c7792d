"""Find records that another producer sent while the relay was stopped, by comparing the ends of topics.

The ends are in a small file in the relay's state folder. A run writes the file only if it ended with no
message in flight, and the next start removes it before it sends anything: after a kill the relay can't tell
which records are its own.
"""

import json
from collections.abc import Callable
from pathlib import Path

from bwtui.durable_files import private_parent, write_durably
from bwtui.file_errors import file_failed
from bwtui.relay.coverage.ledger import ENDS, Coverage
from bwtui.relay.run_state import RunState
from bwtui.sink.destination import Destination, Offsets


class TopicEnds:
    """The ends of one relay's topics, kept from run to run."""

    def __init__(self, destination: Destination, report: RunState, path: Path, coverage: Coverage) -> None:
        self._destination = destination
        self._report = report
        self._path = path
        self._coverage = coverage
        self._has_forgotten = False

    def store(self) -> None:
        """Store where topics end; no message may be in flight. Raises ConnectionFailed and OSError."""
        if not self._has_forgotten:
            # This run has not compared the ends that the previous run stored.
            return
        ends = self._destination.service.ends(self._tables())
        private_parent(self._path)
        write_durably(self._path, json.dumps(ends))

    def forget(self) -> None:
        """Remove the stored ends, because the relay is about to send. Raises StateFailed."""
        try:
            self._path.unlink(missing_ok=True)
            self._has_forgotten = True
        except OSError as error:
            raise file_failed(f"{self._path} can't be removed", error) from error

    def check(self, on_wait: Callable[[], None]) -> None:
        """Mark tables whose topics have grown since the last run ended, and remove the stored ends.

        ``on_wait`` may raise to stop the check. Raises ConnectionFailed and StateFailed.
        """
        tables, stored = self._tables(), self._stored()
        ends = self._destination.service.ends([topic for topic in stored if topic in tables])
        for topic, now in ends.items():
            if more := self._records(topic, stored[topic], now, on_wait):
                self._coverage.mark(
                    tables[topic],
                    f"has {more:,} records in topic {topic} that were written while the relay was "
                    "stopped: another producer or relay wrote to it",
                    ENDS,
                    has_extra=True,
                )
        self._coverage.seen(ENDS)
        self.forget()

    def _records(self, topic: str, before: Offsets, now: Offsets, on_wait: Callable[[], None]) -> int:
        grown = {number: end for number, end in now.items() if end > before.get(number, 0)}
        offsets = sum(end - before.get(number, 0) for number, end in grown.items())
        if not offsets or self._destination.recall.exactly_once() is None:
            return offsets
        # Kafka may write the end marker of the last transaction late, one record per partition. The marker
        # has no key, and neither has a record of an unkeyed table.
        start = {number: before.get(number, 0) for number in grown}
        keyed = sum(1 for _ in self._destination.readback.keys(topic, start, grown, on_wait))
        return max(keyed, offsets - len(grown))

    def _tables(self) -> dict[str, str]:
        return {counters.topic: name for name, counters in self._report.tables.items() if counters.topic}

    def _stored(self) -> dict[str, Offsets]:
        try:
            stored = json.loads(self._path.read_text(encoding="utf-8"))
            return {topic: {int(n): int(end) for n, end in ends.items()} for topic, ends in stored.items()}
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise file_failed(f"{self._path} can't be read", error) from error
        except (ValueError, TypeError, AttributeError):
            self._coverage.mark_all(
                "may have records that another producer wrote while the relay was stopped: "
                f"{self._path} is damaged"
            )
            return {}
