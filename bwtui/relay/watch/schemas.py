"""Looks now and then whether the ids under which rows are sent still stand for what was registered.

A registry that is restored, or replaced by an empty one, gives the same numbers to other schemas: rows that
go on under them would be read as something else, or not at all. So the relay ends, and registers anew when it
is started again. See docs/faults.md.
"""

import shlex

from bwtui.encode.local_registry import LocalRegistry
from bwtui.encode.registry import SchemaRegistry
from bwtui.errors import ServiceRefused
from bwtui.relay.report import Report

#: A registry that has just started may not have read all that it has.
_MISSING_LOOKS = 2


class SchemaWatch:
    """Compares the schemas of ids in use with what they were when they were first looked at."""

    def __init__(self, registry: SchemaRegistry | LocalRegistry, report: Report) -> None:
        self._registry = registry
        self._report = report
        #: As the registry says it, which may write a schema in another form than it was given.
        self._first: dict[int, str] = {}
        self._missing: dict[int, int] = {}

    def look(self) -> None:
        """Compare once. Raises ServiceRefused where an id is another schema's, and ConnectionFailed."""
        if not isinstance(self._registry, SchemaRegistry):
            return
        for table, number in self._in_use():
            text = self._registry.text_now(number)
            if text is not None:
                self._missing.pop(number, None)
                if self._first.setdefault(number, text) != text:
                    raise _refused(table, number, "stands for another schema by now")
            elif number in self._first:
                self._missing[number] = self._missing.get(number, 0) + 1
                if self._missing[number] >= _MISSING_LOOKS:
                    raise _refused(table, number, "is not in the registry any more")

    def _in_use(self) -> list[tuple[str, int]]:
        return [
            (name, number)
            for name, counters in self._report.tables.items()
            for number in (counters.key_schema_id, counters.value_schema_id)
            if number is not None
        ]


def _refused(table: str, number: int, says: str) -> ServiceRefused:
    return ServiceRefused(
        f"schema id {number}, under which rows of {table} are sent, {says}: readers would take them for "
        "something else",
        "start the relay again, which registers its schemas anew, and send the table's rows once more: "
        f"bwtui snapshot {shlex.quote(table)}",
    )
