"""BEGIN and END messages of transactions, for --transaction-topic; see docs/exactly-once.md.

The relay sends BEGIN with the first message of a transaction, so a transaction without messages has neither
BEGIN nor END. END carries the message counts. Both are sent with the batch that they belong to, and with
--exactly-once in its Kafka transaction.
"""

from functools import partial

from bwtui.encode.names import subject_names
from bwtui.encode.transaction_metadata import KEY_SCHEMA, VALUE_SCHEMA, MetadataEncoder
from bwtui.relay.context import RelayContext
from bwtui.relay.routes.route import TableRoute
from bwtui.relay.session import StreamSession

_BEGIN, _COMMIT = ord("B"), ord("C")
#: Bytes of a frame that hold the LSN of its message.
_AT = slice(1, 9)


def form_of(context: RelayContext) -> MetadataEncoder | None:
    """Return the format of transaction messages, or None without --transaction-topic.

    Raises StopRequested, RefusedError, and the errors of a registry.
    """
    settings = context.settings
    if not settings.transaction_topic:
        return None
    if settings.output_format != "avro":
        return MetadataEncoder()
    register = context.destination.registry.register
    subjects = subject_names(settings.transaction_topic)
    key_id, value_id = (
        context.patience.ask("the schema registry", partial(register, subject, schema)).id
        for subject, schema in zip(subjects, (KEY_SCHEMA, VALUE_SCHEMA), strict=True)
    )
    return MetadataEncoder(key_id, value_id)


class TransactionBoundaries:
    """Sends the BEGIN and END messages of one session."""

    def __init__(self, form: MetadataEncoder, topic: str, stream: StreamSession) -> None:
        self._form = form
        self._topic = topic
        self._rows, self._batch, handlers = stream.rows, stream.batch, stream.handlers
        self._id = ""
        self._begin, self._commit = handlers[_BEGIN], handlers[_COMMIT]
        handlers[_BEGIN], handlers[_COMMIT] = self._on_begin, self._on_commit
        self._rows.on_message = self._on_message

    def _on_begin(self, data: bytes) -> bool | None:
        answer = self._begin(data)
        self._id = self._named(data)
        self._rows.events = {}
        return answer

    def _on_message(self, route: TableRoute) -> None:
        name, events = route.relation.qualified_name, self._rows.events
        if not events:
            self._send(self._form.begin(self._id, self._rows.timestamp))
        events[name] = events.get(name, 0) + 1

    def _on_commit(self, data: bytes) -> bool | None:
        if events := self._rows.events:
            self._send(self._form.end(self._named(data), self._rows.timestamp, events))
        return self._commit(data)

    def _send(self, message: tuple[bytes, bytes]) -> None:
        self._batch.add_apart(self._topic, *message, self._rows.timestamp)

    def _named(self, data: bytes) -> str:
        return f"{self._rows.xid}:{int.from_bytes(data[_AT])}"
