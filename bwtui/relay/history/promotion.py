"""Promotions: prepare the slot, refuse a former primary, and list the keys that the new primary lacks.

Before one, `FailoverSlot` has standbys synchronize the slot. A slot that bwtui creates becomes a failover
slot. An existing slot is somebody's decision, so it stays as it is unless several hosts are named, or
--failover is given: the server sends nothing to a failover slot while a standby of
synchronized_standby_slots is down.

After one, a former primary may still accept writes: `connect_to_newest` waits for it to go away. Topics may
hold more than the new primary. A small file in the relay's state folder, written before anything is read from
the new primary, records where topics end at that time (`Divergence`): the commits among those records that
lie after the fork are not in the new primary's history. A separate thread reads their keys from the topics,
using the headers of --headers (`OrphanedKeys`), and stores them next to it, one JSON object per line. Only
the owner can read that file, because keys are values of rows. With --heal the relay re-sends the current rows
of these keys, or tombstones. Otherwise ``bwtui repair`` takes them back.
"""

import contextlib
import json
import logging
import re
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from psycopg import pq

from bwtui.blocking import StopRequested
from bwtui.durable_files import private_parent, write_durably
from bwtui.encode.registry import LocalRegistry, SchemaRegistry
from bwtui.errors import BwtuiError, ConnectionFailed, RefusedError, StateFailed
from bwtui.file_errors import file_failed
from bwtui.kafka.client import client_config
from bwtui.kafka.key_reader import RecentRecord, RecentRecordReader, RecentRecords
from bwtui.kafka.scan import pin
from bwtui.model.backfill import BackfillRequest
from bwtui.model.events import event
from bwtui.model.from_json import from_json_object
from bwtui.model.lsn import format_lsn
from bwtui.relay.history.backfill_store import write_keys
from bwtui.relay.history.slot_checkpoint import SlotCheckpointStore
from bwtui.relay.state.run_state import RunState
from bwtui.settings import RelaySettings
from bwtui.source.connection import Connection, connect
from bwtui.source.hosts import names_several
from bwtui.source.raw_session import ServerError, execute_raw
from bwtui.source.raw_stream import ServerIdentity, primary_timeline
from bwtui.source.slot import SlotState, make_failover, server_and_database
from bwtui.state_folder import state_folder

if TYPE_CHECKING:
    from bwtui.audit.canonical_values import Schemas


_log = logging.getLogger(__name__)
_AWAITED_SQL = "select pg_catalog.current_setting('synchronized_standby_slots', true)"


class FailoverSlot:
    """Makes the slot a failover slot; there is one object per run, which stops trying after one failure."""

    def __init__(self) -> None:
        self._is_new = False
        self._was_refused = False

    def is_requested(
        self,
        settings: RelaySettings,
        checkpoint: SlotCheckpointStore,
        server: ServerIdentity,
        slot: SlotState,
    ) -> bool:
        """Return whether to make ``slot`` a failover slot; call it before `SlotCheckpointStore.take_over`."""
        # If a session ends before it could convert a new slot, the next session still treats the slot as new.
        self._is_new = self._is_new or checkpoint.is_unread
        if slot.failover is not False or server.in_recovery or self._was_refused:
            return False
        if settings.failover is not None:
            return settings.failover
        return self._is_new or names_several(settings.postgres)

    def make(self, connection: pq.abc.PGconn, name: str, report: RunState) -> None:
        """Make slot ``name`` a failover slot. A refusal is reported, and the stream continues without.

        Raises ConnectionFailed if the session ended because of the command: a proxy, or the server, may end
        every session that sends it.
        """
        try:
            awaited = execute_raw(connection, _AWAITED_SQL)[0][0]
        except ServerError as error:
            raise ConnectionFailed(error.message, "check PostgreSQL's log") from error
        # Set this first: if this attempt fails in whatever way, the next one would fail in the same way.
        self._was_refused = True
        try:
            make_failover(connection, name)
        except ServerError as error:
            note = f"slot {name} can't be made a failover slot: {error.message}"
            hint = "a promoted standby will lack the slot; --no-failover leaves the slot unchanged"
            report.error("notice", RefusedError(note, hint))
            if connection.status != pq.ConnStatus.OK:
                raise ConnectionFailed(error.message, "check PostgreSQL's log") from error
            return
        self._was_refused = False
        text = "slot %s is now a failover slot: standbys synchronize it"
        _log.info(text, name, extra=event("failover_slot"))
        if awaited:
            note = f"slot {name} is now a failover slot: it receives nothing while a standby of "
            note += f"synchronized_standby_slots ({awaited}) is down"
            hint = (
                "'bwtui doctor' shows which standby is down; remove its slot from the setting until "
                "it is back"
            )
            report.error("notice", RefusedError(note, hint))


_FORMER_SECONDS = 1.0


def refuse_former(settings: RelaySettings, checkpoint: SlotCheckpointStore, timeline: int) -> None:
    """Raise ConnectionFailed for a server from before a promotion, if several hosts are configured."""
    last = checkpoint.last
    if last is None or timeline >= last.timeline or settings.accept_divergence:
        return
    if names_several(settings.postgres):
        raise ConnectionFailed(
            f"a former primary answered: it is on timeline {timeline}, but this relay was on timeline "
            f"{last.timeline}",
            "make it a standby of the new primary, for which the relay waits; or follow it anyway with "
            "--accept-divergence",
        )


def connect_to_newest(
    settings: RelaySettings, report: RunState, on_wait: Callable[[str], None]
) -> Connection:
    """Connect, and retry while a former primary answers: the state of its slot is meaningless.

    ``on_wait`` gets a description of the wait, and may raise. Raises ConnectionFailed and StateFailed.
    """
    while True:
        connection = connect(settings.postgres)
        try:
            with contextlib.ExitStack() as closing:
                closing.callback(connection.close)
                _check_timeline(settings, connection)
                closing.pop_all()
                return connection
        except ConnectionFailed as error:
            report.error("outage", error, dependency="PostgreSQL")
            on_wait(f"waiting for PostgreSQL: {error.message}")
            time.sleep(_FORMER_SECONDS)


def _check_timeline(settings: RelaySettings, connection: Connection) -> None:
    timeline = primary_timeline(connection) if names_several(settings.postgres) else None
    if timeline is not None:
        folder = state_folder(settings.relay_name)
        checkpoint = SlotCheckpointStore(
            folder, *server_and_database(connection), settings.slot, drop=settings.drop_command
        )
        refuse_former(settings, checkpoint, timeline)


_FOLDER = "diverged"
_NOT_IN_NAMES = re.compile(r"[^0-9A-Fa-f]")


@dataclass(frozen=True, slots=True)
class Divergence:
    """One promotion."""

    slot: str
    #: The LSN of the fork, and the LSN up to which rows were sent.
    since: int
    until: int
    timeline: int
    #: The end of each topic's partitions, by topic and partition number, and the table of each topic.
    ends: dict[str, dict[str, int]] = field(default_factory=dict)
    tables: dict[str, str] = field(default_factory=dict)
    #: Whether everything that can be determined about its keys is written.
    is_named: bool = False

    @property
    def range(self) -> str:
        """The range of LSNs, for messages."""
        return f"{format_lsn(self.since)} to {format_lsn(self.until)}"


class Divergences:
    """The divergences of one relay's slot."""

    def __init__(self, folder: Path, slot: str) -> None:
        self._folder = folder / _FOLDER
        self._slot = slot

    def keep(self, one: Divergence) -> None:
        """Write the divergence durably. Raises StateFailed."""
        path = self._path(one, "json")
        try:
            private_parent(path)
            write_durably(path, json.dumps(asdict(one)))
        except OSError as error:
            raise file_failed(
                f"the changes that the new primary lacks can't be recorded in {path}", error
            ) from error

    def unnamed(self) -> list[Divergence]:
        """Return the divergences whose keys are not listed yet. Raises StateFailed."""
        unnamed = []
        for path in sorted(self._folder.glob("*.json")):
            try:
                one: Divergence = from_json_object(Divergence, json.loads(path.read_text(encoding="utf-8")))
            except (OSError, ValueError, TypeError) as error:
                raise StateFailed(f"{path} can't be read", "remove it, and run 'bwtui repair'") from error
            if one.slot == self._slot and not one.is_named:
                unnamed.append(one)
        return unnamed

    def name(self, one: Divergence, keys: list[dict[str, Any]]) -> Path:
        """Write the keys durably and return the file's path; `end` marks them as listed.

        Raises StateFailed.
        """
        path = self._path(one, "jsonl")
        try:
            write_durably(path, "".join(json.dumps(key) + "\n" for key in keys))
        except OSError as error:
            raise file_failed(
                f"the changes that the new primary lacks can't be recorded in {path}", error
            ) from error
        return path

    def end(self, one: Divergence) -> None:
        """Mark the divergence as done, durably. Raises StateFailed.

        A relay that is killed before this repeats the work.
        """
        self.keep(replace(one, is_named=True))

    def _path(self, one: Divergence, suffix: str) -> Path:
        lsn = _NOT_IN_NAMES.sub("-", format_lsn(one.since))
        return self._folder / f"{one.slot}-{one.timeline}-{lsn}.{suffix}"


_AGAIN_SECONDS = 5.0
_CLOSE_SECONDS = 3.0
_REPAIR = "'bwtui repair' compares topics with tables and fixes the differences"

#: Submits a request to re-send rows; see `bwtui.relay.history.backfill_store.BackfillStore.submit`.
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

    def note(self, since: int, until: int, timeline: int, call: Callable[[Callable[[], Any]], Any]) -> None:
        """Record where topics end, before anything from the server whose history lacks those changes is sent.

        ``call`` makes a call to Kafka and retries until it succeeds. Raises StateFailed.
        """
        if self._settings.record_only:
            return
        tables = {counters.topic: name for name, counters in self._report.tables.items() if counters.topic}
        ends: dict[str, dict[str, int]] = {}
        with contextlib.suppress(RefusedError):
            # Kafka refuses this if no topic exists at all.
            pinned = call(lambda: pin(client_config(self._settings), tables, some_may_lack=True))
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
        from bwtui.audit.canonical_values import Schemas

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
        from bwtui.audit.canonical_values import Schemas

        schemas = Schemas({}, self._schema_text)
        unknown = 0

        def readable_keys() -> Iterator[tuple[str, ...]]:
            nonlocal unknown
            for key in keys:
                if (texts := _texts(_values(key, schemas))) is not None:
                    yield texts
                else:
                    unknown += 1

        self._send(table, readable_keys())
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
    from bwtui.audit.canonical_values import UndecodableMessage, decode_key

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
