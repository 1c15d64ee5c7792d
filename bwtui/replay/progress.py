"""The progress of a replay, in a file from which a later run resumes.

It is in the state folder rather than next to the recording, because a recording may be read-only, and may be
replayed into several clusters. The file is replaced as a whole. It may be some tenths of a second old:
messages written since are found in the topics (`bwtui.replay.unconfirmed_tail`).
"""

import contextlib
import hashlib
import json
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bwtui.durable_files import locked, write_durably
from bwtui.errors import RefusedError, StateFailed

_FORMAT = 2


@dataclass(slots=True)
class LaneProgress:
    """The progress of one partition; offsets are those of the topic."""

    #: End of the log before the first run sent anything.
    start: int
    messages: int = 0
    position: int = -1
    part: int = 0
    last_offset: int = -1

    @property
    def tail(self) -> int:
        """The offset from which the topic may have messages that are missing from the progress."""
        return max(self.start, self.last_offset + 1)


@dataclass(slots=True)
class RouteProgress:
    """The target of a recorded topic, and the settings that determine the partitions of its messages."""

    topic: str
    #: Empty if the broker has no topic ids.
    topic_id: str
    partitions: int
    keeps_partitions: bool
    hash: str
    #: Recorded schema id → written schema id.
    keys: dict[int, int]
    values: dict[int, int]


@dataclass(slots=True)
class ReplayProgress:
    """The identity of a replay, and its progress."""

    #: Identity of the replay: recording, selection, cluster, names.
    what: dict[str, Any]
    #: By recorded topic.
    routes: dict[str, RouteProgress] = field(default_factory=dict)
    #: By "topic/partition" of the target.
    lanes: dict[str, LaneProgress] = field(default_factory=dict)
    total: int = 0
    runs: int = 0
    is_finished: bool = False

    @property
    def sent(self) -> int:
        """Number of durable messages."""
        return sum(lane.messages for lane in self.lanes.values())


class ProgressFile:
    """The file of one replay, locked while the replay runs."""

    def __init__(self, folder: Path, identity: dict[str, Any]) -> None:
        self.what = identity
        name = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:20]
        self.path = folder / f"{name}.json"
        self._saving = threading.Lock()

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the file against a second run of the same replay. Raises RefusedError or StateFailed."""
        in_use = RefusedError("another process is running this replay", "wait until it has ended")
        with contextlib.ExitStack() as stack:
            try:
                self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                stack.enter_context(locked(self.path.with_suffix(".lock"), in_use))
            except OSError as error:
                raise self._failed(error) from error
            yield

    def load(self) -> ReplayProgress | None:
        """Return the progress of an earlier run, or None. Raises StateFailed."""
        try:
            content = json.loads(self.path.read_text())
            if content["format"] != _FORMAT:
                raise ValueError("another format")
            lanes = {place: LaneProgress(**lane) for place, lane in content["lanes"].items()}
            routes = {recorded: _route(one) for recorded, one in content["routes"].items()}
            return ReplayProgress(
                content["what"], routes, lanes,
                content["total"], content["runs"], content["is_finished"],
            )  # fmt: skip
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._failed(error) from error
        except (ValueError, KeyError, TypeError) as error:
            raise StateFailed(
                f"the replay's progress in {self.path} can't be read",
                "use --restart to replay from the beginning; check first which messages the "
                "topics already have",
            ) from error

    def save(self, progress: ReplayProgress) -> None:
        """Write the progress; any thread may call this. Raises StateFailed."""
        try:
            with self._saving:
                write_durably(self.path, json.dumps({"format": _FORMAT, **asdict(progress)}))
        except OSError as error:
            raise self._failed(error) from error

    def _failed(self, error: OSError) -> StateFailed:
        return StateFailed(
            f"the replay's progress can't be saved in {self.path.parent}: {error.strerror or error}",
            "set BWTUI_STATE_HOME to a folder that you may write to",
        )


def _route(content: dict[str, Any]) -> RouteProgress:
    # JSON object keys are always strings.
    ids = {part: {int(one): id for one, id in content[part].items()} for part in ("keys", "values")}
    return RouteProgress(**{**content, **ids})
