"""The folders where relays store data for later runs and other processes."""

import os
from pathlib import Path

import platformdirs

#: The lock file in a relay's state folder; relay/process/lock.py explains it.
LOCK_NAME = "engine.lock"
#: The hint for a state folder that can't be written.
STATE_HOME_HINT = "set BWTUI_STATE_HOME to a writable folder"


def state_folder(name: str) -> Path:
    """Return the folder of the relay ``name``: socket, log, slot checkpoint and dead letters.

    It is below ``$BWTUI_STATE_HOME``, or otherwise the user's state folder (XDG_STATE_HOME).
    """
    return state_root() / name


def ledger_path(folder: Path, slot: str) -> Path:
    """Return the path of the coverage ledger of ``slot`` in a relay's state folder."""
    return folder / f"coverage-{slot}.json"


def state_root() -> Path:
    """Return the folder of all data that runs leave for later ones."""
    base = os.environ.get("BWTUI_STATE_HOME")
    return (Path(base) if base else Path(platformdirs.user_state_dir("bwtui"))).absolute()


def relay_names() -> list[str]:
    """Return the names of all relays that ever ran with this state folder, running or not."""
    root = state_root()
    return sorted(lock.parent.name for lock in root.glob(f"*/{LOCK_NAME}"))
