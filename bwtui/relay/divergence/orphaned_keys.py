"""List the keys that Kafka has from a failed primary and that the promoted standby lacks.

A separate thread reads them from the topics, using the headers of --headers. With --heal the relay re-sends
the current rows of these keys, or tombstones. Otherwise ``bwtui repair`` takes them back.
"""

import contextlib
import logging
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from bwtui.blocking import StopRequested
from bwtui.encode.local_registry import LocalRegistry
from bwtui.encode.registry import SchemaRegistry
from bwtui.errors import BwtuiError, ConnectionFailed, RefusedError
from bwtui.kafka.config import client_config
from bwtui.kafka.offsets import pin
from bwtui.kafka.recent_records import RecentRecord, RecentRecordReader, RecentRecords
from bwtui.model.backfill import BackfillRequest
from bwtui.model.events import event
from bwtui.model.lsn import format_lsn
from bwtui.relay.backfill.keys import write_keys
from bwtui.relay.divergence.divergence import Divergence, Divergences
from bwtui.relay.run_state import RunState
from bwtui.settings import RelaySettings

if TYPE_CHECKING:
    from bwtui.audit.decoding import Schemas

_log = logging.getLogger(__name__)
_AGAIN_SECONDS = 5.0
_CLOSE_SECONDS = 3.0
_REPAIR = "'bwtui repair' compares topics with tables and fixes the differences"

#: Submits a request to re-send rows; see `bwtui.relay.backfill.store.BackfillStore.submit`.
Submit = Callable[[BackfillRequest], str]


class OrphanedKeys:
    """Lists the orphaned keys of one relay; the main thread calls `note` and `begin`."""

    def __init__(
        self,
        settings: RelaySettings,
        report: RunState,
        folder: Path,
        submit: Submit,
        registry: SchemaRegistry | LocalRegistry,
        compare: Callable[[str, int], None],
    ) -> None:
        """``compare`` starts a comparison of all tables; its arguments are the reason and the fork's LSN."""
        self._settings = settings
        self._report = report
        self._folder = folder
        self._divergences = Divergences(folder, settings.slot)
        self._submit = submit
        self._registry = registry
        self._compare = compare
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def note(self, since: int, until: int, timeline: int, ask: Callable[[Callable[[], Any]], Any]) -> None:
        """Record where topics end, before anything from the server whose history lacks those changes is sent.

        ``ask`` makes a call to Kafka and retries until it succeeds. Raises StateFailed.
        """
        if self._settings.record_only:
            return
        tables = {counters.topic: name for name, counters in self._report.tables.items() if counters.topic}
        ends: dict[str, dict[str, int]] = {}
        with contextlib.suppress(RefusedError):
            # Kafka refuses this if no topic exists at all.
            pinned = ask(lambda: pin(client_config(self._settings), tables, some_may_lack=True))
            for (topic, number), (_, high) in pinned.offsets.items():
                ends.setdefault(topic, {})[str(number)] = high
        one = Divergence(self._settings.slot, since, until, timeline, ends, tables)
        self._divergences.keep(one)
        if self._settings.heal and not self._settings.headers:
            # Without headers the keys can't be determined, but a comparison finds every difference.
            self._compare(f"the new primary lacks changes sent from {one.range}", since)

    def begin(self) -> None:
        """List the keys that are not listed yet, in a thread; do nothing if there are none."""
        if self.is_at_work:
            return
        try:
            if not self._divergences.unnamed():
                return
        except BwtuiError as error:
            self._report.error("notice", error)
            return
        self._thread = threading.Thread(target=self._run, name="naming", daemon=True)
        self._thread.start()

    @property
    def is_at_work(self) -> bool:
        """Whether keys are still being listed, so that requests to re-send rows may follow."""
        return self._thread is not None and self._thread.is_alive()

    def close(self) -> None:
        """Wait a few seconds for the thread to end; if it does not, the next run continues."""
        if self._thread is not None:
            self._thread.join(timeout=_CLOSE_SECONDS)
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                for one in self._divergences.unnamed():
                    self._name(one)
                return
            except StopRequested:
                return
            except ConnectionFailed as error:
                text = "keys changed after the fork can't be listed yet: %s"
                _log.warning(text, error.message, extra=event("diverged"))
                self._stop.wait(_AGAIN_SECONDS)
            except BwtuiError as error:
                self._report.error("notice", error)
                return

    def _name(self, one: Divergence) -> None:
        from bwtui.audit.decoding import Schemas

        reader = RecentRecordReader(client_config(self._settings), self._stop.is_set)
        tails: dict[str, RecentRecords] = {}
        try:
            for topic, ends in one.ends.items():
                numbered = {int(number): end for number, end in ends.items()}
                tails[topic] = reader.sent_since(topic, numbered, one.since)
        finally:
            reader.close()
        schemas = Schemas({}, self._schema_text)
        named = [
            _named(one.tables[topic], topic, key, sent, schemas)
            for topic, tail in tails.items()
            for key, sent in tail.sent.items()
        ]
        path = self._divergences.name(one, named)
        taken_back = self._take_back(named) if self._settings.heal else set()
        self._report_keys(one, tails, named, path, taken_back)
        self._divergences.end(one)

    def _schema_text(self, number: int) -> str | None:
        return self._registry.schema_text(number) if isinstance(self._registry, SchemaRegistry) else None

    def _take_back(self, named: list[dict[str, Any]]) -> set[str]:
        """Re-send the keys of each table; return the tables for which all keys are re-sent."""
        lists: dict[str, list[tuple[str, ...] | None]] = {}
        for one in named:
            lists.setdefault(one["table"], []).append(_texts(one["key"]))
        done: set[str] = set()
        for table, keys in lists.items():
            try:
                self._send_in_turn(table, [key for key in keys if key is not None])
                done |= {table} if None not in keys else set()
            except BwtuiError as error:
                self._report.error("notice", error)
        return done

    def send_again(self, table: str, keys: Iterable[bytes]) -> int:
        """Re-send the current rows of message ``keys``, or tombstones; any thread may call it.

        Return the number of keys that can't be looked up in PostgreSQL, which are not sent. Raises
        BwtuiError.
        """
        from bwtui.audit.decoding import Schemas

        schemas = Schemas({}, self._schema_text)
        unknown = 0

        def known() -> Iterator[tuple[str, ...]]:
            nonlocal unknown
            for key in keys:
                if (texts := _texts(_values(key, schemas))) is not None:
                    yield texts
                else:
                    unknown += 1

        self._send(table, known())
        return unknown

    def _send_in_turn(self, table: str, keys: list[tuple[str, ...]]) -> None:
        """Re-send keys, after an earlier request of the table has ended.

        That may be this request, if a relay was killed before it marked the divergence as done. Raises
        StopRequested and StateFailed.
        """
        while True:
            try:
                return self._send(table, keys)
            except RefusedError as error:
                _log.info("keys after the fork are sent later: %s", error, extra=event("diverged"))
            if self._stop.wait(_AGAIN_SECONDS):
                raise StopRequested

    def _send(self, table: str, keys: Iterable[tuple[str, ...]]) -> None:
        path = self._folder / f"again-{secrets.token_hex(4)}.keys"
        try:
            write_keys(path, keys)
            self._submit(BackfillRequest(table, keys=str(path), reason="heal"))
        finally:
            path.unlink(missing_ok=True)

    def _report_keys(
        self,
        one: Divergence,
        tails: dict[str, RecentRecords],
        named: list[dict[str, Any]],
        path: Path,
        taken_back: set[str],
    ) -> None:
        counts = Counter(key["table"] for key in named)
        whose = ", ".join(f"{count:,} of {table}" for table, count in sorted(counts.items()))
        unknown = sorted(one.tables[topic] for topic, tail in tails.items() if tail.unknown or tail.keyless)
        text = f"the new primary lacks changes sent from {one.range}"
        if whose:
            affected = f"{text}; affected keys: {whose}, listed in {path}"
            is_done = not counts.keys() - taken_back
            hint = "no action needed: the relay re-sends their current rows" if is_done else _REPAIR
            self._notice(affected, hint)
        if unknown:
            undetermined = (
                f"{text}; the affected keys can't be determined for {', '.join(unknown)}: their "
                "records have no headers or no key"
            )
            self._notice(undetermined, f"{_REPAIR}; with --headers the relay lists the keys")
        if not whose and not unknown:
            self._notice(f"{text}; no key in the topics is affected", "no action needed")

    def _notice(self, text: str, hint: str) -> None:
        _log.warning("%s", text, extra=event("diverged", hint=hint))
        self._report.error("notice", RefusedError(text, hint))


def _named(table: str, topic: str, key: bytes, sent: RecentRecord, schemas: "Schemas") -> dict[str, Any]:
    """Return a key as a JSON object; its bytes are always included, since they may not decode."""
    return {
        "table": table,
        "topic": topic,
        "key": _values(key, schemas),
        "bytes": key.hex(),
        "operation": sent.operation,
        "lsn": format_lsn(sent.lsn),
        "partition": sent.partition,
        "offset": sent.offset,
        "tombstone": sent.is_tombstone,
    }


def _values(key: bytes, schemas: "Schemas") -> dict[str, Any] | None:
    """Return the columns of a key; None if its bytes can't be decoded."""
    from bwtui.audit.canonical_values import decode_key
    from bwtui.audit.decoding import UndecodableMessage

    try:
        return {name: _plain(value) for name, value in decode_key(key, schemas)[0].values.items()}
    except UndecodableMessage:
        return None


def _plain(value: object) -> Any:
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, UUID):
        return str(value)
    # A list is never a key's value: its content is for people only.
    return value if value is None or isinstance(value, str | int | float) else [repr(value)]


def _texts(key: dict[str, Any] | None) -> tuple[str, ...] | None:
    """Return a key as PostgreSQL writes its columns; None if that is uncertain."""
    if key is None or not all(isinstance(value, str | int) for value in key.values()):
        return None
    return tuple(_text(value) for value in key.values())


def _text(value: str | int) -> str:
    # In Python, bool is a subclass of int.
    return ("f", "t")[value] if isinstance(value, bool) else str(value)
