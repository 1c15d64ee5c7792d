"""Steps of a relay with --exactly-once before it streams."""

import dataclasses
from collections.abc import Callable
from functools import partial

from bwtui.relay.backfill.stream_hook import StreamHook
from bwtui.relay.context import RelayContext
from bwtui.relay.exactly_once.position_store import PositionStore
from bwtui.relay.exactly_once.transactional_stream import TransactionalStream
from bwtui.settings import RelaySettings
from bwtui.sink.base import Sink
from bwtui.sink.transactions import TransactionalSink
from bwtui.source.connection import Connection, execute
from bwtui.source.preflight import PreflightState, obstacle_to_make, wait_while


def exactly_of(settings: RelaySettings, sink: Sink, session: bytes) -> PositionStore | None:
    """Return the position store of this run, or None without --exactly-once."""
    return PositionStore(settings, sink, session) if isinstance(sink, TransactionalSink) else None


def around(context: RelayContext, inner: StreamHook) -> StreamHook:
    """Return the stream hook for backfills, wrapped in Kafka transactions with --exactly-once."""
    return (
        inner
        if context.position_store is None
        else TransactionalStream(context, context.position_store, inner)
    )


def wait_for_maker(connection: Connection, findings: PreflightState, on_wait: Callable[[str], None]) -> None:
    """Wait until no other relay is creating the slot, and none can while ``connection`` is open.

    A relay creates its slot before Kafka commits its snapshot. Until that commit, the slot looks like one
    that a killed relay left. Raises RefusedError.
    """
    if findings.slot is not None:
        wait_while(partial(obstacle_to_make, connection, findings.slot.name), on_wait)


def begin(context: RelayContext, connection: Connection, findings: PreflightState) -> PreflightState:
    """Make transactions wait for the recording, and drop a slot whose snapshot Kafka did not commit.

    Such a slot exists if the relay was killed between creating it and the commit. No LSN of that slot was
    confirmed, and read_committed consumers see no row of that snapshot.
    """
    position_store, slot, sink = context.position_store, findings.slot, context.sink
    if context.recorder is not None and isinstance(sink, TransactionalSink):
        sink.promise = partial(context.recorder.promise, soon=True)
    if position_store is None or slot is None or not position_store.is_torn(slot):
        return findings
    execute(connection, "select pg_drop_replication_slot(%s)", slot.name)
    context.checkpoint.forget()
    return dataclasses.replace(findings, slot=None)
