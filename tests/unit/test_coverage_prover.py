"""When the relay stops comparing unproven tables, and when it starts again."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from bwtui.relay.coverage import prover
from bwtui.relay.coverage.ledger import CoverageLedger
from bwtui.relay.coverage.prover import CoverageProver
from bwtui.relay.healing import comparison
from bwtui.relay.run_state import RunState
from bwtui.settings import RelaySettings
from tests.waiting import eventually

#: Ends as a comparison does whose services do not answer, and as one that finds differences.
UNREACHABLE, DIFFERS = "raise SystemExit(4)", "print('{\"tables\": []}'); raise SystemExit(1)"


class World:
    """A relay that compares by a command whose end a test chooses."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, value in (("LOOK", 0.01), ("PAUSE", 0.01), ("MOST", 0.02)):
            monkeypatch.setattr(prover, f"_{name}_SECONDS", value)
        monkeypatch.setattr(prover, "_MOST_FAILURES", 2)
        self._monkeypatch = monkeypatch
        self.report = RunState()
        self.ledger = CoverageLedger(folder, ("1", "db", "shop"), RelaySettings(slot="shop"), self.report)
        self.compared: list[list[str]] = []
        self.is_clean = False
        #: The table that is not clean then.
        self.differs = ""
        self.proving = CoverageProver("shop", self.ledger, lambda: True, self._begin, gives_up=False)

    def start(self, program: str, *tables: str) -> None:
        """Begin, with ``tables`` that are not proven."""
        self._monkeypatch.setattr(comparison, "_COMMAND", (sys.executable, "-c", program))
        for table in tables:
            self.ledger.mark(table, "was changed")
        self.proving.start()

    def is_given_up(self, table: str) -> bool:
        """Whether a person has to repair."""
        return any(one.table == table and one.command for one in self.report.not_proven)

    def _begin(self, tables: Sequence[str]) -> None:
        self.compared.append(list(tables))
        if self.is_clean and self.differs not in tables:
            self.ledger.proven(tables, self.ledger.moment())


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A relay of which nothing is compared yet."""
    made = World(tmp_path, monkeypatch)
    yield made
    made.proving.close()


def test_what_an_outage_left_open_is_proven_after_it(world: World) -> None:
    world.start(UNREACHABLE, "public.orders", "public.items")
    eventually("a person is called", lambda: world.is_given_up("public.orders"))
    world.is_clean = True
    eventually("it is proven all the same", lambda: not world.report.not_proven)


def test_each_table_has_tries_of_its_own(world: World) -> None:
    world.start(DIFFERS, "public.orders")
    eventually("the first is given up", lambda: world.is_given_up("public.orders"))
    tries = world.compared.count(["public.orders"])
    assert tries == 3
    world.ledger.mark("public.items", "was changed")
    eventually("the second is given up", lambda: world.is_given_up("public.items"))
    assert world.compared.count(["public.items"]) == tries
    assert world.compared.count(["public.orders"]) == tries, "differences are left to a person"


def test_no_command_gets_more_arguments_than_linux_takes(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """12,000 names in one command were E2BIG."""
    monkeypatch.setattr(comparison, "_COMMAND", (sys.executable, "-c", "print('{}')"))
    tables = [f"public.{'x' * 180}_{number:05}" for number in range(12_000)]
    world.proving._try(tables)
    assert [len(group) for group in world.compared] == [500] * 24
    assert not caplog.records


def test_a_table_that_differs_costs_few_commands(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """There was a command for each table of its group."""
    monkeypatch.setattr(comparison, "_COMMAND", (sys.executable, "-c", DIFFERS))
    world.is_clean, world.differs = True, "public.t07"
    tables = [f"public.t{number:02}" for number in range(64)]
    for table in tables:
        world.ledger.mark(table, "was changed")
    assert world.proving._try(tables) == [world.differs]
    assert len(world.compared) == 1 + 2 * 6
