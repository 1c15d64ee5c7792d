"""The digest in a segment's foot, as recorded and as computed from the file."""

from bwtui.recording.format.blocks import SegmentFile
from bwtui.recording.format.statements import Foot, digest_kind


def digest_of(foot: Foot) -> str:
    """Return the digest that the next segment's head repeats; empty if the segment is unfinished."""
    return str(foot.get(digest_kind(foot), ""))


def read_digest(file: SegmentFile, foot: Foot, stop: int) -> str:
    """Compute the digest of all blocks before the foot, which begins at ``stop``.

    Raises DamagedRecording if a header is damaged, or OSError.
    """
    return file.sha256(stop) if digest_kind(foot) == "sha256" else file.headers_sha256(stop)
