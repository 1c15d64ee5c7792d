"""Counts of messages in a file."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bwtui.sink.destination import MessageCounts, stored_counts


def test_a_count_is_in_the_file_before_the_messages_are_handed_over(tmp_path: Path) -> None:
    counts, path = MessageCounts(), tmp_path / "counts"
    counts.add("orders", 4_000)
    assert counts.keep(path, 7, ["orders", "items"]) == {"orders": 1, "items": 2}
    counts.add("items", 2)
    counts.add("items", -3)
    counts.add("lines", 5)
    assert stored_counts(path)[:4] == (7, 4_000, -1, 0)
    assert counts.keep(path, 8, ["lines"])["lines"] == 3
    assert stored_counts(path)[:4] == (7, 4_000, -1, 5)


def test_a_file_that_is_cut_meanwhile_ends_no_relay(tmp_path: Path) -> None:
    """This happens when the disk is full on a file system that needs space for every write."""
    path = tmp_path / "counts"
    code = """
import os, pathlib, sys
import pytest

from bwtui.sink.destination import MessageCounts
counts, path = MessageCounts(), pathlib.Path(sys.argv[1])
counts.keep(path, 7, ["orders"])
os.truncate(path, 0)
counts.add("orders", 1)
"""
    assert subprocess.run([sys.executable, "-P", "-c", code, path], check=False).returncode == 0
    run, *_ = stored_counts(path)
    assert run == 0, "the next start does not use such counts"


def test_counts_that_can_not_be_written_are_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts, path = MessageCounts(), tmp_path / "counts"
    counts.keep(path, 7, ["orders"])
    assert counts._fd is not None
    # Every write to /dev/full fails with ENOSPC.
    monkeypatch.setattr(counts, "_fd", os.open("/dev/full", os.O_WRONLY))
    counts.add("orders", 1)
    assert counts["orders"] == 1 and not path.exists()
    assert counts.keep(path, 7, ["orders"]) == {}
