"""Prometheus and promtool: those of this machine, or out of Debian's package, unpacked and not installed.

It is fetched once into the cache folder, by apt with a folder of its own for lists: that needs no root.
"""

import fcntl
import functools
import shutil
import subprocess
from pathlib import Path

from bwtui.packages.artifacts import cache_folder

_PACKAGE = "prometheus"
_FETCH_SECONDS = 240.0


@functools.cache
def programs() -> Path:
    """Return the folder with prometheus and promtool. Fails, with the reason, where they can't be had."""
    found = shutil.which("promtool")
    if found is not None and shutil.which(_PACKAGE) is not None:
        return Path(found).parent
    folder = cache_folder() / "debian"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        there = folder / _PACKAGE
        if not there.exists():
            _unpack(folder, there)
    return there / "usr" / "bin"


def _unpack(folder: Path, place: Path) -> None:
    if shutil.which("apt-get") is None:
        raise AssertionError("neither prometheus nor apt-get is here: install Prometheus, which has promtool")
    lists, cache, fresh = folder / "lists", folder / "cache", folder / "fresh"
    for path in (lists / "partial", cache / "archives" / "partial"):
        path.mkdir(parents=True, exist_ok=True)
    apt = ("apt-get", "-q", "-o", f"Dir::State::Lists={lists}", "-o", f"Dir::Cache={cache}")
    _run(*apt, "update", cwd=folder)
    _run(*apt, "download", _PACKAGE, cwd=folder)
    [archive] = folder.glob(f"{_PACKAGE}_*.deb")
    shutil.rmtree(fresh, ignore_errors=True)
    _run("dpkg-deb", "-x", str(archive), str(fresh), cwd=folder)
    archive.unlink()
    fresh.rename(place)


def promtool(*arguments: str | Path) -> str:
    """Run promtool and return what it says; the test fails where it finds fault."""
    return _run(str(programs() / "promtool"), *map(str, arguments))


def _run(*command: str, cwd: Path | None = None) -> str:
    run = subprocess.run(
        command, cwd=cwd, check=False, capture_output=True, text=True, timeout=_FETCH_SECONDS
    )
    said = run.stdout + run.stderr
    assert run.returncode == 0, f"{' '.join(command)}: {said}"
    return said
