"""The JSON blocks of a recording: its source, its routes, its gaps, and changes of the relay's status."""

import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from bwtui.errors import RefusedError, StateFailed
from bwtui.model.lsn import format_lsn
from bwtui.model.status import ErrorEntry, Status
from bwtui.recording.format.batch import LARGEST_ORDINAL
from bwtui.relay.routes.route import TableRoute
from bwtui.settings import RelaySettings
from bwtui.source.preflight import PreflightState

_SECONDS = 1.0
_IDLE_SECONDS = 60.0
#: Fields that are in the recording elsewhere, or too long.
_LEFT_OUT = frozenset({"tables", "errors", "latency_minute", "latency_since_start"})
#: Fields that change although nothing happens. The recording itself grows with every status that is written.
_RESTLESS = frozenset(
    {
        "exactly_once",
        "latency",
        "time",
        "cpu_seconds",
        "resident_bytes",
        "wal_lag_seconds",
        "recording",
        "verdict",
        "reason",
    }
)
#: Fields that assess a running relay.
_WHILE_IT_WORKS = frozenset({"verdict", "reason", "outages"})
#: Fields of an ERROR block; older versions refuse additional ones.
_ERROR = ("time", "kind", "table", "message", "hint", "count")
#: Fields of an outage in a status, and the maximum number of outages.
_OUTAGE, _OUTAGES = ("kind", "table", "message", "since", "until"), 20


class StatusSchedule:
    """Decides when to write a status: once a second while something happens, otherwise once a minute."""

    def __init__(self) -> None:
        self.source: Callable[[], Status] | None = None
        self._looked_at = self._written_at = float("-inf")
        self._last: dict[str, Any] = {}
        self._recorded: dict[str, Any] = {}

    def due(self) -> dict[str, Any] | None:
        """Return the status to write now, or None."""
        now = time.monotonic()
        if self.source is None or now - self._looked_at < _SECONDS:
            return None
        self._looked_at, self._recorded = now, recorded_status(self.source())
        return self._changed(self._recorded, now)

    def last(self) -> dict[str, Any] | None:
        """Return the last status if anything has changed since the previous one, or None.

        The assessment of a running relay keeps its previous values, since the relay is ending.
        """
        if self.source is None:
            return None
        status = recorded_status(self.source())
        status |= {name: self._recorded[name] for name in _WHILE_IT_WORKS & self._recorded.keys()}
        return self._changed(status, time.monotonic())

    def _changed(self, status: dict[str, Any], now: float) -> dict[str, Any] | None:
        # A stall is part of the verdict, whose other figures change all the time.
        stalled = status["verdict"]["condition"] == "stalled"
        lasting = {name: value for name, value in status.items() if name not in _RESTLESS}
        lasting["stalled"] = stalled
        # Write once that nothing is measured any more.
        lasting["measured"] = bool(status["latency"])
        if lasting == self._last and now - self._written_at < _IDLE_SECONDS:
            return None
        self._written_at, self._last = now, lasting
        return status

    def forget(self) -> None:
        """Write the next status in any case: a new segment begins with the current status."""
        self._written_at = float("-inf")


def recorded_status(status: Status) -> dict[str, Any]:
    """Return the content of a STATUS block.

    Older versions refuse a state that they don't know, so ``state`` is the phase, and a stall is only in the
    verdict. They ignore ``outages``, the periods of errors.
    """
    content = {name: value for name, value in status.to_json().items() if name not in _LEFT_OUT}
    # Older versions read the verdict from this field.
    content["verdict"] = content.pop("verdict_details")
    if status.state == "stalled":
        content["state"] = status.phase or "streaming"
    content["outages"] = [
        {name: getattr(entry, name) for name in _OUTAGE}
        for entry in [entry for entry in status.errors if entry.since is not None][-_OUTAGES:]
    ]
    return content


def error_json(entry: ErrorEntry) -> dict[str, Any]:
    """Return the content of an ERROR block: the fields of the first version, which refuses any other."""
    return {name: getattr(entry, name) for name in _ERROR}


def recording_source(
    status: Status, findings: PreflightState, settings: RelaySettings, cluster: str
) -> dict[str, Any]:
    """Return where a recording comes from, for the HEAD of its segments; it contains no passwords."""
    return {
        "database": findings.database,
        "server": status.database,
        "system_identifier": findings.system_identifier,
        "server_version": findings.server_version,
        "slot": settings.slot,
        "publication": settings.publication_name,
        "broker": status.broker,
        "cluster": cluster,
        "registry": status.registry,
        "output_format": settings.output_format,
        "topic_prefix": settings.topic_prefix,
        "headers": settings.headers,
        "bwtui": version("bwtui"),
    }


def route_json(number: int, route: TableRoute) -> dict[str, Any]:
    """Return the content of a ROUTE block."""
    return {
        "route": number,
        "relation": route.relation.oid,
        "table": route.relation.qualified_name,
        "topic": route.topic,
        "key_columns": route.key_columns,
        "key_schema_id": route.key_schema_id,
        "value_schema_id": route.value_schema_id,
    }


def gap_json(since: int, until: int) -> dict[str, Any]:
    """Return the EVENT for a gap."""
    return {"event": "gap", "from_lsn": since, "to_lsn": until}


def gap_error(since: int, until: int, cut: int = 0) -> RefusedError:
    """Return the notice for a gap; ``cut`` is the number of bytes that were cut off a torn end."""
    says = f"the recording lacks changes relayed from {format_lsn(since)} to {format_lsn(until)}"
    if cut:
        return RefusedError(
            f"{says}: its last file was shortened after it was written, and the torn {cut} bytes at its end "
            "were cut off",
            "stop the relay, and restore the recording's files from a copy; without one, these changes stay "
            "missing in the recording, and are in Kafka alone",
        )
    return RefusedError(
        says, "the relay ran without --record, its recording could not be written, or its slot was lost"
    )


def late_beginning(start_lsn: int) -> RefusedError:
    """Return the notice for a recording that does not begin with a snapshot."""
    return RefusedError(
        f"the recording begins at {format_lsn(start_lsn)} without a snapshot: it lacks everything "
        "before that",
        "use a new slot to record the existing rows of the tables as well",
    )


def another_history(recorded: int, until: int) -> RefusedError:
    """Return the error for changes recorded up to ``recorded`` that the server has only up to ``until``."""
    return RefusedError(
        f"the recording holds changes up to {format_lsn(recorded)}, but this server's history has them only "
        f"up to {format_lsn(until)}",
        "record into a different folder",
    )


def past_numbering(subject: str) -> StateFailed:
    """Return the error for a recording without numbers left for ``subject``."""
    hint = "relay these without --record, then start again with --record"
    return StateFailed(f"a recording can't number more than {LARGEST_ORDINAL:,} {subject}", hint)


def torn_end(cut: int) -> RefusedError:
    """Return the notice that ``cut`` bytes after a crash were cut off."""
    return RefusedError(
        f"a crash tore the recording's end: {cut} bytes were cut off",
        "no action needed: none of it was confirmed, so the relay reads and records it again",
    )
