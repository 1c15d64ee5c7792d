"""The lock: the files of the sandbox, by coordinates, with their sizes and sha256.

`artifacts.lock.json` next to this module has groups of files ("kafka", "registry", "postgres-18-linux-amd64",
…). `make lock` writes it; do not edit it by hand.
"""

import hashlib
import importlib.resources
import json
import platform
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from bwtui.errors import RefusedError

LOCK_NAME = "artifacts.lock.json"
MAJORS = (14, 15, 16, 17, 18)

_MACHINES = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64v8", "arm64": "arm64v8"}


@dataclass(frozen=True, slots=True)
class Artifact:
    """One file of a registry, by its Maven coordinates."""

    org: str
    name: str
    rev: str
    ext: str
    sha256: str
    #: In bytes.
    size: int
    classifier: str = ""

    @property
    def file_name(self) -> str:
        """Name of the file in the cache folder."""
        tail = f"-{self.classifier}" if self.classifier else ""
        return f"{self.name}-{self.rev}{tail}.{self.ext}"

    @property
    def coordinates(self) -> str:
        """The coordinates for display in messages."""
        tail = f":{self.classifier}" if self.classifier else ""
        return f"{self.org}:{self.name}:{self.rev}{tail}"

    def matches(self, path: Path) -> bool:
        """Return whether the file is the locked one, by size and sha256."""
        if path.stat().st_size != self.size:
            return False
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest() == self.sha256


@cache
def load() -> dict[str, tuple[Artifact, ...]]:
    """Return the groups of this package's lock."""
    text = (importlib.resources.files(__package__) / LOCK_NAME).read_text()
    return {
        group: tuple(Artifact(**entry) for entry in entries) for group, entries in json.loads(text).items()
    }


def postgres_group(major: int) -> str:
    """Return the name of the group for a major version of PostgreSQL on this machine.

    Raises RefusedError when the lock has none.
    """
    machine = _MACHINES.get(platform.machine().lower(), platform.machine())
    group = f"postgres-{major}-{sys.platform}-{machine}"
    if group not in load():
        raise RefusedError(
            f"the sandbox has no PostgreSQL {major} for {sys.platform} on {machine}",
            "Choose a different major version with --postgres, or use a server of your own with "
            "-d or BWTUI_POSTGRES.",
        )
    return group
