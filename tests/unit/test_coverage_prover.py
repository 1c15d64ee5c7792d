"""When the relay stops comparing unproven tables, and when it starts again."""

import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from bwtui.relay.healing import coverage_prover, heal
from bwtui.relay.healing.coverage_prover import CoverageProver
from bwtui.relay.history.coverage_ledger import CoverageLedger
from bwtui.relay.state.run_state import RunState
from bwtui.settings import RelaySettings
from tests.waiting import eventually

#: Programs that end like a comparison with unavailable services, and like one that finds differences.
UNREACHABLE, DIFFERS = "raise SystemExit(4)", "print('{\"tables\": []}'); raise SystemExit(1)"


class World:
    """A relay that compares with a command whose outcome the test chooses."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, value in (("LOOK", 0.01), ("PAUSE", 0.01), ("MOST", 0.02)):
            monkeypatch.setattr(coverage_prover, f"_{name}_SECONDS", value)
        monkeypatch.setattr(coverage_prover, "_MOST_FAILURES", 2)
        self._monkeypatch = monkeypatch
        self.report = RunState()
        self.ledger = CoverageLedger(folder, ("1", "db", "shop"), RelaySettings(slot="shop"), self.report)
        self.compared: list[list[str]] = []
        self.is_clean = False
        #: The only table that differs when `is_clean` is set.
        self.differs = ""
        self.proving = CoverageProver(
            "shop", self.ledger, lambda: True, self._begin, str, self.report, gives_up=False
        )

    def start(self, program: str, *tables: str) -> None:
        """Start with ``tables`` that are not proven."""
        self._monkeypatch.setattr(heal, "_COMMAND", (sys.executable, "-c", program))
        for table in tables:
            self.ledger.mark(table, "was changed")
        self.proving.start()

    def is_given_up(self, table: str) -> bool:
        """Return whether the table needs a repair by a person."""
        return any(one.table == table and one.command for one in self.report.not_proven)

    def _begin(self, tables: Sequence[str]) -> None:
        self.compared.append(list(tables))
        if self.is_clean and self.differs not in tables:
            self.ledger.proven(tables, self.ledger.moment())


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A relay without any comparison so far."""
    made = World(tmp_path, monkeypatch)
    yield made
    made.proving.close()


def test_what_an_outage_left_open_is_proven_after_it(world: World) -> None:
    world.start(UNREACHABLE, "public.orders", "public.items")
    eventually("a person is called", lambda: world.is_given_up("public.orders"))
    world.is_clean = True
    eventually("it is proven all the same", lambda: not world.report.not_proven)


def test_the_status_shows_how_a_comparison_proceeds(world: World) -> None:
    progress = "print(json.dumps({'phase': 'reading topics', 'done': 3, 'total': 7}), file=sys.stderr)"
    program = f"import json, sys, time; {progress}; sys.stderr.flush(); time.sleep(60)"
    world.start(program, "public.orders")
    eventually("it is shown", lambda: world.report.comparison == "public.orders: reading topics: 3 of 7")
    world.is_clean = True
    world.ledger.proven(["public.orders"], world.ledger.moment())
    world.proving._command.signal(signal.SIGKILL)
    eventually("it is over", lambda: not world.report.comparison)


def test_the_status_shows_why_a_comparison_is_repeated(world: World) -> None:
    world.start("import sys; print('Kafka is down', file=sys.stderr); raise SystemExit(4)", "public.orders")
    words = "public.orders: the comparison was not clean and will be repeated: Kafka is down"
    eventually("it is shown", lambda: world.report.comparison == words)


def test_a_comparison_that_only_found_differences_says_so(world: World) -> None:
    world.start("raise SystemExit(1)", "public.orders")
    words = "public.orders: the comparison was not clean and will be repeated: the table still differs"
    eventually("it is shown", lambda: world.report.comparison == words)


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
    """12,000 names in one command failed with E2BIG."""
    monkeypatch.setattr(heal, "_COMMAND", ("/bin/sh", "-c", "echo '{}'"))
    tables = [f"public.{'x' * 180}_{number:05}" for number in range(12_000)]
    world.proving._try(tables)
    assert [len(group) for group in world.compared] == [500] * 24
    assert not caplog.records


def test_a_table_that_differs_costs_few_commands(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Previously each table of its group took one command."""
    monkeypatch.setattr(heal, "_COMMAND", (sys.executable, "-c", DIFFERS))
    world.is_clean, world.differs = True, "public.t07"
    tables = [f"public.t{number:02}" for number in range(64)]
    for table in tables:
        world.ledger.mark(table, "was changed")
    assert world.proving._try(tables) == [world.differs]
    assert len(world.compared) == 1 + 2 * 6
