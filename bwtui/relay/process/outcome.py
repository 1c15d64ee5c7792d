"""How the last run of a relay ended: a small file in its state folder, to be asked afterwards.

The engine's process writes it as its last act; ``connect`` reads it for the error line and the exit code,
``bwtui status`` and the UI for the reason why a relay is gone. A new run removes it first, and keeps room for
its own: a disk that is full is what many a relay ends on.
"""

import contextlib
import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bwtui import errors
from bwtui.durable import private, write_whole
from bwtui.model.status import Status
from bwtui.state_folder import state_folder

_FILE_NAME = "outcome.json"
_ROOM_NAME = "outcome.room"
_ROOM_BYTES = 8192


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of one run."""

    exit_code: int
    time: float
    #: None after a clean stop.
    message: str | None
    hint: str | None
    #: The last status, with the state "stopped" or "failed".
    status: Status | None

    def error(self) -> errors.BwtuiError | None:
        """Return the error that ended the run, as the class that sets its exit code, or None."""
        if self.message is None:
            return None
        return error_with_code(self.exit_code, self.message, self.hint or "")


def error_with_code(exit_code: int, message: str, hint: str) -> errors.BwtuiError:
    """Return an error that ends this process as it ended another."""
    for kind in (
        errors.DifferencesFound,
        errors.Indeterminate,
        errors.ConnectionFailed,
        errors.SlotLost,
        errors.DamagedRecording,
        errors.Interrupted,
    ):
        if kind.exit_code == exit_code:
            return kind(message, hint)
    return errors.BwtuiError(message, hint)


def write(name: str, outcome: Outcome) -> bool:
    """Keep ``outcome`` as the end of the relay's last run; return whether with its status.

    A full disk has no room for that. Raises OSError.
    """
    folder = state_folder(name)
    try:
        write_whole(folder / _FILE_NAME, _text(outcome))
    except OSError:
        if not _is_put_into_room(dataclasses.replace(outcome, status=None), folder):
            raise
        return False
    (folder / _ROOM_NAME).unlink(missing_ok=True)
    return True


def _is_put_into_room(outcome: Outcome, folder: Path) -> bool:
    text = _text(outcome).encode()
    if len(text) > _ROOM_BYTES:
        return False
    try:
        # Over what is there, which takes no more of the disk.
        with (folder / _ROOM_NAME).open("r+b", buffering=0) as room:
            if room.write(text.ljust(_ROOM_BYTES)) < len(text):
                # It was taken on a disk that was full already, and has room for the begin only.
                return False
        (folder / _ROOM_NAME).replace(folder / _FILE_NAME)
    except OSError:
        return False
    return True


def _text(outcome: Outcome) -> str:
    data: dict[str, Any] = dataclasses.asdict(dataclasses.replace(outcome, status=None))
    data["status"] = outcome.status.to_json() if outcome.status else None
    return json.dumps(data)


def read(name: str) -> Outcome | None:
    """Return how the relay's last run ended; None while it runs, after kill -9, and when it never ran."""
    try:
        data = json.loads((state_folder(name) / _FILE_NAME).read_text(encoding="utf-8"))
        status = Status.from_json(data["status"]) if data["status"] else None
        return Outcome(data["exit_code"], data["time"], data["message"], data["hint"], status)
    except (OSError, ValueError, KeyError, TypeError):
        # A file of another version or one that was cut short says nothing.
        return None


def clear(name: str) -> None:
    """Forget the last run, because a new one begins, and keep room for how that will end."""
    folder = state_folder(name)
    (folder / _FILE_NAME).unlink(missing_ok=True)
    with contextlib.suppress(OSError), open(folder / _ROOM_NAME, "wb", opener=private) as room:
        room.write(b" " * _ROOM_BYTES)
