"""Where relays keep what later runs, and other processes, find of them."""

import os
from pathlib import Path

import platformdirs

#: The lock file in a relay's state folder; relay/process/lock.py says why.
LOCK_NAME = "engine.lock"


def state_folder(name: str) -> Path:
    """Return the folder of the relay called ``name``: socket, log, memory of the slot and dead letters.

    Below ``$BWTUI_STATE_HOME``, or else the user's state folder (XDG_STATE_HOME).
    """
    return state_root() / name


def ledger_path(folder: Path, slot: str) -> Path:
    """Return where the coverage ledger of ``slot`` is kept, in a relay's state folder."""
    return folder / f"coverage-{slot}.json"


def state_root() -> Path:
    """Return the folder of everything that runs leave behind for later ones."""
    base = os.environ.get("BWTUI_STATE_HOME")
    return (Path(base) if base else Path(platformdirs.user_state_dir("bwtui"))).absolute()


def known_relays() -> list[str]:
    """Return the names of all relays that ever ran under this state folder, running or not."""
    root = state_root()
    return sorted(lock.parent.name for lock in root.glob(f"*/{LOCK_NAME}"))
