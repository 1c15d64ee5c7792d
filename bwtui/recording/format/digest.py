"""The digest in a segment's foot: what it says, and what the file's bytes make of it."""

from bwtui.recording.format.blocks import SegmentFile
from bwtui.recording.format.statements import Foot


def kind_of(foot: Foot) -> str:
    """Return the name under which the digest stands; version 1 of the format had another."""
    return "sha256" if "sha256" in foot else "headers_sha256"


def digest_of(foot: Foot) -> str:
    """Return the digest that the next segment's head repeats; empty, where the segment is not finished."""
    return str(foot.get(kind_of(foot), ""))


def read_digest(file: SegmentFile, foot: Foot, stop: int) -> str:
    """Return what the digest should be: of all blocks before the foot, which begins at ``stop``.

    Raises DamagedRecording where a header is damaged, or OSError.
    """
    return file.headers_sha256(stop) if kind_of(foot) == "headers_sha256" else file.sha256(stop)
