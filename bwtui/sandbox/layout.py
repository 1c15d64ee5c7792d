"""Where one sandbox keeps its things, and what it remembers between two starts."""

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

from bwtui.durable import write_whole
from bwtui.errors import RefusedError
from bwtui.file_errors import reason_of, remedy

#: Names of all that a sandbox makes in its folder; only these are wiped. The last tells that they are its.
_OWN = ("memory.json", "status.json", "control", "lock", "logs", "data", "starting")
#: Held by a demo for as long as it runs; where it is, these are the demo's.
_DEMO_LOCK = "demo.lock"
_OF_DEMO = ("recording", _DEMO_LOCK)


def sandbox_folder() -> Path:
    """Return the folder of the user's sandbox: BWTUI_SANDBOX_HOME, or one in the user's state folder."""
    named = os.environ.get("BWTUI_SANDBOX_HOME")
    folder = Path(named) if named else Path(platformdirs.user_state_dir("bwtui")) / "sandbox"
    return folder.expanduser().absolute()


def demo_folder() -> Path:
    """Return the folder of the demo's own sandbox: within the user's, unless that is a demo's itself."""
    folder = sandbox_folder()
    # A folder that may not be entered is told by whoever enters it.
    return folder if os.access(folder / _DEMO_LOCK, os.F_OK) else folder / "demo"


@contextlib.contextmanager
def usable(folder: Path) -> Iterator[None]:
    """Raise RefusedError in place of what the system says of a sandbox's folder, or of what is in it."""
    try:
        yield
    except OSError as error:
        named = Path(os.fsdecode(error.filename or ""))
        if folder not in (named, *named.parents) and named not in folder.parents:
            raise
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.EIO):
            hint = remedy(error)
        else:
            hint = "set BWTUI_SANDBOX_HOME to a folder that you may write to"
        raise RefusedError(f"can't use the sandbox's folder {folder}: {reason_of(error)}", hint) from error


@dataclass(frozen=True, slots=True)
class ServerUser:
    """The user PostgreSQL runs under when bwtui runs as root, which PostgreSQL refuses."""

    uid: int
    gid: int

    @classmethod
    def needed(cls) -> "ServerUser | None":
        """Return the user nobody when we are root, else None.

        It must be a user with a name: initdb looks it up. An existing user postgres is not taken, since
        the files of a real server may belong to it. Raises RefusedError when our own user has no name.
        """
        if os.geteuid() != 0:
            try:
                pwd.getpwuid(os.geteuid())
            except KeyError:
                raise RefusedError(
                    f"PostgreSQL does not run under user id {os.geteuid()}, which has no name",
                    "Give the user a line in the system's list of users, or run the sandbox as another user.",
                ) from None
            return None
        entry = pwd.getpwnam("nobody")
        return cls(entry.pw_uid, entry.pw_gid)


@dataclass(slots=True)
class Memory:
    """What a sandbox remembers from one start to the next; the file is for its owner only."""

    password: str = field(default_factory=lambda: secrets.token_urlsafe(18))
    #: Empty: PostgreSQL's data is in the sandbox's folder. Else the reachable folder made for it.
    postgres_place: str = ""
    #: A random id that Kafka's storage is formatted with.
    # A base64 UUID; behind a letter, since a dash in front would be taken for an option.
    cluster_id: str = field(default_factory=lambda: "A" + secrets.token_urlsafe(16)[1:22])
    ports: dict[str, int] = field(default_factory=dict)


class Layout:
    """The paths of one sandbox."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        #: Held by the supervisor for as long as it lives; holds its process id.
        self.lock = folder / "lock"
        #: Held by whoever starts a supervisor.
        self.starting = folder / "starting"
        self.control = folder / "control"
        self.status = folder / "status.json"
        self.memory = folder / "memory.json"
        self.logs = folder / "logs"
        self.data = folder / "data"
        #: The sandbox that `bwtui demo` has in here.
        self.demo = folder / "demo"
        self._demo_lock = folder / _DEMO_LOCK
        #: What a killed Java process leaves behind is in the sandbox, and not in everybody's folder.
        self.temporary = self.data / "tmp"

    @property
    def is_ours(self) -> bool:
        """Whether a sandbox or a demo was started in here; either makes its file before anything starts."""
        return self.starting.exists() or self._demo_lock.exists()

    def make(self) -> None:
        """Make the folders, for their owner only."""
        for folder in (self.folder, self.logs, self.data, self.temporary):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def clear_temporary(self) -> None:
        """Remove what services that were killed have left; none of them may be running."""
        shutil.rmtree(self.temporary, ignore_errors=True)
        self.temporary.mkdir(mode=0o700)

    def remember(self, memory: Memory) -> None:
        """Write the memory, atomically."""
        write_whole(self.memory, json.dumps(asdict(memory), indent=1))

    def recall(self) -> Memory:
        """Return the memory of the last start, or a new one that is remembered at once."""
        if self.memory.exists():
            return Memory(**json.loads(self.memory.read_text()))
        memory = Memory()
        self.remember(memory)
        return memory

    def postgres_place(self, memory: Memory, user: ServerUser | None) -> Path:
        """Return the folder for PostgreSQL's data, and for its programs when they can't be in the cache.

        It is the sandbox's own, unless PostgreSQL has to run under another user, who can't get there;
        then it is a new folder in /var/tmp, which outlives a reboot as the sandbox's folder does.
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
        """Return the lock of a demo that runs in here, held until it is closed. Raises RefusedError."""
        lock = self._demo_lock.open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise RefusedError(
                f"another demo is running in {self.folder}",
                "end it first, or give this one another folder with BWTUI_SANDBOX_HOME and BWTUI_STATE_HOME",
            ) from None
        return lock

    def refuse_demo(self) -> None:
        """Raise RefusedError if a demo runs in here."""
        if self._demo_lock.exists():
            self.lock_demo().close()

    def wipe(self) -> None:
        """Remove everything the sandbox made; files of others in the folder stay."""
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
    """Return whether any user may pass through the folder, all folders above it, and those of symlinks."""
    return all(_lets_others_pass(path) for path in (folder, *folder.parents))


def _lets_others_pass(path: Path) -> bool:
    if not path.stat().st_mode & stat.S_IXOTH:
        return False
    return not path.is_symlink() or reachable_by_others(path.parent / path.readlink())
