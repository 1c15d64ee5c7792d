"""A sealed recording: read its manifest, and check all files before any of them is used."""

import hashlib
import json
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from bwtui.errors import DamagedRecording, UsageError
from bwtui.file_errors import file_failed
from bwtui.recording.blocks import SegmentPlace, damaged, json_array, number, obj, relative, sha256, text
from bwtui.recording.folder import FINISHED, segments
from bwtui.recording.recover import foot_of
from bwtui.recording.walk import digest_of

# A sealed recording's manifest: every Parquet file with its sha256, and the segments that were sealed.
#
# It is JSON. Its last member is the sha256 of all the text before that member, so that any reader can check
# it (see docs/recording-format.md).

#: Within the recording's folder.
SEALED = "sealed"
#: Sibling folder with the output of a seal that has not finished.
SEALING = "sealing"
MANIFEST = "manifest.json"
FORMAT = "bwtui sealed recording"
VERSION = 1
#: Hint for a damaged file.
SEAL_AGAIN = (
    f"restore the file from a backup, or remove the folder {SEALED!r} and run 'bwtui recording seal' again"
)
_SEPARATOR = ',\n "sha256": "'
_END = '"\n}\n'
_KINDS = ("changes", "transactions", "schemas")


@dataclass(frozen=True, slots=True)
class SealedFile:
    """One Parquet file; ``path`` is relative to the manifest, positions and LSNs are those of its rows."""

    path: str
    #: "changes", "transactions" or "schemas".
    kind: str
    rows: int
    bytes: int
    sha256: str
    table: str = ""
    hour: str = ""
    first_position: int = 0
    last_position: int = 0
    first_lsn: int = 0
    last_lsn: int = 0


@dataclass(frozen=True, slots=True)
class SealedSegment:
    """A sealed segment of the journal; ``sha256`` covers all bytes before its foot."""

    name: str
    sha256: str
    first_position: int
    changes: int
    bytes: int
    #: The digest in its foot; if empty, that is ``sha256``, as in version 1 of the journal's format.
    headers_sha256: str = ""

    @property
    def digest(self) -> str:
        """The digest in its foot, which the next segment's head repeats."""
        return self.headers_sha256 or self.sha256


@dataclass(slots=True)
class Manifest:
    """The contents of `MANIFEST`."""

    recording: str
    source: dict[str, Any] = field(default_factory=dict)
    segments: list[SealedSegment] = field(default_factory=list)
    files: list[SealedFile] = field(default_factory=list)
    #: [subject, id] of every schema in the schemas table.
    schemas: list[tuple[str, int]] = field(default_factory=list)

    @property
    def changes(self) -> int:
        """Number of sealed changes; their positions begin at 0."""
        return sum(segment.changes for segment in self.segments)

    @property
    def rows(self) -> int:
        """Number of rows in the changes table: one per message, and one for a change without a message."""
        return sum(file.rows for file in self.files if file.kind == "changes")

    @property
    def bytes(self) -> int:
        """Total size of the files."""
        return sum(file.bytes for file in self.files)

    def to_text(self) -> str:
        """Return the manifest's text, with its checksum."""
        content = {
            "format": FORMAT,
            "version": VERSION,
            "recording": self.recording,
            "changes": self.changes,
            "rows": self.rows,
            "source": self.source,
            "segments": [asdict(segment) for segment in self.segments],
            "schemas": self.schemas,
            "files": [asdict(file) for file in self.files],
        }
        return with_checksum(content)


def with_checksum(content: dict[str, Any]) -> str:
    """Return ``content`` as JSON with an additional last member, the sha256 of the text before it."""
    covered = json.dumps(content, indent=1, ensure_ascii=False).removesuffix("\n}")
    return f"{covered}{_SEPARATOR}{hashlib.sha256(covered.encode()).hexdigest()}{_END}"


def checked(raw: bytes) -> dict[str, Any]:
    """Parse what `with_checksum` wrote. Raises ValueError when it has changed."""
    covered, separator, rest = raw.decode().rpartition(_SEPARATOR)
    if not separator or rest != hashlib.sha256(covered.encode()).hexdigest() + _END:
        raise ValueError("it does not match its checksum")
    content = json.loads(raw)
    if not isinstance(content, dict):
        raise ValueError("it is not an object")
    return content


def read_manifest(path: Path) -> Manifest:
    """Read the manifest at ``path``. Raises DamagedRecording, or OSError when it can't be read."""
    try:
        content = checked(path.read_bytes())
        if content["format"] != FORMAT or content["version"] != VERSION:
            raise ValueError(
                f"its format is version {content['version']} of {content['format']!r}, which this "
                "bwtui does not support"
            )
        manifest = Manifest(
            text(content["recording"]),
            obj(content["source"]),
            sealed_segments(content["segments"]),
            sealed_files(content["files"]),
            [(text(subject), number(schema)) for subject, schema in json_array(content["schemas"])],
        )
        _check_chain(manifest.segments)
        return manifest
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        reason = (
            str(error) if isinstance(error, ValueError) and "checksum" in str(error) else "it can't be read"
        )
        raise damaged_file(path.name, reason) from error


def sealed_segments(content: Any) -> list[SealedSegment]:
    """Parse a manifest's list of segments. Raises ValueError, KeyError or TypeError."""
    segments = []
    for entry in json_array(content):
        segment = SealedSegment(**_fields_of(SealedSegment, entry))
        if not FINISHED.fullmatch(text(segment.name)):
            raise ValueError("it is not the name of a segment")
        sha256(segment.sha256)
        sha256(segment.digest)
        for value in (segment.first_position, segment.changes, segment.bytes):
            number(value)
        segments.append(segment)
    return segments


def _check_chain(segments: list[SealedSegment]) -> None:
    position = 0
    for segment in segments:
        number(segment.first_position, position, position)
        position += segment.changes


def sealed_files(content: Any) -> list[SealedFile]:
    """Parse a manifest's list of files. Raises ValueError, KeyError or TypeError."""
    files = [_sealed_file(SealedFile(**_fields_of(SealedFile, entry))) for entry in json_array(content)]
    if len({file.path for file in files}) < len(files):
        raise ValueError("a file is listed twice")
    return files


def _sealed_file(file: SealedFile) -> SealedFile:
    if text(file.kind) not in _KINDS or relative(file.path).partition("/")[0] != file.kind:
        raise ValueError("it is not a file of a sealed recording")
    sha256(file.sha256)
    for value in (file.rows, file.bytes, file.first_lsn, file.last_lsn):
        number(value)
        # A file without rows has position -1.
    for value in (file.first_position, file.last_position):
        number(value, -1)
    for name in (file.table, file.hour):
        text(name)
    return file


def _fields_of(kind: Any, content: Any) -> dict[str, Any]:
    names = {one.name for one in fields(kind)}
    return {name: value for name, value in obj(content).items() if name in names}


def damaged_file(path: str, reason: str) -> DamagedRecording:
    """Return the error that names a file of a sealed recording."""
    return DamagedRecording(
        f"the sealed recording is damaged: {SEALED}/{path}: {reason}",
        SEAL_AGAIN,
    )


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
