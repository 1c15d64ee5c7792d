"""Calls to services before the stream begins."""

import pytest

from bwtui.blocking import StopRequested
from bwtui.errors import AuthenticationFailed, ConnectionFailed
from bwtui.relay.state import startup_probe
from bwtui.relay.state.run_state import RunState
from bwtui.relay.state.startup_probe import StartupProbe
from bwtui.settings import RelaySettings

AWAY = ConnectionFailed("can't reach the registry: refused", "start it")


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(startup_probe, "_WAIT_FIRST", 0.001)


def answers(report: RunState, *, waits: bool = True, stopping: bool = False) -> StartupProbe:
    return StartupProbe(RelaySettings(wait_for_services=waits), report, lambda: stopping)


def test_a_service_that_is_away_is_asked_until_it_is_there() -> None:
    report = RunState()
    report.detail = "checking"
    told: list[tuple[str, str]] = []

    def call() -> int:
        told.append((report.detail, report.clock.current[0]))
        if len(told) < 4:
            raise AWAY
        return 7

    assert answers(report).call("registry", call) == 7
    assert told[0] == ("checking", "registry")
    assert told[1:] == [(f"waiting for the schema registry: {AWAY.message}", "registry")] * 3
    assert (report.detail, report.clock.current[0]) == ("checking", "begin")
    assert [(entry.count, entry.is_over) for entry in report.errors()] == [(3, True)]


@pytest.mark.parametrize(
    ("waits", "error"), [(False, AWAY), (True, AuthenticationFailed("Kafka does not let us in", "check -C"))]
)
def test_without_the_option_or_where_we_are_not_let_in_it_ends_at_once(
    waits: bool, error: ConnectionFailed
) -> None:
    asked = []

    def call() -> None:
        asked.append(1)
        raise error

    with pytest.raises(type(error), match=error.message):
        answers(RunState(), waits=waits).call("topics", call)
    assert len(asked) == 1


def test_a_stop_ends_the_wait() -> None:
    def call() -> None:
        raise AWAY

    with pytest.raises(StopRequested):
        answers(RunState(), stopping=True).call("connect", call)
