"""What is remembered of a promotion after which topics have more than the new primary.

A small file for each in the relay's state folder, from before anything is read from the new primary: of what
topics hold by then, the commits behind the fork are not in its history. The keys are named beside it, one
JSON object a line, for its owner alone: they are values of rows.
"""

import json
import re
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from bwtui.durable import private, private_parent, write_durably
from bwtui.errors import StateFailed
from bwtui.file_errors import file_failed
from bwtui.model.from_json import made_of
from bwtui.model.lsn import format_lsn

_FOLDER = "diverged"
_NOT_IN_NAMES = re.compile(r"[^0-9A-Fa-f]")


@dataclass(frozen=True, slots=True)
class Divergence:
    """One promotion."""

    slot: str
    #: The fork, and up to where rows were sent.
    since: int
    until: int
    timeline: int
    #: Where each topic's partitions ended, by topic and number, and whose rows they hold.
    ends: dict[str, dict[str, int]] = field(default_factory=dict)
    tables: dict[str, str] = field(default_factory=dict)
    #: Whether what there is to be known of its keys is written down.
    is_named: bool = False

    @property
    def range(self) -> str:
        """Where it lies, for people."""
        return f"{format_lsn(self.since)} to {format_lsn(self.until)}"


class Divergences:
    """Those of one relay's slot."""

    def __init__(self, folder: Path, slot: str) -> None:
        self._folder = folder / _FOLDER
        self._slot = slot

    def keep(self, one: Divergence) -> None:
        """Write it down, durably. Raises StateFailed."""
        path = self._path(one, "json")
        try:
            private_parent(path)
            write_durably(path, json.dumps(asdict(one)))
        except OSError as error:
            raise file_failed(f"what the new primary lacks can't be written to {path}", error) from error

    def unnamed(self) -> list[Divergence]:
        """Return those whose keys are still to be named. Raises StateFailed."""
        found = []
        for path in sorted(self._folder.glob("*.json")):
            try:
                one: Divergence = made_of(Divergence, json.loads(path.read_text(encoding="utf-8")))
            except (OSError, ValueError, TypeError) as error:
                raise StateFailed(f"{path} can't be read", "remove it, and run 'bwtui repair'") from error
            if one.slot == self._slot and not one.is_named:
                found.append(one)
        return found

    def name(self, one: Divergence, keys: list[dict[str, Any]]) -> Path:
        """Write its keys, and return where they are; `end` says that they are named. Raises StateFailed."""
        path = self._path(one, "jsonl")
        try:
            with open(path, "w", encoding="utf-8", opener=private) as file:
                file.writelines(json.dumps(key) + "\n" for key in keys)
        except OSError as error:
            raise file_failed(f"what the new primary lacks can't be written to {path}", error) from error
        return path

    def end(self, one: Divergence) -> None:
        """Write down that all is done; a relay that is killed before does it again. Raises StateFailed."""
        self.keep(replace(one, is_named=True))

    def _path(self, one: Divergence, suffix: str) -> Path:
        lsn = _NOT_IN_NAMES.sub("-", format_lsn(one.since))
        return self._folder / f"{one.slot}-{one.timeline}-{lsn}.{suffix}"
