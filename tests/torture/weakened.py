"""Deliberately weakened relays: the harness must find the loss that each causes.

Each runs in a separate interpreter, in which a part of the relay is replaced before it starts.
"""

import secrets
import subprocess
import sys
from pathlib import Path
from typing import IO, Any

from confluent_kafka import Producer

from bwtui.kafka.client import producer_config
from bwtui.relay.state.ack import Acknowledgements
from bwtui.sink import kafka
from bwtui.sink.transactions import TransactionalSink
from tests.faults.relays import Relay

_ROOT = Path(__file__).parents[2]
_PROGRAM = """import sys
sys.path.insert(0, {root!r})
from tests.torture.weakened import WEAKNESSES
WEAKNESSES[{weakness!r}]()
from bwtui.cli.main import main
main()"""


def confirm_what_was_read() -> None:
    """Confirm a transaction once it is read, whether Kafka has it or not."""
    advance = Acknowledgements.advance

    def at_once(self: Acknowledgements) -> int:
        advance(self)
        self.confirmed = max([self.confirmed, *(span.lsn for span in self._spans if span.lsn is not None)])
        return self.confirmed

    Acknowledgements.advance = at_once  # type: ignore[method-assign]


def send_without_order() -> None:
    """Use a producer that is not idempotent, keeps several requests in flight, and ignores failures."""

    def configured(*args: Any) -> dict[str, Any]:
        return producer_config(*args) | {"enable.idempotence": False, "retries": 10, "batch.num.messages": 5}

    never = property(lambda self: False, lambda self, value: None)
    for owner, name, weaker in (
        (kafka, "producer_config", configured),
        (kafka.KafkaSink, "_in_order", never),
    ):
        setattr(owner, name, weaker)


def fence_nobody() -> None:
    """Use a new transactional id in each session, so that no older producer is fenced."""
    connect = TransactionalSink.connect

    def as_somebody(self: TransactionalSink, identity: str, **given: Any) -> Producer:
        return connect(self, f"{identity}-{secrets.token_hex(4)}", **given)

    TransactionalSink.connect = as_somebody  # type: ignore[method-assign]


WEAKNESSES = {
    "confirms what it read": confirm_what_was_read,
    "sends without order": send_without_order,
    "fences nobody": fence_nobody,
}


class WeakRelay(Relay):
    """A relay with one of the weaknesses."""

    weakness = ""

    def begin(
        self, command: list[str], environment: dict[str, str], out: IO[bytes], err: IO[bytes]
    ) -> "subprocess.Popen[bytes]":
        """Start the weakened process."""
        program = _PROGRAM.format(root=str(_ROOT), weakness=self.weakness)
        arguments = [sys.executable, "-c", program, *command]
        return subprocess.Popen(arguments, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=err)


def weak(weakness: str) -> type[WeakRelay]:
    """Return a relay class with this weakness."""
    return type("WeakRelay", (WeakRelay,), {"weakness": weakness})
