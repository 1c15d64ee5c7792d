"""Flip single bits and truncate a recording anywhere: each damage is found or harmless.

``make bit-flips`` sets ``BWTUI_FLIPS=1000``; ``BWTUI_SEED`` repeats a run.
"""

import json
import os
import random
import shutil
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from bwtui.cli.main import CONTEXT
from bwtui.cli.recording.check import check as check_command
from bwtui.errors import DamagedRecording
from bwtui.recording.blocks import ENDING, BlockKind, JournalBlock, SegmentFile
from bwtui.recording.check import check
from bwtui.recording.reader import open_recording
from bwtui.recording.resume import continue_in
from tests.recorded_stream import SOURCE, Stream, table

FLIPS = int(os.environ.get("BWTUI_FLIPS", "40"))
SEED = int(os.environ.get("BWTUI_SEED") or random.getrandbits(32))
OPERATIONS = ("insert", "update", "rename", "toast", "delete", "dropped", "truncate")


def record(folder: Path, chance: random.Random) -> None:
    """Record some sessions with everything that a recording can contain, in several segments."""
    stream = Stream(folder, {"segment_bytes": 12_000})
    tables = [table(1, "a"), table(2, "b", "f"), table(1, "a", version=1)]
    for key in range(50):
        stream.row(tables[key // 25], key, chance.randbytes(chance.randrange(100)).hex().encode())
    stream.flush()
    stream.cleanup(tables[0], [77, 78])
    stream.deliver()
    for _ in range(3):
        stream.begin_pass()
        for _ in range(25):
            for _ in range(chance.randint(1, 9)):
                body = chance.choice([None, b"", chance.randbytes(20).hex().encode()])
                stream.change(chance.choice(OPERATIONS), chance.choice(tables), chance.randrange(99), body)
            stream.commit()
            stream.flush()
            stream.deliver()
            stream.recorder.reach(stream.lsn)
            stream.settle()
        stream.stop()
        stream.start()
    stream.recorder.close()


def everything(folder: Path) -> Any:
    """Return everything that can be read from a recording."""
    with closing(open_recording(folder)) as view:
        return (
            list(view.changes()),
            view.counts(view.length),
            view.timeline(20),
            view.schemas(view.length),
            view.errors(view.length),
            view.status(view.length),
            (view.source, view.first_lsn, view.last_lsn, view.first_time, view.last_time),
        )


def damage(path: Path, chance: random.Random) -> str:
    """Flip one bit of a file, or truncate it; return the file and the offset."""
    data = bytearray(path.read_bytes())
    at = chance.randrange(len(data))
    if chance.random() < 0.2:
        path.write_bytes(data[:at])
        return f"cut at {at}"
    data[at] ^= 1 << chance.randrange(8)
    path.write_bytes(data)
    return f"flip at {at}"


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sound") / "recording"
    record(folder, random.Random(SEED))
    assert check(folder).verdict == "clean"
    return folder


def test_no_damage_is_silent(sound: Path, tmp_path: Path) -> None:
    chance = random.Random(SEED)
    good = everything(sound)
    files = [path.name for path in sorted(sound.glob("*.bwj"))]
    assert len(files) > 5
    tally: Counter[str] = Counter()
    for number in range(FLIPS):
        folder = tmp_path / str(number)
        shutil.copytree(sound, folder)
        name = chance.choice(files)
        what = f"seed {SEED}: {name}: {damage(folder / name, chance)}"
        tally[judge(folder, name, good, what)] += 1
        shutil.rmtree(folder)
    print(f"\nseed {SEED}, {FLIPS} flips and cuts: {dict(tally)}")


def judge(folder: Path, name: str, good: Any, what: str) -> str:
    """Check that the damage is located and that no reader gets wrong data."""
    at = int(what.rpartition(" ")[2])
    found = check(folder)
    assert found.verdict == "damaged", what
    named = [place.place.offset for place in found.damages if place.place.segment == name]
    assert named, what
    # The check names the damaged block by its first offset, and a truncation by the first missing byte.
    assert " cut " in what or min(named) <= at, what
    try:
        same = everything(folder) == good
    except DamagedRecording as error:
        assert name in error.message or "expected " in error.message, what
        return "detected, and refused by the reader"
    assert same, what
    return "detected, and not needed by the reader"


def blocks_of(path: Path) -> list[JournalBlock]:
    with closing(SegmentFile(path.open("rb"), path.name)) as file:
        return [block for block in file.blocks() if block.kind not in ENDING]


def test_a_whole_block_of_elsewhere_is_not_read(sound: Path, tmp_path: Path) -> None:
    """Its checksums and its length are valid."""
    good, tried = everything(sound), 0
    for path in sorted(sound.glob("*.bwj")):
        kinds: dict[tuple[int, BlockKind], list[JournalBlock]] = {}
        for block in blocks_of(path):
            kinds.setdefault((block.length, block.kind), []).append(block)
        for (_, kind), alike in kinds.items():
            if len(alike) < 2 or kind not in (BlockKind.CHANGES, BlockKind.DELIVERY, BlockKind.EVENT):
                continue
            folder = tmp_path / str(tried)
            shutil.copytree(sound, folder)
            data = bytearray(path.read_bytes())
            one, other = alike[0], alike[-1]
            data[one.offset : one.end] = data[other.offset : other.end]
            (folder / path.name).write_bytes(data)
            tried += 1
            try:
                assert everything(folder) == good, (path.name, kind)
            except DamagedRecording as error:
                assert path.name in error.message
    assert tried > 3


def test_a_segment_that_begins_with_another_block_is_damaged(sound: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(sound, folder)
    path = min(folder.glob("*.bwj"))
    head = blocks_of(path)[0]
    path.write_bytes(path.read_bytes()[head.end :])
    assert check(folder).verdict == "damaged"
    with pytest.raises(DamagedRecording, match="does not start with a HEAD"):
        continue_in(folder, dict(SOURCE))


def test_the_command_lists_every_place_and_ends_with_6(sound: Path, tmp_path: Path) -> None:
    folder = tmp_path / "recording"
    shutil.copytree(sound, folder)
    paths = [path for path in sorted(folder.glob("*.bwj")) if path.stat().st_size > 10_000]
    for path, at in ((paths[0], 3_000), (paths[0], 9_000), (paths[2], 5_000)):
        data = bytearray(path.read_bytes())
        data[at] ^= 1
        path.write_bytes(data)
    with pytest.raises(DamagedRecording, match="damaged in 3 places of 2 files") as raised:
        CliRunner().invoke(check_command, [str(folder), "--json"], catch_exceptions=False, **CONTEXT)
    assert raised.value.exit_code == 6
    found = check(folder)
    assert [one.place.segment for one in found.damages] == [paths[0].name, paths[0].name, paths[2].name]
    for one, at in zip(found.damages, (3_000, 9_000, 5_000), strict=True):
        assert at - 4_000 < one.place.offset <= at


@pytest.mark.parametrize("which", [0, 2, -2])
def test_a_missing_segment_is_named(sound: Path, tmp_path: Path, which: int) -> None:
    folder = tmp_path / "recording"
    shutil.copytree(sound, folder)
    paths = sorted(folder.glob("*.bwj"))
    paths[which].unlink()
    following = paths[which + 1 if which >= 0 else -1]
    found = check(folder)
    assert [one.place.segment for one in found.damages][:1] == [following.name]
    assert "missing before it" in found.damages[0].reason
    with pytest.raises(DamagedRecording):
        open_recording(folder)


def test_swapped_and_foreign_segments_are_found(sound: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    record(other, random.Random(SEED + 1))
    folder = tmp_path / "recording"
    shutil.copytree(sound, folder)
    victim = sorted(folder.glob("*.bwj"))[2]
    victim.unlink()
    stranger = sorted(other.glob("*.bwj"))[2]
    shutil.copy(stranger, folder / stranger.name)
    found = check(folder)
    assert found.verdict == "damaged"
    assert {one.place.segment for one in found.damages} >= {stranger.name}
    with pytest.raises(DamagedRecording):
        open_recording(folder)


def test_a_renamed_segment_is_found(sound: Path, tmp_path: Path) -> None:
    folder = tmp_path / "recording"
    shutil.copytree(sound, folder)
    victim = sorted(folder.glob("*.bwj"))[1]
    renamed = victim.rename(folder / f"{victim.name[:9]}{'0' * 16}-{'F' * 16}.bwj")
    found = check(folder)
    assert [(one.place.segment, one.place.offset) for one in found.damages] == [(renamed.name, 0)]
    assert victim.name in found.damages[0].reason


def test_json(sound: Path) -> None:
    result = CliRunner().invoke(check_command, [str(sound), "--json"], catch_exceptions=False, **CONTEXT)
    told = json.loads(result.output)
    assert told["verdict"] == "clean"
    assert told["damages"] == []
    assert told["changes"] == len(everything(sound)[0])
