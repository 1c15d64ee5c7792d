"""--exactly-once, as far as it needs no services."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from bwtui.errors import SlotLost
from bwtui.model.position import Position
from bwtui.relay.exactly.known import Exactly
from bwtui.relay.exactly.once import ExactlyOnce
from bwtui.settings import RelaySettings
from bwtui.sink.kafka import KafkaService, KafkaSink
from bwtui.sink.transactions import TransactionalSink
from bwtui.source.timeline import Server

SETTINGS = RelaySettings(slot="bottledwater")
IDENTITY = ("7", "shop", "bottledwater")


def exactly() -> Exactly:
    """What a run knows, without a connection."""
    return Exactly(SETTINGS, TransactionalSink(SETTINGS), b"session1")


def server(timeline: int, *forks: tuple[int, int]) -> Server:
    """A server of the cluster."""
    return Server("7", timeline, forks, 0x9000, False)


def begin(known: Exactly, position: Position) -> None:
    """Begin a session, in which Kafka says ``position``."""
    once = cast(Any, object.__new__(ExactlyOnce))
    once._sink, once._policy = SimpleNamespace(refused=[]), SimpleNamespace(is_sought=False)
    # What this process sent, long ago, says nothing of what Kafka has.
    memory = SimpleNamespace(last=SimpleNamespace(sent=lambda: 0x100))
    once._context, once._exactly = SimpleNamespace(memory=memory), known
    once._inner = SimpleNamespace(begin_session=lambda stream: None)
    once._begin = lambda *, is_careful: position
    handlers = dict.fromkeys(map(ord, "BIUDT"), lambda data: None)
    rows = SimpleNamespace()
    once.begin_session(
        SimpleNamespace(careful_until=0, without_care=lambda: None, handlers=handlers, rows=rows)
    )


def test_what_another_relay_has_sent_since_is_left_out() -> None:
    known, position = exactly(), Position(*IDENTITY, 1, 0x800)
    known.server = server(1)
    begin(known, position)
    assert known.position == position


@pytest.mark.parametrize("now", [server(2, (1, 0x700)), server(3, (1, 0x700), (2, 0x900))])
def test_what_this_server_has_in_its_place_is_not_left_out(now: Server) -> None:
    known, position = exactly(), Position(*IDENTITY, 1, 0x800)
    known.server = now
    with pytest.raises(SlotLost, match=r"parted from it at 0/700") as raised:
        begin(known, position)
    assert "bwtui slots drop bottledwater" in str(raised.value.hint)
    known.server = server(2, (1, 0x900))
    begin(known, position)


def test_positions_say_which_history_they_are_of() -> None:
    now = exactly().mine(0x800, None, 0, 0x800, server(2, (1, 0x700)))
    assert (now.timeline, now.forks) == (2, ((1, 0x700),))
    assert Position.from_json(now.to_json()) == now


def test_keys_are_read_back_out_of_open_transactions_too() -> None:
    """A snapshot's own is open while it looks for what an earlier one has left."""
    reader = KafkaService(SETTINGS, KafkaSink(SETTINGS)).reader
    assert reader._config["isolation.level"] == "read_uncommitted"
