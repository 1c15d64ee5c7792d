"""The files of the sandbox: fetched into the user's cache folder, verified, unpacked.

Every file is compared with the lock's sha256 before its first use, and jars before every start; a wrong one
is removed and refused. Only the files for the current call are fetched.
"""

import contextlib
import fcntl
import os
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import platformdirs

from bwtui.errors import ConnectionFailed, RefusedError
from bwtui.packages import ivy, lockfile
from bwtui.packages.lockfile import Artifact
from bwtui.packages.setup_progress import SetupProgress

#: Maximum attempts; Ivy keeps fetched files, so a retry continues where an unreliable network interrupted it.
TRIES = 3


def cache_folder() -> Path:
    """Return the folder for fetched files: BWTUI_CACHE_HOME, or the user's cache folder."""
    return (
        Path(os.environ.get("BWTUI_CACHE_HOME") or platformdirs.user_cache_dir("bwtui"))
        .expanduser()
        .absolute()
    )


class ArtifactStore:
    """The fetched files in one cache folder."""

    def __init__(self, cache: Path | None = None) -> None:
        self.cache = cache or cache_folder()
        self.files = self.cache / "files"

    def fetch(self, groups: Sequence[str], progress: SetupProgress) -> None:
        """Ensure that every file of the groups is present and is the locked one.

        Raises RefusedError for a file with a different sha256, ConnectionFailed when it can't be fetched.
        """
        artifacts = [artifact for group in groups for artifact in lockfile.load()[group]]
        self.files.mkdir(parents=True, exist_ok=True)
        with self._exclusive():
            missing = [artifact for artifact in artifacts if not self._present(artifact)]
            if missing:
                self._download(missing, progress)

    def jars(self, group: str) -> list[Path]:
        """Return the paths of a group's files, after comparing each with the lock.

        Raises RefusedError for a file with a different sha256, which is removed from the cache.
        """
        return [self._checked(artifact) for artifact in lockfile.load()[group]]

    def unpacked(self, group: str, place: Path | None = None) -> Path:
        """Unpack a group's single archive if necessary, and return its folder.

        The folder is in the cache, or in `place`. Its name contains the archive's sha256, so that archives of
        different locks are never mixed.
        """
        (archive,) = lockfile.load()[group]
        folder = (place or self.cache / "unpacked") / f"{group}-{archive.sha256[:12]}"
        if not folder.exists():
            folder.parent.mkdir(parents=True, exist_ok=True)
            fresh = Path(tempfile.mkdtemp(prefix=f"{group}.", suffix=".partial", dir=folder.parent))
            try:
                _unpack(self._checked(archive), fresh)
                fresh.chmod(0o755)
                with contextlib.suppress(OSError):
                    # This fails when another process was faster; then there is nothing left to do.
                    fresh.rename(folder)
            finally:
                shutil.rmtree(fresh, ignore_errors=True)
        return folder

    def _present(self, artifact: Artifact) -> bool:
        path = self.files / artifact.file_name
        return path.exists() and path.stat().st_size == artifact.size

    def _checked(self, artifact: Artifact) -> Path:
        return self._check(artifact, self.files / artifact.file_name)

    def _check(self, artifact: Artifact, path: Path) -> Path:
        if not artifact.matches(path):
            path.unlink()
            raise RefusedError(
                f"the sha256 of {artifact.coordinates} differs from the locked one",
                "The file was removed. Run the command again to download it; if that fails again, "
                "the registry or its mirror serves a different file.",
            )
        return path

    def _download(self, missing: Sequence[Artifact], progress: SetupProgress) -> None:
        total = sum(artifact.size for artifact in missing)
        progress.note(f"fetching {len(missing)} files, {total / 1e6:.0f} MB, into {self.files}")
        incoming = self.cache / "incoming"
        # Ivy would keep the leftovers of an interrupted copy.
        shutil.rmtree(incoming, ignore_errors=True)
        self._run_ivy(missing, incoming, total, progress)
        for artifact in missing:
            path = self._check(artifact, incoming / artifact.file_name)
            path.replace(self.files / artifact.file_name)
        shutil.rmtree(incoming)

    def _run_ivy(
        self, missing: Sequence[Artifact], incoming: Path, total: int, progress: SetupProgress
    ) -> None:
        text = ivy.module(
            ["default"],
            [ivy.dependency(a.org, a.name, a.rev, "default", a.ext, a.classifier) for a in missing],
        )
        pattern = f"{incoming}/[artifact]-[revision](-[classifier]).[ext]"
        for attempt in range(1, TRIES + 1):
            try:
                ivy.retrieve(
                    text, pattern, self.cache, lambda done: progress.fetched(min(done, total - 1), total)
                )
                break
            except ConnectionFailed as error:
                if attempt == TRIES:
                    raise
                progress.note(f"{error.message}; trying again")
        progress.fetched(total, total)
        # Ivy's own copies are no longer needed; they would double the disk space.
        shutil.rmtree(self.cache / "ivy", ignore_errors=True)

    @contextlib.contextmanager
    def _exclusive(self) -> Iterator[None]:
        # Two sandboxes that start concurrently must not write the same files.
        with (self.cache / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _unpack(archive: Path, folder: Path) -> None:
    if archive.suffix == ".jar":
        with zipfile.ZipFile(archive) as jar:
            (name,) = [name for name in jar.namelist() if name.endswith(".txz")]
            with jar.open(name) as inner, tarfile.open(fileobj=inner, mode="r:xz") as tar:
                extract(tar, folder)
        return
    with tarfile.open(archive) as tar:
        extract(tar, folder)


def extract(tar: tarfile.TarFile, folder: Path) -> None:
    """Unpack an archive that was verified before."""
    if hasattr(tarfile, "data_filter"):
        tar.extractall(folder, filter="data")
    else:
        # Python before 3.11.4, as in Debian 12, has no filters. The archive was verified.
        tar.extractall(folder)
