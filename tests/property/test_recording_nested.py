"""Rows may contain the bytes of recordings: recovery never mistakes these for blocks of the file."""

import functools
import random
import shutil
import tempfile
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bwtui.errors import DamagedRecording
from bwtui.recording.blocks import BlockKind, JournalBlock, SegmentFile, synced_before
from bwtui.recording.check import check
from bwtui.recording.recover import recover
from bwtui.recording.resume import continue_in
from tests.recorded_stream import SOURCE, Stream, table

DOCUMENTS = table(1, "documents")


def write(stream: Stream, key: int, body: bytes, *, durable: bool) -> None:
    """Record one transaction of one row in a batch of its own; ``durable``: wait for the disk."""
    stream.change("insert", DOCUMENTS, key, body)
    stream.commit()
    stream.flush()
    stream.deliver()
    if durable:
        stream.wait_durable()
        stream.recorder._journal._synced.wait()
        stream.settle()


@functools.cache
def foreign() -> list[bytes]:
    """Return the bytes of other recordings: unfinished ones, and a finished one with more blocks."""
    found = []
    for count, is_finished in ((3, False), (12, False), (60, True)):
        stream = Stream(Path(tempfile.mkdtemp()) / "recording")
        stream.begin_pass()
        for key in range(count):
            write(stream, key, b"body", durable=key % 3 == 2)
        if not is_finished:
            found.append(partial(stream.folder).read_bytes())
        stream.stop()
        found += [path.read_bytes() for path in stream.folder.glob("*.bwj") if is_finished]
        shutil.rmtree(stream.folder.parent)
    return found


def partial(folder: Path) -> Path:
    (path,) = folder.glob("*.partial")
    return path


def blocks_of(path: Path) -> list[JournalBlock]:
    with closing(SegmentFile(path.open("rb"), path.name)) as file:
        return list(file.blocks())


def recorded(folder: Path, chance: random.Random) -> Path:
    """A recording that a kill left unfinished; most of its rows contain bytes of recordings."""
    stream = Stream(folder / "live")
    stream.begin_pass()
    count = chance.randint(4, 9)
    last_durable = chance.randint(1, count - 2)
    for key in range(count):
        nested = chance.choice([b"", *foreign(), partial(stream.folder).read_bytes()])
        begins = chance.choice([0, chance.randrange(len(nested) + 1)])
        body = chance.randbytes(chance.randrange(20)) + nested[begins:]
        write(
            stream, key, body, durable=(key <= last_durable and chance.random() < 0.7) or key == last_durable
        )
    left = Path(shutil.copytree(stream.folder, folder / "left"))
    stream.recorder.close()
    return left


def damage(path: Path, begins: int, ends: int, chance: random.Random) -> int:
    """Truncate the file, or overwrite a range of it as lost pages do; return the first changed offset."""
    before = path.read_bytes()
    fill = chance.choice([b"", bytes(ends - begins), chance.randbytes(ends - begins)])
    path.write_bytes(before[:begins] + fill + (before[ends:] if fill else b""))
    after = path.read_bytes()
    same = (at for at in range(begins, len(after)) if after[at] != before[at])
    return next(same, len(after))


@given(st.integers(0, 2**32))
def test_a_torn_tail_is_cut_at_its_first_byte(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    chance = random.Random(seed)
    folder = recorded(tmp_path_factory.mktemp("torn"), chance)
    path = partial(folder)
    blocks = blocks_of(path)
    synced = max(synced_before(block) or 0 for block in blocks if block.kind == BlockKind.REACHED)
    begins = chance.randrange(synced, path.stat().st_size)
    differs = damage(path, begins, chance.randint(begins + 1, path.stat().st_size), chance)
    whole = [block.end for block in blocks if block.end <= differs]
    continue_in(Path(shutil.copytree(folder, folder.parent / "started")), dict(SOURCE)).release()
    (one,) = recover(folder)
    assert one.kept == whole[-1]
    assert check(folder).verdict == "clean"


@given(st.integers(0, 2**32))
def test_damage_of_what_was_synced_is_never_cut(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    chance = random.Random(seed)
    folder = recorded(tmp_path_factory.mktemp("damaged"), chance)
    path = partial(folder)
    reached = [block for block in blocks_of(path) if block.kind == BlockKind.REACHED]
    last = max(reached, key=lambda block: synced_before(block) or 0)
    before = path.read_bytes()
    begins = chance.randrange(synced_before(last) or 0)
    ends = chance.randint(begins + 1, last.offset)
    path.write_bytes(before[:begins] + bytes(ends - begins) + before[ends:])
    if path.read_bytes() == before:
        return
    with pytest.raises(DamagedRecording, match="had already been synced to disk"):
        recover(folder)
    with pytest.raises(DamagedRecording, match="had already been synced to disk"):
        continue_in(folder, dict(SOURCE))
