"""Store where topics end, to find records that another producer sent while the relay was stopped.

The ends are in a small file in the relay's state folder. A run that ends with no message in flight stores
that the ends are settled: later records are another producer's. After a kill they are not settled, and the
relay can't tell which records are its own.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bwtui.durable_files import private_parent, write_durably
from bwtui.file_errors import file_failed
from bwtui.relay.coverage.ledger import ENDS, Coverage
from bwtui.relay.run_state import RunState
from bwtui.sink.destination import Destination, Offsets, TopicEnd


class TopicEnds:
    """The ends of one relay's topics, kept from run to run."""

    def __init__(self, destination: Destination, report: RunState, path: Path, coverage: Coverage) -> None:
        self._destination = destination
        self._report = report
        self._path = path
        self._coverage = coverage
        #: The content of the file, once the ends of the previous run were compared.
        self._now: dict[str, TopicEnd] | None = None

    def files(self) -> dict[str, tuple[str, ...]]:
        """Return the file if there is one; it is about all tables."""
        return {self._path.name: ()} if self._now else {}

    def store(self) -> None:
        """Store where topics end; no message may be in flight. Raises ConnectionFailed and StateFailed."""
        if self._now is None:
            # This run has not compared the ends that the previous run stored.
            return
        self._write(self._destination.service.ends(self._tables()), is_settled=True)

    def forget(self) -> None:
        """Remove the stored ends, because a snapshot is about to be sent. Raises StateFailed."""
        try:
            self._path.unlink(missing_ok=True)
            self._now = {}
        except OSError as error:
            raise file_failed(f"{self._path} can't be removed", error) from error

    def check(self, on_wait: Callable[[], None]) -> None:
        """Mark tables whose topics have grown since the last run ended.

        After a kill nothing can be compared. ``on_wait`` may raise to stop the check. Raises ConnectionFailed
        and StateFailed.
        """
        tables, (stored, is_settled) = self._tables(), self._stored()
        stored = {topic: end for topic, end in stored.items() if topic in tables}
        if is_settled:
            for topic, now in self._destination.service.ends(stored).items():
                before = stored[topic].offsets if stored[topic].id in ("", now.id) else {}
                if more := self._records(topic, before, now.offsets, on_wait):
                    self._coverage.mark(
                        tables[topic],
                        f"has {more:,} records in topic {topic} that were written while the relay was "
                        "stopped: another producer or relay wrote to it",
                        ENDS,
                        has_extra=True,
                    )
            self._coverage.seen(ENDS)
        # The relay is about to send. The file stays, so that its loss is noticed.
        self._write(stored, is_settled=False)

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

    def _write(self, ends: dict[str, TopicEnd], *, is_settled: bool) -> None:
        try:
            private_parent(self._path)
            write_durably(self._path, json.dumps({"is_settled": is_settled, "topics": ends}))
        except OSError as error:
            raise file_failed(f"{self._path} can't be written", error) from error
        self._now = ends

    def _stored(self) -> tuple[dict[str, TopicEnd], bool]:
        """Return the stored ends, and whether the run that stored them had no message in flight."""
        try:
            data: dict[str, Any] = json.loads(self._path.read_text(encoding="utf-8"))
            if "is_settled" not in data:
                # An earlier version stored settled ends only, and no ids.
                data = {"is_settled": True, "topics": {topic: ("", ends) for topic, ends in data.items()}}
            ends = {
                topic: TopicEnd(str(id), {int(number): int(end) for number, end in offsets.items()})
                for topic, (id, offsets) in data["topics"].items()
            }
            return ends, bool(data["is_settled"])
        except FileNotFoundError:
            return {}, False
        except OSError as error:
            raise file_failed(f"{self._path} can't be read", error) from error
        except (ValueError, KeyError, TypeError, AttributeError):
            self._coverage.mark_all(
                "may have records that another producer wrote while the relay was stopped: "
                f"{self._path} is damaged"
            )
            return {}, False
