"""Messages that don't belong to a table, for topics that options name; see docs/exactly-once.md.

With --transaction-topic the relay sends BEGIN with the first message of a transaction, so a transaction
without messages has neither BEGIN nor END. END carries the message counts. Both are sent with the batch that
they belong to, and with --exactly-once in its Kafka transaction.
"""

import json
from collections.abc import Mapping

from bwtui.encode.transaction_metadata import MetadataEncoder
from bwtui.model.lsn import format_lsn
from bwtui.pgoutput.messages import Truncate
from bwtui.relay.routes.route import TableRoute
from bwtui.relay.rows.batch import OutgoingBatch
from bwtui.sink.destination import Message

#: Bytes of a frame that hold the LSN of its message.
_AT = slice(1, 9)


class TransactionBoundaries:
    """Sends the BEGIN and END messages of one session."""

    def __init__(self, form: MetadataEncoder, topic: str, batch: OutgoingBatch) -> None:
        self._form = form
        self._topic = topic
        self._batch = batch
        self._id = ""

    def begin(self, xid: int, data: bytes) -> None:
        """Begin the transaction of a BEGIN frame."""
        self._id = _named(xid, data)

    def count(self, route: TableRoute, events: dict[str, int], timestamp: int) -> None:
        """Count a message that was added, in ``events``; the first one sends BEGIN."""
        name = route.relation.qualified_name
        if not events:
            self._send(self._form.begin(self._id, timestamp), timestamp)
        events[name] = events.get(name, 0) + 1

    def end(self, xid: int, data: bytes, events: Mapping[str, int], timestamp: int) -> None:
        """Send END for the transaction of a COMMIT frame, if it has messages."""
        if events:
            self._send(self._form.end(_named(xid, data), timestamp, events), timestamp)

    def _send(self, message: tuple[bytes, bytes], timestamp: int) -> None:
        self._batch.add_apart(self._topic, *message, timestamp)


def _named(xid: int, data: bytes) -> str:
    return f"{xid}:{int.from_bytes(data[_AT])}"


def truncate_message(
    route: TableRoute, truncate: Truncate, commit_lsn: int, xid: int, timestamp: int
) -> Message:
    """Return the message for one of the tables of ``truncate``; its key is ``schema.table``."""
    name = route.relation.qualified_name
    content = {
        "table": name,
        "topic": route.topic,
        "commit_lsn": format_lsn(commit_lsn),
        "xid": xid,
        "cascade": truncate.cascade,
        "restart_identity": truncate.restart_identity,
    }
    return Message(name.encode(), json.dumps(content).encode(), timestamp)
