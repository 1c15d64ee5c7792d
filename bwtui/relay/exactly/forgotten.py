"""Positions in Kafka that 'bwtui slots drop' has forgotten: the next start with --exactly-once begins anew.

Kafka is not asked when a slot is dropped, so a small file in the relay's state folder names the run that
wrote the position last, as far as the relay knows. What another run has written since is not forgotten: that
one has gone on elsewhere.
"""

import json
from pathlib import Path

from bwtui.durable import private_parent, write_durably
from bwtui.errors import StateFailed
from bwtui.file_errors import file_failed
from bwtui.model.position import Position
from bwtui.relay.memory import Remembered


def _path(folder: Path, slot: str) -> Path:
    return folder / f"forgotten-{slot}.json"


def forget(folder: Path, last: Remembered | None) -> None:
    """Note, durably, that the position is forgotten which ``last`` goes on from. Raises StateFailed."""
    if last is None or not last.written_by:
        return
    path = _path(folder, last.slot)
    said = {"of": [last.system_identifier, last.database, last.slot], "written_by": last.written_by}
    try:
        private_parent(path)
        write_durably(path, json.dumps(said))
    except OSError as error:
        raise file_failed(
            f"that the slot's position is forgotten can't be written to {path}", error
        ) from error


def is_forgotten(folder: Path, position: Position) -> bool:
    """Return whether ``position`` is forgotten. Raises StateFailed."""
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
            f"{path} can't be read: it says which position in Kafka is forgotten",
            f"remove it, and run 'bwtui slots drop {position.slot}' again",
        ) from error
    return identity == (position.system, position.database, position.slot) and written_by == position.session
