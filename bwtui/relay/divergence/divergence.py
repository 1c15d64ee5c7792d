"""State of a promotion after which topics hold more than the new primary.

Each promotion has a small file in the relay's state folder, written before anything is read from the new
primary. It records where topics end at that time: the commits among those records that lie after the fork are
not in the new primary's history. The affected keys are stored next to it, one JSON object per line. Only the
owner can read that file, because keys are values of rows.
"""

import json
import re
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from bwtui.durable_files import private_parent, write_durably
from bwtui.errors import StateFailed
from bwtui.file_errors import file_failed
from bwtui.model.from_json import from_json_object
from bwtui.model.lsn import format_lsn

_FOLDER = "diverged"
_NOT_IN_NAMES = re.compile(r"[^0-9A-Fa-f]")


@dataclass(frozen=True, slots=True)
class Divergence:
    """One promotion."""

    slot: str
    #: The LSN of the fork, and the LSN up to which rows were sent.
    since: int
    until: int
    timeline: int
    #: The end of each topic's partitions, by topic and partition number, and the table of each topic.
    ends: dict[str, dict[str, int]] = field(default_factory=dict)
    tables: dict[str, str] = field(default_factory=dict)
    #: Whether everything that can be determined about its keys is written.
    is_named: bool = False

    @property
    def range(self) -> str:
        """The range of LSNs, for messages."""
        return f"{format_lsn(self.since)} to {format_lsn(self.until)}"


class Divergences:
    """The divergences of one relay's slot."""

    def __init__(self, folder: Path, slot: str) -> None:
        self._folder = folder / _FOLDER
        self._slot = slot

    def keep(self, one: Divergence) -> None:
        """Write the divergence durably. Raises StateFailed."""
        path = self._path(one, "json")
        try:
            private_parent(path)
            write_durably(path, json.dumps(asdict(one)))
        except OSError as error:
            raise file_failed(
                f"the changes that the new primary lacks can't be recorded in {path}", error
            ) from error

    def unnamed(self) -> list[Divergence]:
        """Return the divergences whose keys are not listed yet. Raises StateFailed."""
        unnamed = []
        for path in sorted(self._folder.glob("*.json")):
            try:
                one: Divergence = from_json_object(Divergence, json.loads(path.read_text(encoding="utf-8")))
            except (OSError, ValueError, TypeError) as error:
                raise StateFailed(f"{path} can't be read", "remove it, and run 'bwtui repair'") from error
            if one.slot == self._slot and not one.is_named:
                unnamed.append(one)
        return unnamed

    def name(self, one: Divergence, keys: list[dict[str, Any]]) -> Path:
        """Write the keys durably and return the file's path; `end` marks them as listed.

        Raises StateFailed.
        """
        path = self._path(one, "jsonl")
        try:
            write_durably(path, "".join(json.dumps(key) + "\n" for key in keys))
        except OSError as error:
            raise file_failed(
                f"the changes that the new primary lacks can't be recorded in {path}", error
            ) from error
        return path

    def end(self, one: Divergence) -> None:
        """Mark the divergence as done, durably. Raises StateFailed.

        A relay that is killed before this repeats the work.
        """
        self.keep(replace(one, is_named=True))

    def _path(self, one: Divergence, suffix: str) -> Path:
        lsn = _NOT_IN_NAMES.sub("-", format_lsn(one.since))
        return self._folder / f"{one.slot}-{one.timeline}-{lsn}.{suffix}"
