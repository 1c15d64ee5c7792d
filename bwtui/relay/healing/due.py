"""What a relay remembers of a heal that is due, from before anything is changed until a clean comparison.

A small file in the relay's state folder. While it is there, topics may lack what was written between the lost
slot and the new one, and every start goes on with the heal. ``lsn`` is written once the new slot is made,
remembered by `bwtui.relay.memory`, and taken by the recording, if any; without it a start makes the slot
again, unless `bwtui.relay.memory` has the new slot already.
"""

import contextlib
import json
import threading
import time
from dataclasses import asdict, replace
from pathlib import Path

from bwtui.durable import private_parent, sync, write_durably
from bwtui.errors import StateFailed
from bwtui.file_errors import file_failed
from bwtui.model.heal import HealStatus

Identity = tuple[str, str, str]


def heal_path(folder: Path, slot: str) -> Path:
    """Return where a heal of ``slot`` is remembered."""
    return folder / f"heal-{slot}.json"


class Due:
    """The memory of one slot's heal; any thread may ask and write."""

    def __init__(self, folder: Path, identity: Identity) -> None:
        """``identity``: the server's, the database and the slot; a heal of another one counts as none.

        Raises StateFailed for a file that can't be read: that a heal is due must not be forgotten.
        """
        self._path = heal_path(folder, identity[2])
        self._identity = identity
        self._lock = threading.Lock()
        self._now = self._load()

    @property
    def status(self) -> HealStatus | None:
        """What is due, if anything is."""
        return self._now

    def begin(self, reason: str) -> None:
        """Note, durably, that the slot is to be made anew. Raises StateFailed."""
        with self._lock:
            before = self._now
            since = before.since if before is not None else time.time()
            self._write(HealStatus(since, before.reason if before is not None else reason))

    def made(self, lsn: str) -> None:
        """Note, durably, that the slot was made anew at ``lsn``, and all know it. Raises StateFailed."""
        with self._lock:
            assert self._now is not None
            self._write(replace(self._now, lsn=lsn, state="comparing"))

    def compare(self, reason: str, lsn: str) -> None:
        """Note, durably, that topics are to be compared: the slot at ``lsn`` lacks some of what they hold.

        One write: after `begin` alone, a start would drop the slot. Raises StateFailed.
        """
        with self._lock:
            before = self._now if self._now is not None else HealStatus(time.time(), reason)
            self._write(HealStatus(before.since, before.reason, "comparing", lsn))

    def tell(self, changed: HealStatus) -> None:
        """Take what is under way; it is not written."""
        with self._lock:
            if self._now is not None and self._now.lsn == changed.lsn:
                self._now = changed

    def done(self, lsn: str) -> bool:
        """Forget the heal of the slot that was made at ``lsn``: a comparison since was clean.

        Return whether it was that one: it may have been healed before, or be lost once more.
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
            # Nothing is dropped that is not remembered.
            raise file_failed(f"that a heal is due can't be written to {self._path}", error) from error
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
                f"{self._path} can't be read: it says that topics are to be compared with tables",
                "remove it, and run 'bwtui repair' while the relay runs",
            ) from error
        return (
            replace(heal, state="comparing" if heal.lsn else "slot") if identity == self._identity else None
        )


def forget(folder: Path, slot: str) -> None:
    """Forget a heal, whose slot is dropped for a new snapshot."""
    with contextlib.suppress(FileNotFoundError):
        heal_path(folder, slot).unlink()
