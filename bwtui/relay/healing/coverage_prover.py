"""Closing gaps: ``bwtui repair`` compares the tables that are not proven while the relay runs.

It has the relay send the keys that differ, tombstones included, and compares once more. A table that it can't
prove, such as one without a key whose rows are missing, stays "not proven" with the command that helps.
"""

import logging
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from bwtui.model.backfill_texts import snapshot_command
from bwtui.model.events import event
from bwtui.model.gaps import named
from bwtui.relay.healing.heal import RepairCommand
from bwtui.relay.history.coverage_ledger import CoverageLedger
from bwtui.relay.process.control import name_if_several
from bwtui.relay.state.run_state import RunState

_log = logging.getLogger(__name__)
#: Interval of checks for something to compare; initial and maximum pause after failures (seconds).
_LOOK_SECONDS, _PAUSE_SECONDS, _MOST_SECONDS = 0.5, 2.0, 300.0
_END_SECONDS = 20.0
_FEW_FAILURES, _MOST_FAILURES = 3, 10
_KEYLESS = (
    "has records without a key in topic {}, from before it had one or from another producer: no message "
    "replaces them; if the topic is deleted, the relay sends the table again"
)
#: The maximum number of tables of one command: Linux refuses more than 2 MiB of arguments.
_TABLES = 500


class CoverageProver:
    """Compares tables that are not proven, in its own thread, while the relay streams."""

    def __init__(
        self,
        relay: str,
        ledger: CoverageLedger,
        may_compare: Callable[[], bool],
        ensure_topics: Callable[[Sequence[str]], None],
        delete_command: Callable[[str], str],
        report: RunState,
        *,
        gives_up: bool,
    ) -> None:
        """``may_compare`` returns whether the relay streams and nothing else compares.

        ``ensure_topics`` creates missing topics of the given tables; it may raise. ``delete_command`` returns
        the command that deletes a topic. ``gives_up``: after few failures the repair is left to a person,
        since the relay has to end on its own.
        """
        self._delete_command = delete_command
        self._gives_up = gives_up
        self._ensure_topics = ensure_topics
        self._relay = relay
        self._ledger = ledger
        self._may_compare = may_compare
        self._report = report
        self._stop = threading.Event()
        self._command = RepairCommand(relay)
        #: Number of consecutive failed comparisons of each table.
        self._failures: Counter[str] = Counter()
        #: Tables whose last comparison was not possible, as in an outage; that proves nothing about them.
        self._not_compared: set[str] = set()
        self._thread = threading.Thread(target=self._run, name="proving", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def interrupt(self) -> None:
        """Interrupt a comparison without waiting for its end."""
        self._stop.set()
        self._command.interrupt()

    def close(self) -> None:
        """Interrupt a comparison and wait for its end."""
        self.interrupt()
        if self._thread.is_alive():
            self._thread.join(_END_SECONDS)
            self._command.signal(signal.SIGKILL)

    def _run(self) -> None:
        pause, tried_at = _PAUSE_SECONDS, time.monotonic()
        while not self._stop.wait(_LOOK_SECONDS):
            tables = self._ledger.to_compare()
            if not tables and time.monotonic() - tried_at > _MOST_SECONDS:
                tables = self._open()
            if not tables:
                self._report.comparison = ""
            if not tables or not self._may_compare():
                continue
            remaining = self._try(tables)
            tried_at = time.monotonic()
            if len(remaining) < len(tables) or self._gives_up_on(remaining):
                pause = _PAUSE_SECONDS
            if remaining:
                self._stop.wait(pause)
                pause = min(2 * pause, _MOST_SECONDS)

    def _open(self) -> list[str]:
        """Return the tables to compare, including those given up because they could not be compared."""
        return self._ledger.to_compare(self._not_compared)

    def _try(self, tables: list[str]) -> list[str]:
        """Compare ``tables``; return those that still have to be compared."""
        try:
            for at in range(0, len(tables), _TABLES):
                self._prove(tables[at : at + _TABLES])
        except Exception:
            _log.warning("a comparison failed", exc_info=True, extra=event("comparison_failed"))
            self._report.comparison = "the last comparison failed and will be repeated: see the relay's log"
            self._not_compared.update(tables)
        still_open = self._open()
        remaining = [table for table in tables if table in still_open]
        self._failures = Counter({table: self._failures[table] + 1 for table in remaining})
        return remaining

    def _prove(self, tables: list[str]) -> None:
        """Compare ``tables``; if that is not clean, compare each half of them.

        This way a table that differs or can't be read does not prevent the proof of another one.
        """
        half = len(tables) // 2
        if not self._compare(tables) and half and self._may_compare():
            self._prove(tables[:half])
            self._prove(tables[half:])

    def _gives_up_on(self, tables: list[str]) -> bool:
        """Leave tables that failed too often to a person; return whether there are any."""
        most = _FEW_FAILURES if self._gives_up else _MOST_FAILURES
        abandoned = [table for table in tables if self._failures[table] > most]
        if abandoned:
            self._ledger.record_unprovable(abandoned, f"bwtui repair --relay {self._relay}")
            for table in abandoned:
                del self._failures[table]
        return bool(abandoned)

    def _compare(self, tables: list[str]) -> bool:
        """Compare and repair ``tables``; return whether none has to be compared any more.

        The command itself reports to the relay which tables it has proven.
        """
        self._report_progress(tables, "the comparison begins")
        self._ensure_topics(tables)
        chosen = [f"--table={re.escape(table)}" for table in tables]
        code, result, lines = self._command.run(
            ["--lost-slot", *chosen], lambda detail: self._report_progress(tables, detail)
        )
        if self._stop.is_set():
            return True
        # A command that failed has no result.
        (self._not_compared.difference_update if result else self._not_compared.update)(tables)
        untrusted = [str(table) for table in result.get("untrusted", ())]
        if untrusted:
            self._give_up(untrusted, result)
        if not set(tables).intersection(self._open()):
            return True
        differs = "the table still differs" if len(tables) == 1 else "the tables still differ"
        silent = differs if code == 1 else f"it ended with exit code {code}"
        reason = lines[-1] if lines else silent
        self._report_progress(tables, f"the comparison was not clean and will be repeated: {reason}")
        text = "the comparison of %d tables was not clean and will be repeated: %s"
        _log.info(text, len(tables), reason, extra=event("comparison_failed"))
        return False

    def _report_progress(self, tables: list[str], detail: str) -> None:
        self._report.comparison = f"{named(tables)}: {detail}"

    def _give_up(self, tables: list[str], result: dict[str, Any]) -> None:
        for one in result["tables"]:
            if one["without_key"] and one["table"] in tables:
                # A snapshot adds rows, and removes no record.
                tables.remove(one["table"])
                self._ledger.record_unprovable(
                    [one["table"]], self._delete_command(one["topic"]), _KEYLESS.format(one["topic"])
                )
        unkeyed = any(one["unkeyed"] for one in result["tables"] if one["table"] in tables)
        self._ledger.record_unprovable(
            tables, snapshot_command(tables, relay=name_if_several(self._relay), unkeyed=unkeyed)
        )
