"""Where the sandbox keeps its things, and the ports it takes."""

import io
import socket
from pathlib import Path

import pytest

from bwtui.errors import UsageError
from bwtui.sandbox import kafka, ports
from bwtui.sandbox.layout import Layout, Memory, reachable_by_others, sandbox_folder
from bwtui.sandbox.progress import Plain
from bwtui.sandbox.supervisor import Sandbox


def test_the_folder_can_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BWTUI_SANDBOX_HOME", "/somewhere/else")
    assert sandbox_folder() == Path("/somewhere/else")


@pytest.mark.parametrize(("given", "heap"), [("", 512), ("300m", 300), ("2G", 2048)])
def test_the_heap_of_kafka(given: str, heap: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BWTUI_SANDBOX_KAFKA_HEAP", given)
    assert kafka.heap_mb() == heap


@pytest.mark.parametrize("given", ["0m", "512", "1.5g", "-1g", "1g -Xss1g"])
def test_what_is_no_heap(given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BWTUI_SANDBOX_KAFKA_HEAP", given)
    with pytest.raises(UsageError, match=r"BWTUI_SANDBOX_KAFKA_HEAP is .* no size of a heap"):
        Sandbox(tmp_path / "sandbox").up()
    assert not (tmp_path / "sandbox").exists()


def test_memory_is_for_the_owner_only_and_comes_back(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "sandbox")
    layout.make()
    memory = layout.recall()
    memory.ports = {"kafka": 20_001}
    layout.remember(memory)
    assert layout.recall() == memory
    assert layout.memory.stat().st_mode & 0o077 == 0
    assert layout.folder.stat().st_mode & 0o077 == 0
    assert Memory().password != Memory().password


def test_wipe_leaves_what_is_not_ours(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    layout.make()
    layout.recall()
    (layout.data / "kafka").mkdir()
    other = tmp_path / "thesis.txt"
    other.touch()
    layout.wipe()
    assert list(tmp_path.iterdir()) == [other]
    other.unlink()
    layout.wipe()
    assert not tmp_path.exists()


def test_reachable_by_others_looks_at_every_folder_above(tmp_path: Path) -> None:
    inner = tmp_path / "closed" / "inner"
    inner.mkdir(parents=True)
    inner.parent.chmod(0o700)
    assert not reachable_by_others(inner)


def test_a_remembered_port_is_taken_again_only_while_it_is_free() -> None:
    # None of the kernel's own choice: an outgoing connection may be given it as soon as it is free.
    taken = ports.choose(["a"], {})["a"]
    with socket.socket() as busy:
        busy.bind((ports.LOOPBACK, taken))
        busy.listen()
        assert not ports.is_free(taken)
        assert ports.choose(["a"], {"a": taken})["a"] != taken
    assert ports.choose(["a"], {"a": taken}) == {"a": taken}


def test_two_services_never_share_a_port() -> None:
    first = ports.choose(["a"], {})["a"]
    chosen = ports.choose(["a", "b"], {"a": first, "b": first})
    assert chosen["a"] != chosen["b"]


def test_plain_progress_writes_few_lines() -> None:
    stream = io.StringIO()
    progress = Plain(stream)
    for done in range(0, 101):
        progress.fetched(done * 1_000_000, 100_000_000)
    assert stream.getvalue() == "bwtui: fetched 0 of 100 MB\nbwtui: fetched 100 of 100 MB\n"
