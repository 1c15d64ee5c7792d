"""The relay's streaming phase, fed with a made-up stream, over a sink double.

`Fed` reads again from the confirmed LSN after a Redrive, as the engine does.
"""

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from bwtui.encode.registry import RegisteredSchema
from bwtui.pgoutput.messages import UNCHANGED, Field
from bwtui.relay.history.slot_checkpoint import SlotCheckpointStore
from bwtui.relay.routes.routing import Router
from bwtui.relay.rows.batch_bisector import RestartFromConfirmed
from bwtui.relay.rows.policy import RowPolicy
from bwtui.relay.rows.samples import Samples
from bwtui.relay.state.ack import Acknowledgements
from bwtui.relay.state.run_state import RunState
from bwtui.relay.state.service_retry import ServiceRetry
from bwtui.relay.stream.session import StreamSession
from bwtui.relay.stream.suspension import SuspensionDetector
from bwtui.settings import RelaySettings
from bwtui.sink.dead_letters import DeadLetterWriter
from bwtui.source.raw_stream import ReplicationStream, StreamServer
from tests.faults.doubles import MemorySink
from tests.relay_context import relay_context
from tests.scripted_relay import Catalog

ITEMS, OTHERS = 16_384, 16_385
_TEXT, _BIGINT = 25, 20


def frame(payload: bytes) -> bytes:
    """Return an XLogData frame."""
    return struct.pack(">cQQq", b"w", 0, 0, 0) + payload


def keepalive(wal_end: int) -> bytes:
    """Return a primary keepalive that requests no reply."""
    return struct.pack(">cQqB", b"k", wal_end, 0, 0)


def relation(oid: int = ITEMS, name: str = "items") -> bytes:
    """Return the relation of a table ``id bigint primary key, body text``."""
    columns = struct.pack(">B3sIi", 1, b"id\0", _BIGINT, -1) + struct.pack(">B5sIi", 0, b"body\0", _TEXT, -1)
    return frame(b"R" + struct.pack(">I", oid) + b"public\0" + name.encode() + b"\0d\0\2" + columns)


def insert(number: int | str, body: str, oid: int = ITEMS) -> bytes:
    """Return an INSERT."""
    return frame(b"I" + struct.pack(">I", oid) + b"N" + _tuple(str(number).encode(), body.encode()))


def update(number: int, body: str | None, oid: int = ITEMS, old: int | None = None) -> bytes:
    """Return an UPDATE; a ``body`` of None is an unchanged TOAST value, ``old`` the previous key."""
    value = UNCHANGED if body is None else body.encode()
    key = b"" if old is None else b"K" + _tuple(str(old).encode(), None)
    return frame(b"U" + struct.pack(">I", oid) + key + b"N" + _tuple(str(number).encode(), value))


def truncate(*oids: int) -> bytes:
    """Return the TRUNCATE of several tables."""
    return frame(b"T" + struct.pack(">IB", len(oids), 0) + b"".join(struct.pack(">I", oid) for oid in oids))


def _tuple(*fields: Field) -> bytes:
    parts = [struct.pack(">H", len(fields))]
    for field in fields:
        if isinstance(field, bytes):
            parts.append(b"t" + struct.pack(">I", len(field)) + field)
        else:
            parts.append(b"n" if field is None else b"u")
    return b"".join(parts)


def transaction(lsn: int, *changes: bytes) -> list[bytes]:
    """A transaction that commits at ``lsn``; the next one begins at ``lsn + 8``."""
    begin = frame(b"B" + struct.pack(">QqI", lsn, 0, lsn))
    return [begin, *changes, frame(b"C" + struct.pack(">BQQq", 0, lsn, lsn + 8, 0))]


class FedStream:
    """A `bwtui.source.raw_stream.ReplicationStream` that holds all its frames from the beginning."""

    warning = ""
    patience = 0.0
    arrived_at = 0.0

    def __init__(self, frames: Iterable[bytes]) -> None:
        self._frames = iter(frames)
        self.confirmed = 0

    def frames(self) -> Iterator[bytes]:
        """Yield the remaining frames."""
        return self._frames

    def read_ahead(self, frames: int, size: int) -> list[bytes]:
        """Do nothing: each route is built when its first row arrives."""
        return []

    def wait(self, timeout: float) -> bool:
        """Report that nothing more arrives."""
        return False

    def send_status(self, lsn: int, *, answer: bool = False) -> None:
        """Record a confirmation."""
        self.confirmed = lsn

    def end(self) -> None:
        """End the stream cleanly."""

    def finish(self) -> None:
        """End the stream at once."""


class _Registry:
    def register(self, subject: str, schema: str) -> RegisteredSchema:
        return RegisteredSchema(subject, 1, 1, schema)


class _Patience(ServiceRetry):
    def query(self, query: Callable[[Any], Any]) -> Any:
        """A catalog without these tables."""
        return query(Catalog())


class Fed:
    """A relay of transactions, each a list of frames; it writes JSON unless ``settings`` override that."""

    def __init__(
        self, sink: MemorySink, folder: Path, transactions: Sequence[list[bytes]], **settings: Any
    ) -> None:
        self._transactions = transactions
        chosen = RelaySettings(**{"output_format": "json", "on_error": "log", **settings})
        self.sink, self.report, self.settings = sink, RunState(), chosen
        self.letters = DeadLetterWriter(folder)
        self.redrives = 0
        self.suspension: SuspensionDetector | None = None
        #: The stream of the current or last session.
        self.stream = FedStream([])
        self._streaming: StreamSession | None = None
        self.is_stopped = False
        patience = _Patience(StreamServer(""), self.report, lambda seconds: None)
        router = Router(chosen, sink, cast(Any, _Registry()), self.report, patience)
        # The column was dropped since, so the value can't be fetched and gets a placeholder.
        toast = SimpleNamespace(
            fill=lambda route, update, ahead: self._wait_and_return(list(update.new)), values={}
        )
        self._context = relay_context(
            settings=chosen,
            report=self.report,
            sink=sink,
            service=sink.destination.service,
            destination=sink.destination,
            patience=patience,
            router=router,
            policy=RowPolicy(chosen, self.report, self.letters, sink),
            toast=cast(Any, toast),
            samples=Samples(),
            checkpoint=SlotCheckpointStore(folder, "1", "test", "fed"),
            stop_requested=lambda: self.is_stopped,
            session=bytes(8),
        )
        self.confirmed = 0

    def _wait_and_return(self, row: Sequence[Field]) -> list[Field]:
        assert self._streaming is not None
        self._streaming.pulse(0.01)
        return list(row)

    def run(self, careful_until: int = 0) -> None:
        """Relay everything, reading again after each Redrive."""
        end = max(_end(frames) for frames in self._transactions)
        for _ in range(100):
            acks = Acknowledgements(self.confirmed)
            rest = [frames for frames in self._transactions if _end(frames) > self.confirmed]
            announced = [relation(), relation(OTHERS, "others")]
            self.stream = FedStream([*announced, *(frame for frames in rest for frame in frames)])
            streaming = StreamSession(
                self._context,
                cast(ReplicationStream, self.stream),
                acks,
                end,
                suspension=self.suspension,
                careful_until=careful_until,
            )
            self._streaming = streaming
            try:
                streaming.run()
                return
            except RestartFromConfirmed:
                self.redrives += 1
                while not self.sink.flush(0.1):
                    pass
                acks.advance()
                self.sink.discard(in_order=True)
                careful_until = max(self.report.received_lsn, streaming.begun_lsn) + 1
            finally:
                self.confirmed = acks.confirmed
                streaming.abandon()
        raise AssertionError("it reads again and again")


def _end(frames: list[bytes]) -> int:
    return int(struct.unpack_from(">Q", frames[-1], 25 + 1 + 1 + 8)[0])
