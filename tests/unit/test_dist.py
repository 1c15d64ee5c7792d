"""`make dist`: the same sources make the same bytes, wherever and whenever, and nothing is missing."""

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]


def build(copy: Path, mode: int, moment: int) -> dict[str, str]:
    """Build in a copy whose files have other rights and times; return the files' digests."""
    names = ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "Makefile", "constraints.txt")
    copy.mkdir()
    for name in names:
        shutil.copy(ROOT / name, copy / name)
    for folder in ("bwtui", "packaging"):
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for path in copy.rglob("*"):
        if path.is_file():
            path.chmod(mode)
            os.utime(path, (moment, moment))
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "1763900000"}
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build"],
        cwd=copy,
        env=environment,
        check=True,
        capture_output=True,
    )
    return {one.name: hashlib.sha256(one.read_bytes()).hexdigest() for one in (copy / "dist").iterdir()}


def test_the_same_sources_make_the_same_bytes(tmp_path: Path) -> None:
    first = build(tmp_path / "one", 0o644, 1_500_000_000)
    assert build(tmp_path / "another", 0o600, 1_600_000_000) == first
    assert sorted(name.rpartition(".")[2] for name in first) == ["gz", "whl"]
    [wheel] = (tmp_path / "one" / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        there = {name for name in archive.namelist() if name.startswith("bwtui/")}
        shared = {name for name in archive.namelist() if ".data/data/share/" in name}
    # What is no module is looked for while bwtui runs: SQL, styles, locks.
    files = {path.relative_to(ROOT).as_posix() for path in (ROOT / "bwtui").rglob("*") if path.is_file()}
    assert there == {name for name in files if "__pycache__" not in name}
    assert len(shared) == sum(path.is_file() for path in (ROOT / "packaging" / "share").rglob("*"))
