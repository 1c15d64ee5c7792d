"""Record that 'bwtui slots drop' discarded a position in Kafka: --exactly-once then starts from scratch.

Dropping a slot does not contact Kafka. Instead, a small file in the relay's state folder names the run that
last wrote the position, according to the slot checkpoint. A position that a different run has written since
stays valid, because that run continued elsewhere.
"""

import json
from pathlib import Path

from bwtui.durable_files import private_parent, write_durably
from bwtui.errors import StateFailed
from bwtui.file_errors import file_failed
from bwtui.model.position import Position
from bwtui.relay.slot_checkpoint import SlotCheckpoint


def _path(folder: Path, slot: str) -> Path:
    return folder / f"forgotten-{slot}.json"


def forget(folder: Path, last: SlotCheckpoint | None) -> None:
    """Record durably that the position that the checkpoint ``last`` resumes from is discarded.

    Raises StateFailed.
    """
    if last is None or not last.written_by:
        return
    path = _path(folder, last.slot)
    content = {"of": [last.system_identifier, last.database, last.slot], "written_by": last.written_by}
    try:
        private_parent(path)
        write_durably(path, json.dumps(content))
    except OSError as error:
        raise file_failed(f"the slot's discarded position can't be recorded in {path}", error) from error


def is_forgotten(folder: Path, position: Position) -> bool:
    """Return whether ``position`` was discarded. Raises StateFailed."""
    path = _path(folder, position.slot)
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        identity, written_by = tuple(data["of"]), data["written_by"]
    except FileNotFoundError:
        return False
    except OSError as error:
        raise file_failed(f"{path} can't be read", error) from error
    except (ValueError, KeyError, TypeError) as error:
        raise StateFailed(
            f"{path} can't be read: it records a discarded position in Kafka",
            f"remove it, and run 'bwtui slots drop {position.slot}' again",
        ) from error
    return identity == (position.system, position.database, position.slot) and written_by == position.session
