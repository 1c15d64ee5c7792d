"""The outcome of a relay's last run: a small file in its state folder, to be read afterwards.

The engine's process writes it as its last act; ``connect`` reads it for the error line and the exit code,
``bwtui status`` and the UI for the reason why a relay ended. A new run first removes the old file, and
reserves disk space for its own: a full disk ends many relays.
"""

import contextlib
import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bwtui import errors
from bwtui.durable_files import open_private, write_atomically
from bwtui.model.status import Status
from bwtui.state_folder import state_folder

_FILE_NAME = "outcome.json"
_ROOM_NAME = "outcome.room"
_ROOM_BYTES = 8192


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """The outcome of one run."""

    exit_code: int
    time: float
    #: None unless an error or an interrupt ended the run.
    message: str | None
    hint: str | None
    #: The last status, with the state "stopped" or "failed".
    status: Status | None

    @property
    def is_failure(self) -> bool:
        """Return whether an error ended the run; a run that the user interrupted stopped cleanly."""
        return self.message is not None and self.exit_code != errors.Interrupted.exit_code

    def error(self) -> errors.BwtuiError | None:
        """Return the error that ended the run, in the class with its exit code, or None."""
        if self.message is None:
            return None
        return error_with_code(self.exit_code, self.message, self.hint or "")


def error_with_code(exit_code: int, message: str, hint: str) -> errors.BwtuiError:
    """Return an error that ends this process with the same exit code as another process."""
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


def write(name: str, outcome: RunOutcome) -> bool:
    """Store ``outcome`` as the end of the relay's last run; return whether its status was stored too.

    A full disk has no room for the status. Raises OSError.
    """
    folder = state_folder(name)
    try:
        write_atomically(folder / _FILE_NAME, _text(outcome))
    except OSError:
        if not _is_put_into_room(dataclasses.replace(outcome, status=None), folder):
            raise
        return False
    (folder / _ROOM_NAME).unlink(missing_ok=True)
    return True


def _is_put_into_room(outcome: RunOutcome, folder: Path) -> bool:
    text = _text(outcome).encode()
    if len(text) > _ROOM_BYTES:
        return False
    try:
        # Overwriting existing blocks takes no more disk space.
        with (folder / _ROOM_NAME).open("r+b", buffering=0) as room:
            if room.write(text.ljust(_ROOM_BYTES)) < len(text):
                # The disk was already full when the space was reserved: only the beginning fits.
                return False
        (folder / _ROOM_NAME).replace(folder / _FILE_NAME)
    except OSError:
        return False
    return True


def _text(outcome: RunOutcome) -> str:
    data: dict[str, Any] = dataclasses.asdict(dataclasses.replace(outcome, status=None))
    data["status"] = outcome.status.to_json() if outcome.status else None
    return json.dumps(data)


def read(name: str) -> RunOutcome | None:
    """Return how the relay's last run ended; None while it runs, after kill -9, and if it never ran."""
    try:
        data = json.loads((state_folder(name) / _FILE_NAME).read_text(encoding="utf-8"))
        status = Status.from_json(data["status"]) if data["status"] else None
        return RunOutcome(data["exit_code"], data["time"], data["message"], data["hint"], status)
    except (OSError, ValueError, KeyError, TypeError):
        # A file of another version, or a truncated one, counts as missing.
        return None


def forget(name: str) -> None:
    """Remove the last run's outcome."""
    (state_folder(name) / _FILE_NAME).unlink(missing_ok=True)


def clear(name: str) -> None:
    """Remove the last run's outcome, because a new run begins, and reserve disk space for its own."""
    forget(name)
    with (
        contextlib.suppress(OSError),
        open(state_folder(name) / _ROOM_NAME, "wb", opener=open_private) as room,
    ):
        room.write(b" " * _ROOM_BYTES)
