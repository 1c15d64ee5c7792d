"""Progress of verify: a bar with rate and remaining time on a terminal, lines elsewhere."""

import io

import pytest

from bwtui.cli.output.progress import PlainProgress, ProgressBar, ProgressView, rate, view_of


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


def test_rate_and_time_left() -> None:
    assert rate(250_000, 1_000_000, 0.5) == "250,000 of 1,000,000 rows, 500,000/s, 2 s left"
    assert rate(0, 10, 0.0) == "0 of 10 rows, 0/s"


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("TERM", "xterm-256color")
    view = view_of(as_json=False, progress_json=False)
    assert isinstance(view, ProgressBar)
    with view:
        view.phase("reading Kafka: 1,000 offsets")
        view.count(500, 1_000)
    shown = stream.getvalue()
    assert "reading Kafka: 1,000 offsets" in shown
    assert "500 of 1,000 rows" in shown
    assert "/s" in shown and "s left" in shown


def test_a_terminal_that_can_only_print_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", Terminal())
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(view_of(as_json=False, progress_json=False), PlainProgress)


def test_lines_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    view = view_of(as_json=False, progress_json=False)
    assert isinstance(view, PlainProgress)
    view.phase("starting Spark")
    view.count(1, 2)
    assert stream.getvalue() == "bwtui: starting Spark\n"


def test_nothing_beside_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", Terminal())
    assert type(view_of(as_json=True, progress_json=False)) is ProgressView
