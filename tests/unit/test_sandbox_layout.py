"""The sandbox's folders and ports."""

import fcntl
import io
import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from bwtui.errors import RefusedError, UsageError
from bwtui.packages.setup_progress import PlainSetupProgress
from bwtui.sandbox import kafka, ports, processes
from bwtui.sandbox.layout import (
    SandboxLayout,
    SandboxState,
    ServerUser,
    demo_folder,
    reachable_by_others,
    sandbox_folder,
)
from bwtui.sandbox.sandbox import Sandbox


def test_the_folder_can_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BWTUI_SANDBOX_HOME", "/somewhere/else")
    assert sandbox_folder() == Path("/somewhere/else")


def test_the_demo_has_a_sandbox_within_each_folder_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = set()
    for name in ("one", "two"):
        monkeypatch.setenv("BWTUI_SANDBOX_HOME", str(tmp_path / name))
        found.add(demo_folder())
    assert found == {tmp_path / "one" / "demo", tmp_path / "two" / "demo"}
    # The demo prints this command: BWTUI_SANDBOX_HOME=… bwtui sandbox down.
    for folder in found:
        SandboxLayout(folder).make()
        SandboxLayout(folder).lock_demo().close()
        monkeypatch.setenv("BWTUI_SANDBOX_HOME", str(folder))
        assert demo_folder() == folder


def test_wiping_takes_the_demo_along_but_not_while_it_runs(tmp_path: Path) -> None:
    box, demo = Sandbox(tmp_path / "box"), SandboxLayout(tmp_path / "box" / "demo")
    demo.make()
    (demo.folder / "recording").mkdir()
    (demo.folder / "thesis.txt").touch()
    with demo.lock_demo():
        with pytest.raises(RefusedError, match="another demo is running in"):
            box.down(wipe=True)
        assert demo.data.is_dir()
    box.down(wipe=True)
    assert [one for one in tmp_path.rglob("*") if one.is_file()] == [demo.folder / "thesis.txt"]
    (demo.folder / "thesis.txt").unlink()
    box.down(wipe=True)
    assert not box.folder.exists()


def test_wiping_leaves_folders_that_no_sandbox_and_no_demo_made(tmp_path: Path) -> None:
    """BWTUI_SANDBOX_HOME may be any folder, and the names in a sandbox are common ones."""
    theirs = [tmp_path / part / name for part in (".", "demo") for name in ("data/rows", "logs/web", "lock")]
    for one in theirs:
        one.parent.mkdir(parents=True, exist_ok=True)
        one.write_text("not a number")
    with (tmp_path / "demo" / "lock").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        Sandbox(tmp_path).down(wipe=True)
    assert [one for one in theirs if not one.exists()] == []


#: Runs commands in a folder as an unprivileged user, and prints the outcome of each.
NOBODY = """
import json, os, sys
from click.testing import CliRunner
from bwtui.cli import demo, main, sandbox
import bwtui.demo.run, bwtui.relay.state.run_state
if os.geteuid() == 0:
    os.setgroups([]), os.setgid(65534), os.setuid(65534)
for place in sys.argv[2:]:
    os.environ["BWTUI_SANDBOX_HOME"] = os.path.join(sys.argv[1], place)
    for command in ("up", "status", "env", "down", "down --wipe", "demo"):
        args = ["demo", "--headless"] if command == "demo" else ["sandbox", *command.split()]
        ended = CliRunner().invoke(main.cli, args, prog_name="bwtui")
        print(json.dumps([place, command, ended.exit_code, ended.stderr]))
"""


def test_a_folder_that_can_not_be_used_is_no_bug() -> None:
    # This is not pytest's temporary folder, which other users can't enter.
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "file").touch()
        for one in ("closed", "locked"):
            (folder / one).mkdir(mode=0o700)
        (folder / "locked").chmod(0o555)
        (folder / "closed").chmod(0)
        places = ["file", "file/below", "closed/below", "locked/below", "/proc/nope"]
        command = [sys.executable, "-c", NOBODY, name, *places]
        ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        (folder / "closed").chmod(0o700)
    told = [json.loads(line) for line in ran.stdout.splitlines()]
    assert len(told) == len(places) * 6
    for place, what, code, said in told:
        # If there is no sandbox, nothing runs, and there is nothing to stop.
        if place in ("locked/below", "/proc/nope") and what not in ("up", "demo"):
            assert code == (0 if what.startswith("down") else 4), said
            continue
        error, hint = said.splitlines()
        assert code == 2 and "can't use the sandbox's folder" in error and place in error, said
        assert hint == "hint: set BWTUI_SANDBOX_HOME to a writable folder"


def test_a_process_of_another_user_gets_no_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BWTUI_POSTGRES", "postgresql://u:hunter2@h/d")
    nobody = 65534
    if os.geteuid() == 0:
        log = tmp_path / "log"
        process = processes.start(["/usr/bin/env"], log, Path("/"), environment={"LC_ALL": "C"}, user=nobody)
        assert process.wait(10) == 0
        given = log.read_text()
        assert "LC_ALL=C" in given
    else:
        # Only root can start one; this is the environment that it would get.
        given = str(processes._ours(nobody))
    assert "PATH" in given and "hunter2" not in given


@pytest.mark.parametrize(("given", "heap"), [("", 512), ("300m", 300), ("2G", 2048)])
def test_the_heap_of_kafka(given: str, heap: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BWTUI_SANDBOX_KAFKA_HEAP", given)
    assert kafka.heap_mb() == heap
    assert kafka.heap_mb(3) == (heap if given else 256)


@pytest.mark.parametrize("given", ["0m", "512", "1.5g", "-1g", "1g -Xss1g"])
def test_what_is_no_heap(given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BWTUI_SANDBOX_KAFKA_HEAP", given)
    with pytest.raises(UsageError, match=r"BWTUI_SANDBOX_KAFKA_HEAP is .* not a valid heap size"):
        Sandbox(tmp_path / "sandbox").up()
    assert not (tmp_path / "sandbox").exists()


def test_memory_is_for_the_owner_only_and_comes_back(tmp_path: Path) -> None:
    layout = SandboxLayout(tmp_path / "sandbox")
    layout.make()
    memory = layout.recall()
    memory.ports = {"kafka": 20_001}
    layout.remember(memory)
    assert layout.recall() == memory
    assert layout.memory.stat().st_mode & 0o077 == 0
    assert layout.folder.stat().st_mode & 0o077 == 0
    assert SandboxState().password != SandboxState().password


def test_wipe_leaves_what_is_not_ours(tmp_path: Path) -> None:
    layout = SandboxLayout(tmp_path)
    layout.make()
    layout.starting.touch()
    layout.recall()
    (layout.data / "kafka").mkdir()
    other = tmp_path / "thesis.txt"
    other.touch()
    layout.wipe()
    assert list(tmp_path.iterdir()) == [other]
    other.unlink()
    layout.wipe()
    assert not tmp_path.exists()


def test_a_folder_behind_a_closed_one_is_not_reachable_by_others_whatever_links_lead_there() -> None:
    # This is not pytest's temporary folder, which other users can't enter.
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for path, mode in ((folder, 0o755), (folder / "closed", 0o700), (folder / "closed/inner", 0o755)):
            path.mkdir(exist_ok=True)
            path.chmod(mode)
        (folder / "open").mkdir()
        (folder / "link").symlink_to("closed/inner")
        (folder / "closed/back").symlink_to("../open")
        (folder / "through").symlink_to(folder / "closed/back")
        (folder / "fine").symlink_to("open")
        found = {path: reachable_by_others(folder / path) for path in ("open", "fine", "closed/inner")}
        found |= {path: reachable_by_others(folder / path) for path in ("link", "through", "link/..")}
    assert [path for path, reachable in found.items() if reachable] == ["open", "fine"]


@pytest.mark.parametrize("mode", [0o700, 0o755])
def test_the_user_that_postgres_runs_under_gets_to_its_folder(mode: int) -> None:
    """The demo first creates the outer folder, which others can enter; a sandbox's folders are private."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(mode)
    layout = SandboxLayout(folder)
    layout.make()
    layout.starting.touch()
    place = layout.postgres_place(layout.recall(), ServerUser(65534, 65534))
    try:
        assert reachable_by_others(place)
    finally:
        layout.wipe()
    assert not place.exists()


def test_a_remembered_port_is_taken_again_only_while_it_is_free() -> None:
    # The kernel must not have chosen it: an outgoing connection may get such a port as soon as it is free.
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
    progress = PlainSetupProgress(stream)
    for done in range(0, 101):
        progress.fetched(done * 1_000_000, 100_000_000)
    assert stream.getvalue() == "bwtui: fetched 0 of 100 MB\nbwtui: fetched 100 of 100 MB\n"
