"""`make dist`: the same sources make the same bytes, anywhere and any time, and no file is missing."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def build(copy: Path, mode: int, moment: int) -> dict[str, str]:
    """Build in a copy whose files have different modes and times; return the files' digests."""
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
    # bwtui also needs files that are not modules: SQL, styles, locks.
    files = {path.relative_to(ROOT).as_posix() for path in (ROOT / "bwtui").rglob("*") if path.is_file()}
    assert there == {name for name in files if "__pycache__" not in name}
    assert len(shared) == sum(path.is_file() for path in (ROOT / "packaging" / "share").rglob("*"))


def without_dependencies(wheel: Path, folder: Path) -> Path:
    """Return a copy of a wheel without dependencies, which are 1 GB and irrelevant for its files."""
    folder.mkdir()
    copy = folder / wheel.name
    with zipfile.ZipFile(wheel) as read, zipfile.ZipFile(copy, "w") as written:
        for info in read.infolist():
            content = read.read(info)
            if info.filename.endswith(".dist-info/METADATA"):
                content = re.sub(rb"^Requires-Dist:.*\n", b"", content, flags=re.MULTILINE)
            written.writestr(info, content)
    return copy


@pytest.mark.long
def test_pipx_puts_man_pages_and_completions_where_they_are_looked_for(tmp_path: Path) -> None:
    """docs/install.md describes this; ``uv tool`` keeps them in its own folder."""
    build(tmp_path / "sources", 0o644, 1_500_000_000)
    [wheel] = (tmp_path / "sources" / "dist").glob("*.whl")
    wheel = without_dependencies(wheel, tmp_path / "alone")
    home, tools = tmp_path / "home", tmp_path / "tools"
    home.mkdir()
    subprocess.run([sys.executable, "-m", "venv", tools], check=True)
    pip = [str(tools / "bin" / "pip"), "install", "-q", "--disable-pip-version-check", "pipx>=1.18", "uv"]
    subprocess.run(pip, check=True)
    path = f"{home}/.local/bin:{tools}/bin:/usr/bin:/bin"

    def at_home(command: str) -> str:
        return subprocess.run(
            ["bash", "-c", command],
            env={"HOME": str(home), "PATH": path},
            check=True,
            capture_output=True,
            text=True,
            timeout=240,
        ).stdout.strip()

    at_home(f"pipx install --python {sys.executable} {wheel}")
    pages = {page.name for page in (ROOT / "packaging" / "share" / "man" / "man1").iterdir()}
    assert {page.name for page in (home / ".local/share/man/man1").iterdir()} == pages
    assert at_home("man -w bwtui-connect").endswith("/man1/bwtui-connect.1")
    completion = home / ".local/share/bash-completion/completions/bwtui"
    assert "-F _bwtui_completion bwtui" in at_home(f"source {completion} && complete -p bwtui")
    assert (home / ".local/share/zsh/site-functions/_bwtui").is_file()
    assert (home / ".local/share/fish/vendor_completions.d/bwtui.fish").is_file()
    at_home("pipx uninstall bwtui")
    assert not list(home.glob(".local/share/man/man1/*"))
    at_home(f"uv tool install --python {sys.executable} {wheel}")
    # man does not find uv's pages by PATH.
    assert at_home("man -w bwtui-connect || echo none") == "none"
    assert at_home('man -w -M "$(uv tool dir)/bwtui/share/man" bwtui-connect').endswith("bwtui-connect.1")
