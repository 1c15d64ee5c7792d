"""Unpack programs from Debian packages into the cache folder, without installing them.

apt fetches each package once, with its own folder for lists, so it needs no root.
"""

import fcntl
import shutil
import subprocess
from pathlib import Path

from bwtui.packages.artifacts import cache_folder

_FETCH_SECONDS = 240.0


def unpacked(package: str, *libraries: str) -> Path:
    """Return the folder of an unpacked package and of others that it needs.

    Fails with the reason if they can't be downloaded.
    """
    folder = cache_folder() / "debian"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        there = folder / package
        if not there.exists():
            _unpack((package, *libraries), folder, there)
    return there


def run(*command: str, cwd: Path | None = None) -> str:
    """Return a command's output; the test fails if the command does."""
    ended = subprocess.run(
        command, cwd=cwd, check=False, capture_output=True, text=True, timeout=_FETCH_SECONDS
    )
    said = ended.stdout + ended.stderr
    assert ended.returncode == 0, f"{' '.join(command)}: {said}"
    return said


def _unpack(packages: tuple[str, ...], folder: Path, place: Path) -> None:
    if shutil.which("apt-get") is None:
        raise AssertionError(f"neither {packages[0]} nor apt-get is here: install {packages[0]}")
    lists, cache, fresh = folder / "lists", folder / "cache", folder / "fresh"
    for path in (lists / "partial", cache / "archives" / "partial"):
        path.mkdir(parents=True, exist_ok=True)
    apt = ("apt-get", "-q", "-o", f"Dir::State::Lists={lists}", "-o", f"Dir::Cache={cache}")
    run(*apt, "update", cwd=folder)
    run(*apt, "download", *packages, cwd=folder)
    shutil.rmtree(fresh, ignore_errors=True)
    for archive in [path for package in packages for path in folder.glob(f"{package}_*.deb")]:
        run("dpkg-deb", "-x", str(archive), str(fresh), cwd=folder)
        archive.unlink()
    fresh.rename(place)
