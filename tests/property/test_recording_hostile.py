"""A segment with forged content and valid checksums is read, or refused.

``BWTUI_FORGERIES=1000`` tries every forgery; ``BWTUI_SEED`` repeats a choice.
"""

import contextlib
import json
import os
import random
import shutil
import struct
from collections.abc import Iterator
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from bwtui.errors import BwtuiError
from bwtui.recording.blocks import (
    ENDING,
    INDEX_ENTRY,
    BlockKind,
    IndexEntry,
    JournalBlock,
    SegmentFile,
    pack_index,
    pack_trailer,
)
from bwtui.recording.check import check
from bwtui.recording.info import facts, info
from bwtui.recording.reader import open_recording
from bwtui.recording.recover import recover
from bwtui.recording.resume import continue_in
from bwtui.verify.journal_facts import read_facts
from tests.property.test_recording_damage import everything
from tests.recorded_stream import SOURCE, Stream, table
from tests.rewritten_segment import rewrite

FORGERIES = int(os.environ.get("BWTUI_FORGERIES", "5"))
SEED = int(os.environ.get("BWTUI_SEED") or random.getrandbits(32))
HOSTILE: tuple[Any, ...] = (
    None, True, -1, 1 << 63, 1 << 70, 1.5, float("nan"), "", "zz", "../../x", "\ud800", "\0", [], {}, [None],
    {"pass": None}, "a" * 70_000,
)  # fmt: skip
JSON_KINDS = (
    BlockKind.HEAD,
    BlockKind.ROUTE,
    BlockKind.SCHEMA,
    BlockKind.EVENT,
    BlockKind.STATUS,
    BlockKind.FOOT,
    BlockKind.ERROR,
)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a recording of one finished segment, with a block of every kind."""
    stream = Stream(tmp_path_factory.mktemp("sound") / "recording")
    stream.row(table(1, "a"), 1, b"body")
    stream.flush()
    stream.deliver()
    stream.begin_pass()
    for key, what in enumerate(("insert", "update", "rename", "toast", "delete", "dropped", "truncate")):
        stream.change(what, table(2, "b", "f"), key, b"body")
        stream.commit()
    stream.flush()
    stream.deliver()
    stream.report.error("notice", BwtuiError("it is so", "leave it"), "public.a")
    stream.report.error("notice", BwtuiError("and so", "leave it"))
    stream.recorder._journal.is_waited_for = True
    stream.recorder.reach(stream.lsn)
    stream.recorder._journal._synced.wait()
    stream.settle()
    stream.stop()
    assert check(stream.folder).verdict == "clean"
    return stream.folder


def blocks_of(folder: Path) -> tuple[Path, list[JournalBlock]]:
    (path,) = folder.glob("*.bwj")
    with path.open("rb") as file:
        return path, list(SegmentFile(file, path.name).blocks())


def forge(path: Path, blocks: list[JournalBlock], at: int, payload: bytes) -> None:
    """Rewrite the segment with a different payload of one block; every checksum and offset is valid."""

    def say(block: JournalBlock, _: bytearray, headers: bytearray) -> bytes:
        if block.number == at:
            return payload
        if block.kind == BlockKind.FOOT:
            digest = sha256(headers).hexdigest()
            return json.dumps({**json.loads(block.payload), "headers_sha256": digest}).encode()
        return block.payload

    rewrite(path, blocks, say)


def use(folder: Path, *, whole: bool = False) -> int:
    """Run everything that reads a recording; return the number of refusals, each of one sentence."""
    refused = 0

    def look() -> None:
        with closing(open_recording(folder)) as view:
            facts(view)

    def go_on() -> None:
        continue_in(folder, dict(SOURCE)).release()

    for read in (check, info, everything, look, read_facts, recover, go_on):
        try:
            read(*(() if read in (look, go_on) else (folder,)))
        except BwtuiError as error:
            assert error.message
            refused += 1
    assert not whole or not refused
    return refused


def places(content: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each value in a JSON value, including itself."""
    yield path
    if isinstance(content, dict | list):
        pairs = content.items() if isinstance(content, dict) else enumerate(content[:2])
        for name, inner in pairs:
            yield from places(inner, (*path, name))


def changed(content: Any, path: tuple[Any, ...], value: Any) -> Any:
    """Return a copy with a different value at a path, or without the value if it is ``...``."""
    if not path:
        return value
    copy = json.loads(json.dumps(content))
    inner = copy
    for name in path[:-1]:
        inner = inner[name]
    if value is ...:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return copy


def partial_of(folder: Path, blocks: list[JournalBlock]) -> None:
    """Turn it into the partial file of a crash: the blocks, without an ending and without a name."""
    (path,) = folder.glob("*.bwj")
    end = next(block.number for block in blocks if block.kind == BlockKind.INDEX)
    with path.open("rb") as file:
        until = list(SegmentFile(file, path.name).blocks(with_payload=False))[end].offset
    (folder / "00000001.partial").write_bytes(path.read_bytes()[:until])
    path.unlink()


def try_all(sound: Path, tmp_path: Path, forgeries: list[tuple[int, bytes, str]]) -> None:
    """Try some forgeries, both as a finished segment and as the partial file of a crash."""
    chance = random.Random(SEED)
    _, blocks = blocks_of(sound)
    chosen = chance.sample(forgeries, min(len(forgeries), FORGERIES * 10))
    for at, payload, what in chosen:
        for is_finished in (True, False):
            if not is_finished and blocks[at].kind in ENDING:
                continue
            folder = tmp_path / "forged"
            shutil.copytree(sound, folder)
            path, _ = blocks_of(folder)
            forge(path, blocks, at, payload)
            try:
                if not is_finished:
                    partial_of(folder, blocks)
                use(folder)
            except Exception as error:
                raise AssertionError(f"seed {SEED}: {blocks[at].kind.name} {what}: {error!r}") from error
            shutil.rmtree(folder)


def test_a_forgery_of_nothing_is_read(sound: Path, tmp_path: Path) -> None:
    shutil.copytree(sound, tmp_path / "forged")
    path, blocks = blocks_of(tmp_path / "forged")
    forge(path, blocks, -1, b"")
    use(tmp_path / "forged", whole=True)


def test_what_a_relay_says_of_its_surroundings_is_read(sound: Path, tmp_path: Path) -> None:
    """A path need not be UTF-8, a disk may have more space than 64 bits can count, and a schema is text."""
    _, blocks = blocks_of(sound)
    recording = {"path": "/srv/r\udcff", "free_bytes": 1 << 66, "seconds_left": 2.0**66, "bytes": 1}
    for kind, path, value, is_read in (
        (BlockKind.STATUS, ("recording",), recording, True),
        (BlockKind.ERROR, ("message",), "/srv/r\udcff can't be written", True),
        (BlockKind.SCHEMA, ("topic",), "r\udcff", False),
        (BlockKind.SCHEMA, ("id",), 1 << 66, False),
        (BlockKind.STATUS, ("pid",), 10**400, False),
        (BlockKind.ERROR, ("time",), 10**400, False),
        # The screens show local time.
        (BlockKind.ERROR, ("time",), 1e18, False),
        (BlockKind.SCHEMA, ("time",), -1e18, False),
    ):
        at = next(number for number, block in enumerate(blocks) if block.kind == kind)
        folder = tmp_path / "forged"
        shutil.copytree(sound, folder)
        said = changed(json.loads(blocks[at].payload), path, value)
        forge(blocks_of(folder)[0], blocks, at, json.dumps(said).encode())
        assert (use(folder) == 0) is is_read, (kind, path)
        assert check(folder).verdict == ("clean" if is_read else "damaged"), (kind, path)
        shutil.rmtree(folder)


def test_every_field_of_what_is_json(sound: Path, tmp_path: Path) -> None:
    forgeries = []
    _, blocks = blocks_of(sound)
    assert {block.kind for block in blocks} == set(BlockKind)
    for at, block in enumerate(blocks):
        if block.kind not in JSON_KINDS:
            continue
        content = json.loads(block.payload)
        for path in places(content):
            for value in (*HOSTILE, ...):
                if path or value is not ...:
                    said = json.dumps(changed(content, path, value)).encode()
                    forgeries.append((at, said, f"{path} = {str(value)[:20]!r}"))
        for raw in (b"", b"{", b"\xff", b"[" * 100_000, b"1" * 10_000):
            forgeries.append((at, raw, f"{raw[:9]!r}"))
    assert len(forgeries) > 1_000
    try_all(sound, tmp_path, forgeries)


def test_numbers_in_what_is_no_json(sound: Path, tmp_path: Path) -> None:
    chance = random.Random(SEED)
    forgeries = []
    _, blocks = blocks_of(sound)
    for at, block in enumerate(blocks):
        if block.kind in JSON_KINDS:
            continue
        for _ in range(20):
            said = bytearray(block.payload or b"\0" * 8)
            where = chance.randrange(len(said))
            bytes_ = chance.choice((b"\xff" * 8, b"\0" * 8, b"\x80", b"\x7f\xff\xff\xff", b"\1"))
            said[where : where + len(bytes_)] = bytes_
            cut = chance.choice((len(said), where, len(said) + 1))
            forgeries.append((at, bytes(said[:cut]), f"at {where}: {bytes_!r}, cut at {cut}"))
    try_all(sound, tmp_path, forgeries)


@pytest.mark.parametrize("offset", [0, 1, 44, 1 << 31, (1 << 63) - 1, 1 << 63, (1 << 64) - 1])
def test_a_trailer_and_an_index_that_lead_anywhere(sound: Path, tmp_path: Path, offset: int) -> None:
    shutil.copytree(sound, tmp_path / "forged")
    path, blocks = blocks_of(tmp_path / "forged")
    whole = path.read_bytes()
    path.write_bytes(whole[: -len(pack_trailer(0))] + pack_trailer(offset))
    assert use(tmp_path / "forged")
    (at,) = [number for number, block in enumerate(blocks) if block.kind == BlockKind.INDEX]
    entries = [IndexEntry(*one) for one in INDEX_ENTRY.iter_unpack(blocks[at].payload)]
    for field in ("offset", "kind", "changes", "transactions", "received", "first_lsn", "last_lsn"):
        for entry in range(len(entries)):
            other = list(entries)
            with contextlib.suppress(struct.error):
                other[entry] = entries[entry]._replace(**{field: offset})
                forge(path, blocks, at, pack_index(other))
                if entry % 5 == offset % 5:
                    use(tmp_path / "forged")
