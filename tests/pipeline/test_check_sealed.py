"""The check of a sealed recording names all damage below sealed/, and the missing segments."""

import json
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from bwtui.cli.main import cli
from bwtui.recording.blocks import BlockKind, SegmentFile
from bwtui.recording.sealed import checked, with_checksum
from tests.pipeline.test_seal import local, record


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sound") / "r"
    record(folder)
    local(folder)
    return folder


@pytest.fixture
def folder(sound: Path, tmp_path: Path) -> Path:
    shutil.copytree(sound, tmp_path / "r")
    return tmp_path / "r"


def run(folder: Path, *args: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(cli, ["recording", "check", str(folder), *args], prog_name="bwtui")
    return result.exit_code, result.stdout, result.stderr


def parquet(folder: Path) -> Path:
    return min((folder / "sealed" / "changes").rglob("*.parquet"))


def segments(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.bwj"))


def flip(path: Path) -> Path:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)
    return path


def flip_parquet(folder: Path) -> Path:
    return flip(parquet(folder))


def lose_parquet(folder: Path) -> Path:
    path = parquet(folder)
    path.unlink()
    return path


def cut_parquet(folder: Path) -> Path:
    path = parquet(folder)
    path.write_bytes(path.read_bytes()[:-9])
    return path


def add_stranger(folder: Path) -> Path:
    return Path(shutil.copy(parquet(folder), folder / "sealed" / "changes" / "more.parquet"))


def flip_manifest(folder: Path) -> Path:
    return flip(folder / "sealed" / "manifest.json")


def lose_manifest(folder: Path) -> Path:
    path = folder / "sealed" / "manifest.json"
    path.unlink()
    return path


def change_segment(folder: Path) -> Path:
    """Change the manifest, with a correct checksum."""
    path = folder / "sealed" / "manifest.json"
    content = checked(path.read_bytes())
    del content["sha256"]
    content["segments"][1]["headers_sha256"] = "0" * 64
    path.write_text(with_checksum(content))
    return segments(folder)[1]


def forge_payload(folder: Path) -> Path:
    """Change a payload but keep its CRC-32, so that no header changes."""
    path = segments(folder)[1]
    data = bytearray(path.read_bytes())
    with path.open("rb") as file:
        block = next(one for one in SegmentFile(file, path.name).blocks() if one.kind == BlockKind.DELIVERY)
    # An offset in Kafka, for which any number could be right.
    change = b"\x01\x02\x03\x04"
    last = bytes(a ^ b for a, b in zip(block.payload[-8:], change + crc_undone(change), strict=True))
    assert zlib.crc32(block.payload[:-8] + last) == zlib.crc32(block.payload)
    data[block.end - 8 : block.end] = last
    path.write_bytes(data)
    return path


def crc_undone(change: bytes) -> bytes:
    """Return the change of four bytes after ``change`` that keeps the CRC-32 as it was."""
    difference = zlib.crc32(change + bytes(4)) ^ zlib.crc32(bytes(8))
    columns = [zlib.crc32((1 << 32 + bit).to_bytes(8, "little")) ^ zlib.crc32(bytes(8)) for bit in range(32)]
    found = 0
    rows = [(column, 1 << bit) for bit, column in enumerate(columns)]
    for bit in range(32):
        pivot = next(row for row in rows if row[0] >> bit & 1)
        rows.remove(pivot)
        rows = [(a ^ pivot[0], b ^ pivot[1]) if a >> bit & 1 else (a, b) for a, b in rows]
        if difference >> bit & 1:
            difference, found = difference ^ pivot[0], found ^ pivot[1]
    assert not difference
    return found.to_bytes(4, "little")


def lose_last_segments(folder: Path) -> Path:
    *_, one, last = segments(folder)
    one.unlink()
    last.unlink()
    return one


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (flip_parquet, "it does not match its checksum"),
        (lose_parquet, "it is missing"),
        (cut_parquet, "bytes instead of "),
        (add_stranger, "sealed/manifest.json does not list it"),
        (flip_manifest, "it does not match its checksum"),
        (lose_manifest, "it is missing"),
        (change_segment, "sealed/manifest.json lists a different checksum for it"),
        (forge_payload, "sealed/manifest.json lists different contents for it"),
        (lose_last_segments, "are missing, but sealed/manifest.json lists their sealed files"),
    ],
)
def test_what_is_wrong_is_named(folder: Path, harm: Callable[[Path], Path], reason: str) -> None:
    assert run(folder)[0] == 0
    name = harm(folder).relative_to(folder).as_posix()
    code, out, err = run(folder)
    line = next(line for line in out.splitlines() if line.startswith(f"{name}: "))
    assert code == 6 and reason in line
    assert name in err.splitlines()[0]
    assert ("remove the folder 'sealed'" in err) == name.startswith("sealed/")
    code, out, _ = run(folder, "--json")
    found = json.loads(out)
    assert (code, found["verdict"]) == (6, "damaged")
    assert found["damages"] == [{"file": name, "offset": None, "reason": line.removeprefix(f"{name}: ")}]


def test_nothing_but_what_was_sealed(folder: Path) -> None:
    for path in segments(folder):
        path.unlink()
    code, out, _ = run(folder)
    assert code == 6
    assert "are missing, but sealed/manifest.json lists" in out


def test_a_run_of_sealing_that_was_killed_is_no_damage(folder: Path) -> None:
    add_stranger(folder)
    (folder / "sealing").mkdir()
    assert run(folder)[0] == 0


def test_what_was_recorded_since_is_no_damage(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    record(folder)
    local(folder)
    record(folder, seed=2)
    code, out, _ = run(folder)
    assert code == 0
    assert out.splitlines()[-1].endswith(" sealed files")
