"""The digest in a segment's foot: what it says, and what the file's bytes make of it."""

from bwtui.recording.format.blocks import SegmentFile
from bwtui.recording.format.statements import Foot, digest_kind


def digest_of(foot: Foot) -> str:
    """Return the digest that the next segment's head repeats; empty, where the segment is not finished."""
    return str(foot.get(digest_kind(foot), ""))


def read_digest(file: SegmentFile, foot: Foot, stop: int) -> str:
    """Return what the digest should be: of all blocks before the foot, which begins at ``stop``.

    Raises DamagedRecording where a header is damaged, or OSError.
    """
    return file.sha256(stop) if digest_kind(foot) == "sha256" else file.headers_sha256(stop)
