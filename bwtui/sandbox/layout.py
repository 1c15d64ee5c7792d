"""The paths of one sandbox, and the state that it keeps between two starts."""

import contextlib
import errno
import fcntl
import json
import os
import pwd
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO

import platformdirs

from bwtui.durable_files import write_atomically
from bwtui.errors import RefusedError
from bwtui.file_errors import hint_for, reason_of

#: Names of everything that a sandbox creates in its folder; only these are removed. The last marks the
#: folder.
_OWN = ("memory.json", "status.json", "control", "lock", "logs", "data", "starting")
#: Lock file that a demo holds while it runs; if it exists, the folder's contents belong to a demo.
_DEMO_LOCK = "demo.lock"
_OF_DEMO = ("recording", _DEMO_LOCK)


def sandbox_folder() -> Path:
    """Return the folder of the user's sandbox: BWTUI_SANDBOX_HOME, or one in the user's state folder."""
    named = os.environ.get("BWTUI_SANDBOX_HOME")
    folder = Path(named) if named else Path(platformdirs.user_state_dir("bwtui")) / "sandbox"
    return folder.expanduser().absolute()


def demo_folder() -> Path:
    """Return the folder of the demo's sandbox: within the user's, unless that is a demo's itself."""
    folder = sandbox_folder()
    # If the folder may not be entered, the code that enters it reports that.
    return folder if os.access(folder / _DEMO_LOCK, os.F_OK) else folder / "demo"


@contextlib.contextmanager
def usable(folder: Path) -> Iterator[None]:
    """Raise RefusedError instead of OSError for a sandbox's folder, or for anything in it."""
    try:
        yield
    except OSError as error:
        named = Path(os.fsdecode(error.filename or ""))
        if folder not in (named, *named.parents) and named not in folder.parents:
            raise
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.EIO):
            hint = hint_for(error)
        else:
            hint = "set BWTUI_SANDBOX_HOME to a writable folder"
        raise RefusedError(f"can't use the sandbox's folder {folder}: {reason_of(error)}", hint) from error


@dataclass(frozen=True, slots=True)
class ServerUser:
    """The user for PostgreSQL when bwtui runs as root, which PostgreSQL rejects."""

    uid: int
    gid: int

    @classmethod
    def needed(cls) -> "ServerUser | None":
        """Return the user nobody if the current user is root, otherwise None.

        The user must have a name, because initdb looks it up. An existing user postgres is not used, since
        the files of a real server may belong to it. Raises RefusedError when the current user has no name.
        """
        if os.geteuid() != 0:
            try:
                pwd.getpwuid(os.geteuid())
            except KeyError:
                raise RefusedError(
                    f"PostgreSQL can't run under user id {os.geteuid()}, which has no name",
                    "Add the user to the system's user database, or run the sandbox as a different user.",
                ) from None
            return None
        entry = pwd.getpwnam("nobody")
        return cls(entry.pw_uid, entry.pw_gid)


@dataclass(slots=True)
class SandboxState:
    """The state that a sandbox keeps from one start to the next; only its owner may read the file."""

    password: str = field(default_factory=lambda: secrets.token_urlsafe(18))
    #: Empty if PostgreSQL's data is in the sandbox's folder; otherwise the accessible folder created for it.
    postgres_place: str = ""
    #: The random id with which Kafka's storage is formatted.
    # A base64 UUID after a letter, since a leading dash would be parsed as an option.
    cluster_id: str = field(default_factory=lambda: "A" + secrets.token_urlsafe(16)[1:22])
    ports: dict[str, int] = field(default_factory=dict)


class SandboxLayout:
    """The paths of one sandbox."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        #: Held by the supervisor while it lives; contains its process id.
        self.lock = folder / "lock"
        #: Held by the process that starts a supervisor.
        self.starting = folder / "starting"
        self.control = folder / "control"
        self.status = folder / "status.json"
        self.memory = folder / "memory.json"
        self.logs = folder / "logs"
        self.data = folder / "data"
        #: The sandbox of `bwtui demo` in this folder.
        self.demo = folder / "demo"
        self._demo_lock = folder / _DEMO_LOCK
        #: Temporary files, so that leftovers of a killed Java process stay in the sandbox.
        self.temporary = self.data / "tmp"

    @property
    def is_ours(self) -> bool:
        """Return whether a sandbox or a demo was started here; each creates its file before anything else."""
        return self.starting.exists() or self._demo_lock.exists()

    def make(self) -> None:
        """Create the folders, accessible only to their owner."""
        for folder in (self.folder, self.logs, self.data, self.temporary):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def clear_temporary(self) -> None:
        """Remove the leftovers of killed services; none of them may be running."""
        shutil.rmtree(self.temporary, ignore_errors=True)
        self.temporary.mkdir(mode=0o700)

    def remember(self, memory: SandboxState) -> None:
        """Write the state atomically."""
        write_atomically(self.memory, json.dumps(asdict(memory), indent=1))

    def recall(self) -> SandboxState:
        """Return the state of the last start, or a new one, which is saved at once."""
        if self.memory.exists():
            return SandboxState(**json.loads(self.memory.read_text()))
        memory = SandboxState()
        self.remember(memory)
        return memory

    def postgres_place(self, memory: SandboxState, user: ServerUser | None) -> Path:
        """Return the folder for PostgreSQL's data, and for its programs when they can't be in the cache.

        It is the sandbox's own, unless PostgreSQL has to run as a different user, who can't access it; then
        it is a new folder in /var/tmp, which survives a reboot as the sandbox's folder does.
        """
        if user is None or memory.postgres_place:
            return Path(memory.postgres_place or self.data)
        if not reachable_by_others(self.data):
            place = tempfile.mkdtemp(prefix="bwtui-", dir="/var/tmp" if Path("/var/tmp").is_dir() else None)
            Path(place).chmod(0o755)
            memory.postgres_place = place
            self.remember(memory)
            return Path(place)
        return self.data

    def lock_demo(self) -> IO[str]:
        """Take the lock of a demo in this folder, held until it is closed. Raises RefusedError."""
        lock = self._demo_lock.open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise RefusedError(
                f"another demo is running in {self.folder}",
                "stop it first, or set different folders with BWTUI_SANDBOX_HOME and BWTUI_STATE_HOME",
            ) from None
        return lock

    def refuse_demo(self) -> None:
        """Raise RefusedError if a demo is running in this folder."""
        if self._demo_lock.exists():
            self.lock_demo().close()

    def wipe(self) -> None:
        """Remove everything that the sandbox created; other files in the folder stay."""
        if self.is_ours:
            self._remove()
        if self.folder.is_dir() and not any(self.folder.iterdir()):
            self.folder.rmdir()

    def _remove(self) -> None:
        if self.memory.exists():
            place = self.recall().postgres_place
            if place:
                shutil.rmtree(place, ignore_errors=True)
        for name in (*_OWN, *(_OF_DEMO if self._demo_lock.exists() else ())):
            path = self.folder / name
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


def reachable_by_others(folder: Path) -> bool:
    """Return whether any user may enter the folder, its parents, and the targets of symlinks among them."""
    return all(_is_passable(path) for path in (folder, *folder.parents))


def _is_passable(path: Path) -> bool:
    if not path.stat().st_mode & stat.S_IXOTH:
        return False
    return not path.is_symlink() or reachable_by_others(path.parent / path.readlink())
