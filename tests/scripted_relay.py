"""The relay's streaming phase over a stream that a test writes; catalog, registry and sink are in memory."""

import contextlib
import struct
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from bwtui.encode.registry import LocalRegistry
from bwtui.pgoutput.messages import Column, Field, Relation
from bwtui.recording.payloads import pack_relation
from bwtui.recording.resume import continue_in
from bwtui.relay.history.slot_checkpoint import SlotCheckpointStore
from bwtui.relay.routes.routing import Router
from bwtui.relay.rows.journal_recorder import JournalRecorder
from bwtui.relay.rows.policy import RowPolicy
from bwtui.relay.rows.recorder import NullRecorder, Recorder
from bwtui.relay.rows.samples import Samples
from bwtui.relay.rows.toast import ToastFiller
from bwtui.relay.state.ack import Acknowledgements
from bwtui.relay.state.run_state import RunState
from bwtui.relay.state.service_retry import ServiceRetry
from bwtui.relay.stream.session import StreamSession
from bwtui.settings import RelaySettings
from bwtui.sink.dead_letters import DeadLetterWriter
from bwtui.source.raw_stream import StreamServer
from tests.faults.doubles import MemorySink
from tests.recorded_stream import SOURCE, tuple_of
from tests.relay_context import relay_context

TEXT = 25


def table(oid: int, name: str, columns: Sequence[str], key: str = "id", identity: str = "f") -> Relation:
    """Return a table of texts, under REPLICA IDENTITY FULL unless ``identity`` differs."""
    made = tuple(Column(column, TEXT, -1, identity == "f" or column == key) for column in columns)
    return Relation(oid, "public", name, identity, made)


class Stream:
    """A double of `ReplicationStream` that returns the test's frames."""

    def __init__(self, frames: deque[bytes]) -> None:
        self.warning = ""
        self.patience = 0.0
        self.arrived_at = 0.0
        self._frames = frames

    def frames(self) -> Iterator[bytes]:
        """Yield the written frames."""
        while self._frames:
            yield self._frames.popleft()

    def read_ahead(self, frames: int, size: int) -> list[bytes]:
        """Do nothing: each route is built when its row comes."""
        return []

    def wait(self, timeout: float) -> bool:
        return bool(self._frames)

    def send_status(self, lsn: int, *, answer: bool = False) -> None:
        """Do nothing: no test checks the confirmed LSN here."""

    def end(self) -> None:
        """Do nothing: no connection is open."""

    def finish(self) -> None:
        """Do nothing: no connection is open."""


class Catalog:
    """A session to PostgreSQL that knows only the columns and keys of ``keys``."""

    description = ("anything",)

    def __init__(self) -> None:
        self.info = SimpleNamespace(parameter_status=lambda name: "UTF8")
        self.closed = 0
        self.keys: dict[int, tuple[Relation, str]] = {}
        self._found: list[tuple[Any, ...]] = []

    @contextlib.contextmanager
    def cursor(self) -> Iterator["Catalog"]:
        yield self

    def execute(self, sql: str, arguments: Any) -> None:
        assert "pg_attribute" in sql, sql
        if arguments[0] not in self.keys:
            self._found = []
            return
        relation, key = self.keys[arguments[0]]
        self._found = [
            (c.name, c.type_oid, -1, False, False, c.name == key, False, c.name == key)
            for c in relation.columns
        ]

    def fetchall(self) -> list[tuple[Any, ...]]:
        return self._found

    def close(self) -> None:
        """Do nothing: no connection is open."""


class CountingRegistry(LocalRegistry):
    """Counts its requests."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def register(self, subject: str, schema: str) -> Any:
        self.asked += 1
        return super().register(subject, schema)


class ScriptedRelay:
    """One run: `play` relays the frames written since the last call, in a session of its own."""

    def __init__(
        self, folder: Path, *, record: bool = True, sink: MemorySink | None = None, **settings: Any
    ) -> None:
        self.folder = folder / "recording"
        self.settings = RelaySettings(record=str(self.folder) if record else "", **settings)
        self.report, self.sink, self.registry = RunState(), sink or MemorySink(), CountingRegistry()
        self.catalog = Catalog()
        self.patience = ServiceRetry(StreamServer(""), self.report, lambda seconds: None)
        self.router = Router(self.settings, self.sink, self.registry, self.report, self.patience)
        self.patience._queries._idle.append(self.catalog)  # type: ignore[arg-type]
        self.recorder: Recorder = NullRecorder()
        if record:
            before = continue_in(self.folder, dict(SOURCE))
            self.recorder = JournalRecorder(self.settings, self.report, bytes(8), dict(SOURCE), before)
        self.context = relay_context(
            settings=self.settings,
            report=self.report,
            sink=self.sink,
            service=self.sink.destination.service,
            destination=self.sink.destination,
            patience=self.patience,
            router=self.router,
            policy=RowPolicy(self.settings, self.report, DeadLetterWriter(folder), self.sink),
            toast=ToastFiller(self.settings, self.patience, lambda seconds: None),
            samples=Samples(),
            checkpoint=SlotCheckpointStore(folder, "1", "test", "test"),
            stop_requested=lambda: not self.frames,
            session=bytes(8),
            recorder=self.recorder,
        )
        self.frames: deque[bytes] = deque()
        self._lsn = 1_000
        self._streaming: StreamSession | None = None

    # -- what PostgreSQL sends -----------------------------------------------------------------------------

    def begin(self) -> None:
        self._lsn += 10
        self._frame(b"B" + struct.pack(">QqI", self._lsn, 0, self._lsn))

    def commit(self) -> None:
        self._frame(b"C" + struct.pack(">BQQq", 0, self._lsn, self._lsn + 5, 0))

    def announce(self, relation: Relation, key: str = "id") -> None:
        self.catalog.keys[relation.oid] = (relation, key)
        self._frame(pack_relation(relation))

    def insert(self, relation: Relation, row: Sequence[Field]) -> None:
        self._frame(b"I" + relation.oid.to_bytes(4, "big") + b"N" + tuple_of(list(row)))

    def update(self, relation: Relation, row: Sequence[Field], old: Sequence[Field] | None = None) -> None:
        before = b"" if old is None else b"O" + tuple_of(list(old))
        self._frame(b"U" + relation.oid.to_bytes(4, "big") + before + b"N" + tuple_of(list(row)))

    def delete(self, relation: Relation, row: Sequence[Field]) -> None:
        kind = b"O" if relation.replica_identity == "f" else b"K"
        self._frame(b"D" + relation.oid.to_bytes(4, "big") + kind + tuple_of(list(row)))

    def truncate(self, *relations: Relation) -> None:
        oids = b"".join(relation.oid.to_bytes(4, "big") for relation in relations)
        self._frame(b"T" + struct.pack(">IB", len(relations), 0) + oids)

    def _frame(self, payload: bytes) -> None:
        self.frames.append(b"w" + struct.pack(">QQq", self._lsn, self._lsn, 0) + payload)

    # -- the relay -----------------------------------------------------------------------------------------

    def connect(self, start_lsn: int = 0) -> None:
        """Begin a session, as after a broken connection."""
        if self._streaming is not None:
            self._streaming.abandon()
        self.recorder.begin_pass("stream", self._lsn)
        self.acks = Acknowledgements(start_lsn, self.recorder)
        self._streaming = StreamSession(self.context, Stream(self.frames), self.acks, None)  # type: ignore[arg-type]

    def play(self) -> None:
        """Relay the frames written since the last call."""
        if self._streaming is None:
            self.connect()
        assert self._streaming is not None
        while self.frames:
            self._streaming._step()

    def close(self) -> None:
        """Stop cleanly."""
        if self._streaming is not None:
            self._streaming.abandon()
        self.recorder.close()
