"""Check the sealed files: the manifest, every file it lists, and the segments they were made from.

This needs neither Spark nor a Parquet reader: the manifest has the sha256 of every file.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bwtui.errors import DamagedRecording
from bwtui.file_errors import file_failed
from bwtui.recording.check_segment import SegmentCheck
from bwtui.recording.format.blocks import DamagedAt, SegmentPlace, damaged
from bwtui.recording.manifest import (
    MANIFEST,
    SEAL_AGAIN,
    SEALED,
    SEALING,
    Manifest,
    SealedFile,
    read_manifest,
)
from bwtui.recording.sealed import sha256_of

_MANIFEST = f"{SEALED}/{MANIFEST}"
_THREADS = 4


class FilePlace(SegmentPlace):
    """A file that is damaged as a whole, missing, or unexpected, rather than damaged at one offset."""

    def __str__(self) -> str:
        return self.segment


class SealedCheck:
    """Reads the manifest when created; the methods check the rest."""

    def __init__(self, folder: Path) -> None:
        """Raises StateFailed."""
        self._folder = folder
        self._root = folder / SEALED
        self.damages: list[DamagedAt] = []
        self.manifest = self._read() if self._root.is_dir() else None
        listed = self.manifest.segments if self.manifest is not None else ()
        self._sealed = {segment.name: segment for segment in listed}

    @property
    def is_there(self) -> bool:
        """Return whether anything was sealed."""
        return self.manifest is not None or bool(self.damages)

    @property
    def bytes(self) -> int:
        """Number of bytes to read."""
        return self.manifest.bytes if self.manifest is not None else 0

    @property
    def files(self) -> int:
        """Number of files that the manifest lists."""
        return len(self.manifest.files) if self.manifest is not None else 0

    def _read(self) -> Manifest | None:
        try:
            return read_manifest(self._root / MANIFEST)
        except FileNotFoundError:
            # A running or killed seal writes files there before the manifest lists them.
            if not (self._folder / SEALING).is_dir():
                self._note(_MANIFEST, "it is missing")
        except DamagedRecording as error:
            self._note(_MANIFEST, error.message.rpartition(": ")[2])
        except OSError as error:
            raise file_failed(f"{self._root / MANIFEST} can't be read", error) from error
        return None

    def _note(self, name: str, reason: str) -> None:
        self.damages.append(damaged(FilePlace(name, 0), reason, SEAL_AGAIN))

    def check_files(self, on_read: Callable[[int], None]) -> None:
        """Read every file; call ``on_read`` with the number of bytes read so far. Raises StateFailed."""
        if self.manifest is None:
            return
        done = 0
        with ThreadPoolExecutor(_THREADS, "sha256") as pool:
            for file, problem in zip(
                self.manifest.files, pool.map(self._problem, self.manifest.files), strict=True
            ):
                if problem is not None:
                    self._note(f"{SEALED}/{file.path}", problem)
                done += file.bytes
                on_read(done)
        for path in self._strangers(self.manifest):
            self._note(f"{SEALED}/{path}", f"{_MANIFEST} does not list it")

    def _problem(self, file: SealedFile) -> str | None:
        path = self._root / file.path
        try:
            size = path.stat().st_size
        except (FileNotFoundError, NotADirectoryError):
            return "it is missing"
        except OSError as error:
            raise file_failed(f"{path} can't be read", error) from error
        if size != file.bytes:
            return f"it has {size:,} bytes instead of {file.bytes:,}"
        return None if sha256_of(path) == file.sha256 else "it does not match its checksum"

    def _strangers(self, manifest: Manifest) -> list[str]:
        listed = {file.path for file in manifest.files} | {MANIFEST}
        existing = {
            path.relative_to(self._root).as_posix() for path in self._root.rglob("*") if path.is_file()
        }
        if existing <= listed or (self._folder / SEALING).is_dir():
            return []
        # A running seal may have finished in the meantime.
        with contextlib.suppress(DamagedRecording, OSError):
            listed |= {file.path for file in read_manifest(self._root / MANIFEST).files}
        return sorted(existing - listed)

    def check_bytes(self, segment: SegmentCheck) -> None:
        """Compare the segment's bytes with what was sealed, if its foot has no digest of all bytes."""
        sealed = self._sealed.get(segment.name)
        if sealed is None or not sealed.headers_sha256 or not segment.foot_offset:
            return
        if segment.file.sha256(segment.foot_offset) != sealed.sha256:
            self._note(segment.name, f"{_MANIFEST} lists different contents for it")

    def check_segments(self, recording: str, segments: Mapping[str, str | None]) -> None:
        """Compare the journal's segments (name to digest, None if damaged) with those that were sealed."""
        if self.manifest is None:
            return
        if recording and recording != self.manifest.recording:
            self._note(_MANIFEST, "it belongs to a different recording")
            return
        for run in self._missing(segments):
            more = f" and the {len(run) - 1:,} after it up to {run[-1]}" if len(run) > 1 else ""
            are = "are" if more else "is"
            self._note(run[0], f"this segment{more} {are} missing, but {_MANIFEST} lists their sealed files")
        for sealed in self.manifest.segments:
            if segments.get(sealed.name) not in (None, sealed.digest):
                self._note(sealed.name, f"{_MANIFEST} lists a different checksum for it")

    def _missing(self, segments: Mapping[str, str | None]) -> Iterator[list[str]]:
        """Yield runs of consecutive missing segments."""
        run: list[str] = []
        assert self.manifest is not None
        for sealed in self.manifest.segments:
            if sealed.name not in segments:
                run.append(sealed.name)
            elif run:
                yield run
                run = []
        if run:
            yield run
