"""What PostgreSQL has of a slot on disk: where a server that is started again has the slot stand."""

import struct
from pathlib import Path

#: `ReplicationSlotOnDisk`, up to confirmed_flush; the same in all versions.
_FILE = struct.Struct("=112xQ")
#: `ControlFileData`, up to state, and `DB_SHUTDOWNED` of its `DBState`.
_CONTROL, _SHUTDOWNED = struct.Struct("=16xI"), 1
#: Since then (commit e0b2eed) an orderly end writes down what slots are confirmed to.
_WRITTEN_AT_STOP = 170000


def saved_lsn(data: Path, slot: str) -> int:
    """Return what the slot is confirmed to in the data directory ``data``.

    It lags: a confirmation is written down only with something else, such as a newer restart_lsn, and a
    checkpoint leaves out a slot of which nothing else is new.
    """
    return int(_FILE.unpack_from((data / "pg_replslot" / slot / "state").read_bytes())[0])


def writes_slots_when_stopped(server_version: int) -> bool:
    """Whether a server that is stopped in order has its slots stand where they are confirmed to."""
    return server_version >= _WRITTEN_AT_STOP


def ended_in_order(data: Path) -> bool:
    """Whether the server of the data directory ``data`` is down after a shutdown checkpoint.

    ``pg_control`` says so behind the system's identifier and two version numbers, in all versions.
    """
    (state,) = _CONTROL.unpack_from((data / "global" / "pg_control").read_bytes())
    return bool(state == _SHUTDOWNED)
