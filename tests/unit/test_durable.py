"""A file is either written completely or unchanged."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from bwtui.durable_files import write_atomically, write_durably


@pytest.mark.parametrize("write", [write_durably, write_atomically])
def test_a_disk_that_refuses_leaves_the_old_text_and_nothing_else(
    write: Callable[[Path, str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "one.json"
    write(path, "old ü")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        write(path, "new")
    assert path.read_text(encoding="utf-8") == "old ü"
    assert list(tmp_path.iterdir()) == [path]


def test_content_and_name_are_on_the_disk_in_that_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, steps, real = tmp_path / "one.json", list[str](), Path.replace

    def replace(source: Path, target: Path) -> Path:
        steps.append("name")
        return real(source, target)

    def sync(fd: int) -> None:
        steps.append("folder" if stat.S_ISDIR(os.fstat(fd).st_mode) else f"{os.fstat(fd).st_size} bytes")

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(Path, "replace", replace)
    write_durably(path, "text")
    assert steps == ["4 bytes", "name", "folder"]
