"""Version 2 changed the digest in the foot, version 3 marks blocks; older versions can still be read."""

import hashlib
import json
import shutil
import struct
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from bwtui.errors import DamagedRecording
from bwtui.recording.blocks import BlockKind, JournalBlock, SegmentFile, mark_after, pack_header
from bwtui.recording.check import check
from bwtui.recording.info import info
from bwtui.recording.reader import open_recording
from bwtui.recording.recover import recover
from tests.property.test_recording_damage import everything
from tests.recorded_stream import Stream, table
from tests.rewritten_segment import rewrite

ACCOUNTS = table(1, "accounts")


def record(stream: Stream, *keys: int) -> None:
    stream.begin_pass()
    for key in keys:
        stream.change("insert", ACCOUNTS, key, b"body")
        stream.commit()
    stream.flush()
    stream.deliver()


@pytest.fixture
def sound(tmp_path: Path) -> Stream:
    """A recording of two segments in the current version."""
    stream = Stream(tmp_path / "recording")
    record(stream, 1, 2)
    stream.stop()
    stream.start()
    record(stream, 3)
    stream.stop()
    return stream


def blocks_of(path: Path) -> list[JournalBlock]:
    with closing(SegmentFile(path.open("rb"), path.name)) as file:
        return list(file.blocks())


def mark_of(path: Path) -> bytes:
    return mark_after(path.read_bytes(), blocks_of(path)[0].payload)


def write(path: Path, blocks: list[JournalBlock], **changed: dict[str, Any]) -> str:
    """Write a segment as version 1 did; ``changed`` overrides fields of HEAD or FOOT. Return its digest."""
    digest = ""

    def say(block: JournalBlock, written: bytearray, _: bytearray) -> bytes:
        nonlocal digest
        if block.kind == BlockKind.HEAD:
            return json.dumps({**json.loads(block.payload), "version": 1, **changed.get("head", {})}).encode()
        if block.kind == BlockKind.FOOT:
            digest = hashlib.sha256(written).hexdigest()
            foot = {**json.loads(block.payload), "sha256": digest, **changed.get("foot", {})}
            del foot["headers_sha256"]
            return json.dumps(foot).encode()
        return block.payload

    rewrite(path, blocks, say)
    return digest


def as_version_1(folder: Path) -> None:
    previous = ""
    for path in sorted(folder.glob("0*")):
        previous = write(path, blocks_of(path), head={"previous": previous})


def walk(raw: bytes) -> list[tuple[int, bytes]]:
    """Return kind and header of each block, using only the documented format."""
    found, at = [], 0
    while raw[at : at + 8] != b"bwtuiEND":
        found.append((raw[at + 8], raw[at : at + 44]))
        at += 44 + struct.unpack_from("<I", raw, at)[0]
    return found


def test_the_foot_has_the_digest_of_the_headers_before_it(sound: Stream) -> None:
    before = ""
    for path in sorted(sound.folder.glob("*.bwj")):
        headers = walk(path.read_bytes())
        digest = hashlib.sha256(
            b"".join(header for kind, header in headers if kind != BlockKind.FOOT)
        ).hexdigest()
        head, foot = (json.loads(blocks_of(path)[at].payload) for at in (0, -1))
        assert (head["version"], head["previous"]) == (3, before)
        assert foot["headers_sha256"] == digest and "sha256" not in foot
        before = digest


def test_version_1_is_read_checked_and_gone_on_with(sound: Stream) -> None:
    as_now = everything(sound.folder)
    as_version_1(sound.folder)
    assert check(sound.folder).verdict == "clean"
    assert everything(sound.folder) == as_now
    sound.start()
    record(sound, 4, 5)
    sound.stop()
    found = check(sound.folder)
    assert (found.verdict, found.segments) == ("clean", 3)
    heads = [json.loads(blocks_of(path)[0].payload) for path in sorted(sound.folder.glob("*.bwj"))]
    assert [head["version"] for head in heads] == [1, 1, 3]
    assert info(sound.folder).changes == 5


def test_a_digest_of_version_1_that_does_not_match_is_found(sound: Stream) -> None:
    path = max(sound.folder.glob("*.bwj"))
    as_version_1(sound.folder)
    blocks = blocks_of(path)
    write(path, blocks, foot={"sha256": "0" * 64, "headers_sha256": ""})
    assert [one.reason for one in check(sound.folder).damages] == [
        "the foot's sha256 differs from the blocks"
    ]


def test_what_version_1_left_unfinished_is_finished(tmp_path: Path) -> None:
    stream = Stream(tmp_path / "recording")
    record(stream, 1, 2)
    folder = tmp_path / "left"
    shutil.copytree(stream.folder, folder)
    stream.recorder.close()
    as_version_1(folder)
    (one,) = recover(folder)
    assert (one.changes, one.cut) == (2, 0)
    assert check(folder).verdict == "clean"


def test_a_block_of_elsewhere_is_found_by_the_foot(sound: Stream) -> None:
    """All its checksums and its number are valid; only the digest of the headers differs."""
    path = min(sound.folder.glob("*.bwj"))
    raw, blocks = bytearray(path.read_bytes()), blocks_of(path)
    event = next(block for block in blocks if block.kind == BlockKind.EVENT)

    said = json.dumps(json.loads(event.payload)).encode().replace(b": ", b" :", 1)
    assert len(said) == len(event.payload) and said != event.payload
    header = pack_header(event.kind, event.number, *event[2:5], [said], mark_of(path))
    raw[event.offset : event.end] = header + said
    path.write_bytes(raw)
    assert [one.reason for one in check(sound.folder).damages] == [
        "the foot's headers_sha256 differs from the blocks"
    ]


def test_a_newer_version_is_named(sound: Stream) -> None:
    for path in sound.folder.glob("*.bwj"):
        blocks = blocks_of(path)
        write(path, blocks, head={"version": 4})
    with pytest.raises(DamagedRecording, match=r"a newer bwtui wrote it in format 4") as refused:
        open_recording(sound.folder)
    assert refused.value.hint == "install the version of bwtui that wrote it"


def test_a_digest_that_is_not_known_is_said_to_be_a_newer_versions(sound: Stream) -> None:
    """The foot is read first."""
    path = max(sound.folder.glob("*.bwj"))
    raw, foot = path.read_bytes(), blocks_of(path)[-1]
    said = foot.payload.replace(b"headers_sha256", b"headers_sha512")
    header = pack_header(foot.kind, foot.number, *foot[2:5], [said], mark_of(path))
    path.write_bytes(raw[: foot.offset] + header + said + raw[foot.end :])
    with pytest.raises(DamagedRecording, match="this bwtui does not support the digest in its foot"):
        open_recording(sound.folder)
