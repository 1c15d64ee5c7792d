"""An audit opens each recording once, and passes it on."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from bwtui.cli.main import CONTEXT
from bwtui.cli.verify import verify
from bwtui.errors import DamagedRecording
from bwtui.recording import sealed
from bwtui.verify import audit_inputs, recordings
from bwtui.verify.engines import DigestEngines
from bwtui.verify.journal_facts import LARGEST
from tests.pipeline.test_seal import local, record


def test_every_recording_is_opened_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        record(folder)
        local(folder)
    opened: Counter[tuple[str, Path]] = Counter()

    def counted(module: Any, name: str) -> None:
        real = getattr(module, name)

        def call(path: Path, *given: Any) -> Any:
            opened[name, path] += 1
            return real(path, *given)

        monkeypatch.setattr(module, name, call)

    counted(sealed, "read_manifest")
    outcome = CliRunner().invoke(verify, [*map(str, folders)], catch_exceptions=False, **CONTEXT)
    assert outcome.exit_code == 0, outcome.output
    assert len(opened) == 2
    assert set(opened.values()) == {1}


def test_a_segment_that_is_finished_later_is_seen(tmp_path: Path) -> None:
    stream = record(tmp_path / "r")
    local(stream.folder)
    recorded = audit_inputs.open_recorded(stream.folder)
    assert recorded.whole() is not None
    stream.start()
    stream.begin_pass()
    stream.stop()
    assert recorded.whole() is None


def test_what_a_relay_does_while_every_byte_is_checked_is_among_the_facts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = record(tmp_path / "r")
    local(stream.folder)
    recorded = audit_inputs.open_recorded(stream.folder)
    assert recorded.facts.later == 0

    def check_all(*_: Any) -> None:
        stream.start()
        stream.begin_pass()

    monkeypatch.setattr(recordings, "check_all", check_all)
    _, facts = recordings._seal(recorded, DigestEngines(None, lambda _: None), lambda _: None)
    assert facts.later == 1 and facts.resumed < LARGEST
    stream.stop()


@pytest.mark.parametrize("lost", [slice(-1, None), slice(None)], ids=["the last", "all"])
def test_a_sealed_segment_that_is_gone_is_damage(lost: slice, tmp_path: Path) -> None:
    """The file holds the confirmed position: without it, lost messages would count as pending."""
    stream = record(tmp_path / "r")
    local(stream.folder)
    for path in sorted(stream.folder.glob("*.bwj"))[lost]:
        path.unlink()
    with pytest.raises(DamagedRecording, match="it was sealed, and is missing now"):
        audit_inputs.open_recorded(stream.folder)
