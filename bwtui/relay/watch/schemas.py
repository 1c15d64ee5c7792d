"""Looks now and then whether the ids under which rows are sent still stand for what was registered.

A registry that is restored, or replaced by an empty one, gives the same numbers to other schemas: rows that
go on under them would be read as something else, or not at all. So the relay ends, and registers anew when it
is started again. See docs/faults.md.
"""

import json
import shlex
from typing import Any

from bwtui.encode.local_registry import LocalRegistry
from bwtui.encode.registry import SchemaRegistry
from bwtui.errors import ServiceRefused
from bwtui.relay.report import Report

#: A registry that has just started may not have read all that it has.
_MISSING_LOOKS = 2
#: Tables that are named, of those whose ids say something else by now.
_NAMED = 20


class SchemaWatch:
    """Compares the schemas of ids in use with what they were when they were first looked at."""

    def __init__(self, registry: SchemaRegistry | LocalRegistry, report: Report) -> None:
        self._registry = registry
        self._report = report
        #: As the registry says it, which may write a schema in another form than it was given: digests.
        self._first: dict[int, int] = {}
        self._missing: dict[int, int] = {}

    def look(self, *, new_ones: bool = False) -> None:
        """Compare once; ``new_ones``: only the ids that were not looked at yet.

        Raises ServiceRefused where ids are other schemas', with all tables, and ConnectionFailed.
        """
        if not isinstance(self._registry, SchemaRegistry):
            return
        used = self._in_use()
        numbers = {number for _, number in used}
        self._first = {number: first for number, first in self._first.items() if number in numbers}
        if new_ones:
            used = [(table, number) for table, number in used if number not in self._first]
        wrong = {number: says for number in {n for _, n in used} if (says := self._wrong(number))}
        if wrong:
            raise _refused([(table, number, wrong[number]) for table, number in used if number in wrong])

    def _wrong(self, number: int) -> str:
        """Say what is wrong with an id, or nothing."""
        assert isinstance(self._registry, SchemaRegistry)
        text = self._registry.text_now(number)
        if text is not None:
            self._missing.pop(number, None)
            now = hash(_form(text))
            return "stands for another schema by now" if self._first.setdefault(number, now) != now else ""
        self._missing[number] = self._missing.get(number, 0) + 1
        return "is not in the registry any more" if self._missing[number] >= _MISSING_LOOKS else ""

    def _in_use(self) -> list[tuple[str, int]]:
        return [
            (name, number)
            for name, counters in self._report.tables.items()
            for number in (counters.key_schema_id, counters.value_schema_id)
            if number is not None
        ]


def _form(text: str) -> str:
    """Return a schema in one form, whichever node of a registry wrote it."""
    try:
        parsed: Any = json.loads(text)
    except ValueError:
        return text
    return json.dumps(parsed, sort_keys=True)


def _refused(wrong: list[tuple[str, int, str]]) -> ServiceRefused:
    table, number, says = wrong[0]
    tables = list(dict.fromkeys(name for name, _, _ in wrong))
    others = f" (and so with {len(tables) - 1} other tables)" if len(tables) > 1 else ""
    more = f" … and {len(tables) - _NAMED} more" if len(tables) > _NAMED else ""
    return ServiceRefused(
        f"schema id {number}, under which rows of {table} are sent, {says}{others}: readers would take them "
        "for something else",
        "restore the registry with the ids that it had; or start the relay again, which registers its "
        "schemas anew, and send the rows once more, for those from before can't be read as what they are: "
        f"bwtui snapshot {shlex.join(tables[:_NAMED])}{more}",
    )
