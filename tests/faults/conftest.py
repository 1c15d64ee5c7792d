"""Fixtures of the fault tests: relays that are closed at the end of their test."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bwtui.sandbox.sandbox import ServiceAddresses
from tests.faults.relays import Relay, new_name


@pytest.fixture
def new_relay(
    services: ServiceAddresses, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Relay]]:
    """Create relays of the test's database; every start of the relay gets the arguments."""
    monkeypatch.setenv("BWTUI_STATE_HOME", str(tmp_path / "state"))
    made: list[Relay] = []

    def make(*args: str, kind: type[Relay] = Relay) -> Relay:
        made.append(kind(services, database, tmp_path, new_name(), *args))
        return made[-1]

    yield make
    for relay in made:
        relay.close()
