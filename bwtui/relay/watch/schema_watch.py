"""Checks periodically whether the schema ids in use still identify the schemas that were registered.

A registry that is restored, or replaced by an empty one, assigns the same ids to different schemas: readers
would then misread rows under those ids, or fail to read them. So the relay ends, and registers its schemas
again when it is restarted. See docs/faults.md.
"""

import json
import shlex
from typing import Any

from bwtui.encode.local_registry import LocalRegistry
from bwtui.encode.registry import SchemaRegistry
from bwtui.errors import ServiceRefused
from bwtui.relay.run_state import RunState

#: Number of checks before an id counts as missing: a registry that has just started may not have loaded all.
_MISSING_LOOKS = 2
#: Maximum number of affected tables that the error names.
_NAMED = 20


class SchemaWatch:
    """Compares the schemas of ids in use with those seen at the first check."""

    def __init__(self, registry: SchemaRegistry | LocalRegistry, report: RunState) -> None:
        self._registry = registry
        self._report = report
        #: Digests of the registry's own text, which may differ from the registered text.
        self._first: dict[int, int] = {}
        self._missing: dict[int, int] = {}

    def look(self, *, new_ones: bool = False) -> None:
        """Compare once; ``new_ones``: only ids that were not checked yet.

        Raises ServiceRefused, naming the tables, if ids identify other schemas, and ConnectionFailed.
        """
        if not isinstance(self._registry, SchemaRegistry):
            return
        used = self._in_use()
        numbers = {number for _, number in used}
        self._first = {number: first for number, first in self._first.items() if number in numbers}
        if new_ones:
            used = [(table, number) for table, number in used if number not in self._first]
        wrong = {number: problem for number in {n for _, n in used} if (problem := self._wrong(number))}
        if wrong:
            raise _refused([(table, number, wrong[number]) for table, number in used if number in wrong])

    def _wrong(self, number: int) -> str:
        """Return what is wrong with an id, or ""."""
        assert isinstance(self._registry, SchemaRegistry)
        text = self._registry.text_now(number)
        if text is not None:
            self._missing.pop(number, None)
            now = hash(_form(text))
            return "now identifies a different schema" if self._first.setdefault(number, now) != now else ""
        self._missing[number] = self._missing.get(number, 0) + 1
        return "is no longer in the registry" if self._missing[number] >= _MISSING_LOOKS else ""

    def _in_use(self) -> list[tuple[str, int]]:
        return [
            (name, number)
            for name, counters in self._report.tables.items()
            for number in (counters.key_schema_id, counters.value_schema_id)
            if number is not None
        ]


def _form(text: str) -> str:
    """Return a schema in canonical form, whichever node of a registry wrote it."""
    try:
        parsed: Any = json.loads(text)
    except ValueError:
        return text
    return json.dumps(parsed, sort_keys=True)


def _refused(wrong: list[tuple[str, int, str]]) -> ServiceRefused:
    table, number, problem = wrong[0]
    tables = list(dict.fromkeys(name for name, _, _ in wrong))
    more_tables = f" and {len(tables) - 1} other tables" if len(tables) > 1 else ""
    more = f" … and {len(tables) - _NAMED} more" if len(tables) > _NAMED else ""
    return ServiceRefused(
        f"schema id {number} of table {table}{more_tables} {problem}: consumers would misread the rows",
        "restore the registry with its former ids; or start the relay again, which registers "
        "its schemas again, and send the rows again, because consumers can't decode the "
        f"earlier ones: bwtui snapshot {shlex.join(tables[:_NAMED])}{more}",
    )
