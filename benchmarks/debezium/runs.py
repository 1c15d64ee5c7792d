"""One run of one way: what it is given, and what came of it."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.debezium.source import PUBLICATION, Source
from benchmarks.debezium.workloads import Kind, Workload
from bwtui.sandbox.sandbox import ServiceAddresses


@dataclass(frozen=True)
class Run:
    """What one run is of."""

    services: ServiceAddresses
    workload: Workload
    source: Source
    way: str
    #: Its topics begin with it, and its slot is named so.
    name: str
    rows: int
    warm_rows: int
    #: Of its own, and gone behind it.
    folder: Path
    #: Of Debezium's JVM, as Java says it: ``768m``.
    heap: str


@dataclass(slots=True)
class Used:
    """What a way's processes have used; filled in when they have ended."""

    cpu_seconds: float = 0.0
    resident_mb: float = 0.0


class Relaying:
    """A way that is under way: how to see that it goes on, and what it used."""

    def __init__(self, check: Callable[[], object]) -> None:
        #: Raises BwtuiError once it is lost.
        self.check = check
        self.used = Used()


#: Entered, it relays; left, it has ended in order.
Way = Callable[[Run], AbstractContextManager[Relaying]]


def slot_of(run: Run, name: str, publication: str = PUBLICATION) -> AbstractContextManager[str]:
    """A slot of the run's: from before the rows were written, or one that the way makes itself."""
    if run.workload.kind is Kind.SNAPSHOT:
        return run.source.slot_gone_after(name)
    return run.source.slot(name, publication)


Figures = dict[str, Any]
