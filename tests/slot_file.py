"""Read slots from PostgreSQL's files: the position from which a restarted server continues."""

import struct
from pathlib import Path

#: `ReplicationSlotOnDisk`, up to confirmed_flush; the same in every version.
_FILE = struct.Struct("=112xQ")
#: `ControlFileData`, up to state, and `DB_SHUTDOWNED` of its `DBState`.
_CONTROL, _SHUTDOWNED = struct.Struct("=16xI"), 1
#: Since this version (commit e0b2eed) a clean shutdown saves the confirmed LSN of slots.
_WRITTEN_AT_STOP = 170000


def saved_lsn(data: Path, slot: str) -> int:
    """Return the slot's saved confirmed LSN in the data directory ``data``.

    It lags: a confirmation is saved only together with another change, such as a newer restart_lsn, and a
    checkpoint skips a slot without other changes.
    """
    return int(_FILE.unpack_from((data / "pg_replslot" / slot / "state").read_bytes())[0])


def writes_slots_when_stopped(server_version: int) -> bool:
    """Return whether a clean shutdown saves the confirmed LSN of slots."""
    return server_version >= _WRITTEN_AT_STOP


def ended_in_order(data: Path) -> bool:
    """Return whether the server of the data directory ``data`` is down after a shutdown checkpoint.

    In all versions of ``pg_control``, the state follows the system's identifier and two version numbers.
    """
    (state,) = _CONTROL.unpack_from((data / "global" / "pg_control").read_bytes())
    return bool(state == _SHUTDOWNED)
