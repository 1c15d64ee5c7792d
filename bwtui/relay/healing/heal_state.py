"""State of a pending heal, stored from before anything is changed until a comparison is clean.

It is a small file in the relay's state folder. While the file exists, topics may lack what was written
between the lost slot and the new one, and every start continues the heal. ``lsn`` is written once the new
slot is created, its checkpoint is stored by `bwtui.relay.slot_checkpoint`, and the recording, if any, has
taken it. Without ``lsn`` a start creates the slot again, unless `bwtui.relay.slot_checkpoint` has the new
slot already.
"""

import contextlib
import json
import threading
import time
from dataclasses import asdict, replace
from pathlib import Path

from bwtui.durable_files import private_parent, sync, write_durably
from bwtui.errors import StateFailed
from bwtui.file_errors import file_failed
from bwtui.model.heal import HealStatus

Identity = tuple[str, str, str]


def heal_path(folder: Path, slot: str) -> Path:
    """Return the path of the file that stores a heal of ``slot``."""
    return folder / f"heal-{slot}.json"


class HealStateStore:
    """The stored state of one slot's heal; any thread may read and write it."""

    def __init__(self, folder: Path, identity: Identity) -> None:
        """``identity`` is the system identifier, the database and the slot; a heal of another is ignored.

        Raises StateFailed for a file that can't be read: a pending heal must not be forgotten.
        """
        self._path = heal_path(folder, identity[2])
        self._identity = identity
        self._lock = threading.Lock()
        self._now = self._load()

    @property
    def status(self) -> HealStatus | None:
        """The pending heal, if any."""
        return self._now

    def begin(self, reason: str) -> None:
        """Record durably that the slot has to be recreated. Raises StateFailed."""
        with self._lock:
            before = self._now
            since = before.since if before is not None else time.time()
            self._write(HealStatus(since, before.reason if before is not None else reason))

    def made(self, lsn: str) -> None:
        """Record durably that the slot was recreated at ``lsn``, after the checkpoint and the recording.

        Raises StateFailed.
        """
        with self._lock:
            assert self._now is not None
            self._write(replace(self._now, lsn=lsn, state="comparing"))

    def compare(self, reason: str, lsn: str) -> None:
        """Record durably that a comparison is needed: the slot at ``lsn`` lacks changes that topics hold.

        This is a single write: after `begin` alone, a start would drop the slot. Raises StateFailed.
        """
        with self._lock:
            before = self._now if self._now is not None else HealStatus(time.time(), reason)
            self._write(HealStatus(before.since, before.reason, "comparing", lsn))

    def tell(self, changed: HealStatus) -> None:
        """Update the progress in memory, without writing it."""
        with self._lock:
            if self._now is not None and self._now.lsn == changed.lsn:
                self._now = changed

    def done(self, lsn: str) -> bool:
        """Clear the heal of the slot created at ``lsn``, after a clean comparison.

        Return whether that heal was pending: it may have been done before, or the slot may be lost again.
        """
        with self._lock:
            if not lsn or self._now is None or self._now.lsn != lsn:
                return False
            try:
                self._path.unlink(missing_ok=True)
                sync(self._path.parent)
            except OSError as error:
                raise file_failed(f"{self._path} can't be removed", error) from error
            self._now = None
            return True

    def _write(self, now: HealStatus) -> None:
        try:
            private_parent(self._path)
            write_durably(self._path, json.dumps({"of": self._identity, "heal": asdict(now)}))
        except OSError as error:
            # Nothing is dropped before this state is stored.
            raise file_failed(f"the pending heal can't be recorded in {self._path}", error) from error
        self._now = now

    def _load(self) -> HealStatus | None:
        try:
            data = json.loads(self._path.read_text(encoding="utf-8"))
            identity, heal = tuple(data["of"]), HealStatus.from_json(data["heal"])
        except FileNotFoundError:
            return None
        except OSError as error:
            raise file_failed(f"{self._path} can't be read", error) from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise StateFailed(
                f"{self._path} can't be read: it records a pending heal",
                "remove it, and run 'bwtui repair' while the relay runs",
            ) from error
        return (
            replace(heal, state="comparing" if heal.lsn else "slot") if identity == self._identity else None
        )


def forget(folder: Path, slot: str) -> None:
    """Clear a heal, because its slot is dropped for a new snapshot."""
    with contextlib.suppress(FileNotFoundError):
        heal_path(folder, slot).unlink()
