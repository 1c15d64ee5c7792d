"""A sealed recording: read its manifest, and check all files before any of them is used."""

import hashlib
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from bwtui.errors import UsageError
from bwtui.file_errors import file_failed
from bwtui.recording.folder import segments
from bwtui.recording.format.blocks import SegmentPlace, damaged
from bwtui.recording.format.digest import digest_of
from bwtui.recording.manifest import (
    MANIFEST,
    SEALED,
    SEALING,
    Manifest,
    SealedFile,
    damaged_file,
    read_manifest,
)
from bwtui.recording.recover import foot_of

#: Called with the number of checked bytes and the total.
OnBytes = Callable[[int, int], None]
_THREADS = 4


@dataclass(frozen=True, slots=True)
class SealedRecording:
    """A sealed recording whose files are unchanged."""

    folder: Path
    manifest: Manifest
    #: Number of finished segments of the journal that are not sealed yet.
    behind: int

    @property
    def root(self) -> Path:
        """The folder of the manifest and of all tables."""
        return self.folder / SEALED

    def is_complete(self) -> bool:
        """Return whether all finished segments are sealed; this reads only their names.

        Raises UsageError or StateFailed when the folder is missing or can't be read.
        """
        names = {segment.name for segment in self.manifest.segments}
        return all(segment.path.name in names for segment in segments(self.folder) if segment.is_finished)

    def paths(self, kind: str = "changes") -> list[Path]:
        """Return the Parquet files of a kind: "changes", "transactions" or "schemas"."""
        return [self.root / file.path for file in self.manifest.files if file.kind == kind]


def open_sealed(
    folder: str | Path, on_bytes: OnBytes | None = None, *, check_files: bool = True
) -> SealedRecording:
    """Open the sealed part of a recording, and check every byte of it.

    With ``check_files=False``, this checks only that the files exist and have the right size, for callers
    that check the files that they read with `check_file`. Raises UsageError when the recording was never
    sealed, DamagedRecording with the file's name, or StateFailed.
    """
    folder = Path(folder)
    path = folder / SEALED / MANIFEST
    try:
        manifest = read_manifest(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        if (folder / SEALED).is_dir() and not (folder / SEALING).is_dir():
            raise damaged_file(MANIFEST, "it is missing") from error
        raise UsageError(f"{folder} was not sealed", "run 'bwtui recording seal' first") from error
    except OSError as error:
        raise file_failed(f"{path} can't be read", error) from error
    later = _check_segments(folder, manifest)
    check_sizes(folder / SEALED, manifest.files)
    if check_files:
        check_all(folder / SEALED, manifest.files, on_bytes)
    return SealedRecording(folder, manifest, later)


def _check_segments(folder: Path, manifest: Manifest) -> int:
    """Return the number of finished segments that are not sealed; sealed ones must match the manifest."""
    sealed = {segment.name: segment for segment in manifest.segments}
    later = 0
    for segment in segments(folder):
        if not segment.is_finished:
            continue
        as_sealed = sealed.get(segment.path.name)
        if as_sealed is None:
            later += 1
        elif digest_of(foot_of(segment)) != as_sealed.digest:
            raise damaged(
                SegmentPlace(segment.path.name, 0), f"{SEALED}/{MANIFEST} lists a different checksum for it"
            )
    return later


def unsealed_bytes(folder: Path, recording: SealedRecording | None) -> int:
    """Return the size of a recording's finished, unsealed segments; ``recording`` is the sealed part.

    Raises UsageError or StateFailed.
    """
    sealed = {one.name for one in recording.manifest.segments} if recording is not None else set()
    paths = [one.path for one in segments(folder) if one.is_finished and one.path.name not in sealed]
    try:
        return sum(path.stat().st_size for path in paths)
    except OSError as error:
        raise file_failed(f"{folder} can't be read", error) from error


def check_sizes(root: Path, files: Iterable[SealedFile]) -> None:
    """Raise DamagedRecording unless the files exist with their recorded sizes."""
    for file in files:
        try:
            size = (root / file.path).stat().st_size
        except OSError as error:
            raise damaged_file(file.path, "it is missing") from error
        if size != file.bytes:
            raise damaged_file(file.path, f"it has {size:,} bytes instead of {file.bytes:,}")


def check_file(root: Path, file: SealedFile) -> int:
    """Raise DamagedRecording unless the file matches its checksum; return its size."""
    if sha256_of(root / file.path) != file.sha256:
        raise damaged_file(file.path, "it does not match its checksum")
    return file.bytes


def sha256_of(path: Path) -> str:
    """Compute a file's sha256. Raises StateFailed."""
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise file_failed(f"{path} can't be read", error) from error


def check_all(root: Path, files: Iterable[SealedFile], on_bytes: OnBytes | None = None) -> None:
    """Check every file; hashing releases the interpreter's lock. Raises DamagedRecording or StateFailed."""
    listed = list(files)
    total, done = sum(file.bytes for file in listed), 0
    with ThreadPoolExecutor(_THREADS) as pool:
        for size in pool.map(lambda file: check_file(root, file), listed):
            done += size
            if on_bytes is not None:
                on_bytes(done, total)
