"""Bulk rows: consecutive new rows of one table, which the C extension encodes in one call.

`bwtui.relay.row_handler` handles rows that the C extension can't encode, or that need their own handling;
they end a run.
"""

import struct
from collections.abc import Callable, Iterator, Mapping

from bwtui.pgoutput.frames import BODY_OFFSET, PAYLOAD_OFFSET, XLOG_DATA
from bwtui.relay.batch import BATCH_BYTES, BATCH_ROWS, RECORD_OVERHEAD, OutgoingBatch
from bwtui.relay.recording.recorder import Recorder
from bwtui.relay.row_handler import TUPLE, RowHandler
from bwtui.relay.samples import Samples

_oid = struct.Struct(">I").unpack_from

_INSERT, _UPDATE = 0x49, 0x55  # 'I', 'U'
#: The tuple kind of a new row that is not preceded by an old one.
_KIND, _NEW = TUPLE - 1, b"N"


class BulkRows:
    """Takes the runs of rows among the frames of one session."""

    def __init__(
        self, rows: RowHandler, batch: OutgoingBatch, samples: Samples, recorder: Recorder | None
    ) -> None:
        self._rows = rows
        self._batch = batch
        self._samples = samples
        self._recorder = recorder
        self._ours = {tag: rows.handlers[tag] for tag in (_INSERT, _UPDATE)}

    def between(
        self, frames: Iterator[bytes], handlers: Mapping[int, Callable[[bytes], bool | None]]
    ) -> Iterator[bytes]:
        """Yield the frames that need their own handling, and take the runs between them.

        Ends with ``frames``, or when the batch is full. A row is yielded if ``handlers`` has a handler for it
        other than that of `RowHandler`: such handlers skip rows that Kafka already has.
        """
        if self._rows.wants_each or self._batch.careful is not None:
            yield from frames
            return
        ours, samples, take = self._ours, self._samples, self._take
        for frame in frames:
            data = frame
            while data[0] == XLOG_DATA and (tag := data[PAYLOAD_OFFSET]) in ours:
                if handlers[tag] is not ours[tag] or samples.budget > 0 or data[_KIND:TUPLE] != _NEW:
                    break
                rest = take(data, frames)
                if rest is None:
                    return
                if rest is data:
                    break
                data = rest
            yield data

    def _take(self, data: bytes, frames: Iterator[bytes]) -> bytes | None:
        """Return the first frame that is not taken; None if the batch is full, or no more frames arrived."""
        rows, batch, recorder = self._rows, self._batch, self._recorder
        values = rows.values
        route = rows.routes[_oid(data, BODY_OFFSET)[0]]
        if route is None or route.run is None:
            return data
        messages, taken, size, held, rest = route.run(
            data,
            frames,
            PAYLOAD_OFFSET,
            TUPLE,
            rows.timestamp,
            BATCH_ROWS - batch.rows,
            BATCH_BYTES - batch.bytes - batch.held,
            route.max_message_bytes - RECORD_OVERHEAD,
            recorder is not None,
            values,
        )
        if not messages:
            return rest
        batch.add_many(route, messages, size)
        if values:
            rows.note_values(route, taken)
        elif recorder is not None:
            recorder.frames += taken
        batch.held += held
        rows.ordinal += len(messages)
        if data[PAYLOAD_OFFSET] == _INSERT:
            route.counters.inserts += len(messages)
        else:
            route.counters.updates += len(messages)
        return rest
