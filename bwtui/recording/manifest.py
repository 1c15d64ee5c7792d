"""A sealed recording's manifest: every Parquet file with its sha256, and the segments that were sealed.

It is JSON. Its last member is the sha256 of all the text before that member, so that any reader can check it
(see docs/recording-format.md).
"""

import hashlib
import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from bwtui.errors import DamagedRecording
from bwtui.recording.folder import FINISHED
from bwtui.recording.format.validation import array, number, obj, relative, sha256, text

#: Within the recording's folder.
SEALED = "sealed"
#: Sibling folder with the output of a seal that has not finished.
SEALING = "sealing"
MANIFEST = "manifest.json"
FORMAT = "bwtui sealed recording"
VERSION = 1
#: Hint for a damaged file.
SEAL_AGAIN = (
    f"restore the file from a copy, or remove the folder {SEALED!r} and run 'bwtui recording seal' again"
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
            [(text(subject), number(schema)) for subject, schema in array(content["schemas"])],
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
    for entry in array(content):
        segment = SealedSegment(**_own_fields(SealedSegment, entry))
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
    files = [_sealed_file(SealedFile(**_own_fields(SealedFile, entry))) for entry in array(content)]
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


def _own_fields(kind: Any, content: Any) -> dict[str, Any]:
    names = {one.name for one in fields(kind)}
    return {name: value for name, value in obj(content).items() if name in names}


def damaged_file(path: str, reason: str) -> DamagedRecording:
    """Return the error that names a file of a sealed recording."""
    return DamagedRecording(
        f"the sealed recording is damaged: {SEALED}/{path}: {reason}",
        SEAL_AGAIN,
    )
