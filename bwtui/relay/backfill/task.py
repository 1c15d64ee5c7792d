"""A backfill request with its progress, as the relay works on it and as its file stores it."""

import dataclasses
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from bwtui.model.backfill import BackfillReason, BackfillRequest, BackfillState, BackfillStatus

#: The request to a task that the main thread is working on, not carried out yet.
Wanted = Literal["", "pause", "cancel"]

#: The fields that describe a task's progress.
PROGRESS = (
    "state",
    "after",
    "key",
    "done_keys",
    "rows",
    "tombstones",
    "left_out",
    "dropped",
    "chunks",
    "ended",
)
#: The fields that distinguish it from a task with the same id, after the relay's state was lost.
_WHICH = ("requested",)

_PENDING = {"pause": "will pause", "cancel": "will be cancelled"}


@dataclass(slots=True)
class BackfillTask:
    """One request, and its progress.

    The main thread owns all but ``wanted`` and ``asked``, which `BackfillStore.ask` sets from any thread.
    Times are Unix seconds.
    """

    id: str
    request: BackfillRequest
    state: BackfillState = "waiting"
    #: The last key of the last finished chunk, as PostgreSQL's texts; None to start from the beginning.
    after: tuple[str, ...] | None = None
    #: The columns of that key, in the order of their index.
    key: tuple[str, ...] | None = None
    #: For a list of keys, the number of finished lines.
    done_keys: int = 0
    detail: str = ""
    rows: int = 0
    tombstones: int = 0
    left_out: int = 0
    dropped: int = 0
    estimate: int | None = None
    chunks: int = 0
    again: int = 0
    requested: float = 0.0
    started: float = 0.0
    ended: float = 0.0
    error: str = ""
    hint: str = ""
    is_gone: bool = False
    is_noted: bool = False
    wanted: Wanted = ""
    #: When ``wanted`` was requested.
    asked: float = 0.0

    @property
    def is_over(self) -> bool:
        """True if the task has ended."""
        return self.state in ("done", "failed", "cancelled")

    def status(self) -> BackfillStatus:
        """Return the current status."""
        state = self.state
        pending = _PENDING.get(self.wanted, "") if state in ("waiting", "running") else ""
        return BackfillStatus(
            id=self.id,
            table=self.request.table,
            reason=self.request.reason,
            where=self.request.where,
            state=state,
            detail=pending or self.detail,
            rows=self.rows,
            tombstones=self.tombstones,
            left_out=self.left_out,
            dropped=self.dropped,
            estimate=self.estimate,
            chunks=self.chunks,
            again=self.again,
            requested=self.requested,
            started=self.started,
            ended=self.ended,
            error=self.error,
            hint=self.hint,
            is_gone=self.is_gone,
            is_noted=self.is_noted,
        )

    def obey(self) -> None:
        """Carry out a pause or cancellation; only while no thread is working on the task."""
        if self.is_over or not self.wanted:
            return
        if self.wanted == "cancel":
            self.state, self.ended, self.detail = "cancelled", self.asked, ""
        else:
            self.state, self.detail = "paused", ""

    def after_chunk(
        self,
        sent: tuple[int, int, int, int],
        last: tuple[str, ...] | None,
        key: tuple[str, ...] | None,
        keys: Sequence[object] | None,
    ) -> "BackfillTask":
        """Return the task as it is once a chunk is done.

        ``sent`` are the counts of its rows, its tombstones, and what was left out and dropped; ``last`` is
        its last key, None at the end of the table, with the columns ``key``; ``keys`` are those of a list.
        """
        rows, tombstones, left_out, dropped = sent
        behind = dataclasses.replace(
            self,
            rows=self.rows + rows,
            tombstones=self.tombstones + tombstones,
            left_out=self.left_out + left_out,
            dropped=self.dropped + dropped,
            chunks=self.chunks + 1,
            detail="",
        )
        if keys is not None:
            # The next step finds that there are no more keys.
            behind.done_keys += len(keys)
        else:
            behind.after, behind.key = last, key
            if last is None:
                behind.state, behind.ended = "done", time.time()
        return behind

    def take(self, other: "BackfillTask") -> None:
        """Take over the progress of ``other``, which is this task after a chunk."""
        for name in PROGRESS:
            setattr(self, name, getattr(other, name))
        self.detail = other.detail

    def progress(self) -> dict[str, Any]:
        """Return the progress, for the transaction that holds the task's rows."""
        return {name: getattr(self, name) for name in (*_WHICH, *PROGRESS)}

    def is_behind(self, progress: Mapping[str, Any]) -> bool:
        """Return whether ``progress`` is of this task, and further than its own."""
        is_same = all(progress.get(name) == getattr(self, name) for name in _WHICH)
        return is_same and not self.is_over and progress.get("chunks", 0) > self.chunks

    def to_json(self) -> dict[str, Any]:
        """Return the content for `from_json`."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Any) -> "BackfillTask":
        """Rebuild a task of an earlier run. Raises ValueError if the data is not a task."""
        if not isinstance(data, dict):
            raise ValueError("not an object")
        fields_known = {
            field.name: data[field.name] for field in dataclasses.fields(cls) if field.name in data
        }
        request = data.get("request")
        if not isinstance(request, dict):
            raise ValueError("without a request")
        for name in ("after", "key"):
            if isinstance(fields_known.get(name), list):
                fields_known[name] = tuple(fields_known[name])
        try:
            fields_known["request"] = BackfillRequest.from_json(request)
            task = cls(**fields_known)
            task._check()
        except TypeError as error:
            raise ValueError(str(error)) from error
        if not task.is_over:
            task.state = "paused" if task.wanted == "pause" else "waiting"
            task.detail = ""
            task.obey()
        return task

    def _check(self) -> None:
        """Raise ValueError if a field has an invalid value."""
        request = self.request
        asked = (request.table, request.where, request.keys, request.topic, request.spelling)
        texts = (self.id, self.detail, self.error, self.hint, *asked, *request.key_columns)
        sent = (self.rows, self.tombstones, self.left_out, self.dropped)
        counts = (*sent, self.chunks, self.again, self.done_keys)
        times = (self.requested, self.started, self.ended, self.asked)
        is_sound = (
            all(isinstance(text, str) for text in (*texts, *(self.after or ()), *(self.key or ())))
            and all(
                type(count) is int and count >= 0
                for count in (*counts, 0 if self.estimate is None else self.estimate)
            )
            and all(type(time) in (int, float) for time in times)
            and isinstance(self.after, tuple | None)
            and isinstance(self.key, tuple | None)
            and isinstance(request.unkeyed, bool)
            and self.state in get_args(BackfillState)
            and request.reason in get_args(BackfillReason)
            and self.wanted in get_args(Wanted)
        )
        if not is_sound or not self.id or not request.table:
            raise ValueError("a field has an invalid value")
