"""Arguments are checked before files are touched and services are contacted."""

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from bwtui.cli.main import cli

SHOP = str(Path(__file__).parents[2] / "recordings" / "shop")
MASTERS = ["bogus", "local[x]", "local[0]", "local[*,0]", "local[0", "spark://x", "spark://x:y", ""]
PREFIXES = ["a b", "ä", "a/b", "x" * 201, ".."]
#: Paths within the test's folder.
PLACES = ["file", "file/below", "full", "/proc/nope", ""]


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Clients that contacted a service: a port that records and closes connections replaces all three."""
    (tmp_path / "file").touch()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").touch()
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith(("BWTUI_", "PG"))]:
        monkeypatch.delenv(name)
    asked: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        place = f"127.0.0.1:{server.getsockname()[1]}"
        host, port = place.split(":")
        given = {
            "BWTUI_POSTGRES": f"host={host} port={port} user=u dbname=d",
            "BWTUI_BROKER": place,
            "BWTUI_SCHEMA_REGISTRY": f"http://{place}",
            "BWTUI_STATE_HOME": str(tmp_path / "state"),
            "BWTUI_SANDBOX_HOME": str(tmp_path / "sandbox"),
            "XDG_CONFIG_HOME": str(tmp_path),
        }
        for name, value in given.items():
            monkeypatch.setenv(name, value)
        threading.Thread(target=_note, args=(server, asked), daemon=True).start()
        yield asked
        server.shutdown(socket.SHUT_RDWR)


def _note(server: socket.socket, asked: list[str]) -> None:
    while True:
        try:
            connection, place = server.accept()
        except OSError:
            return
        asked.append(str(place))
        connection.close()


def cases() -> Iterator[tuple[str, list[str]]]:
    """Yield the invalid value and the command."""
    for master in MASTERS:
        for command in (["replay", SHOP, "--yes"], ["verify", SHOP], ["verify", SHOP, SHOP],
                        ["recording", "seal", SHOP]):  # fmt: skip
            yield "--spark-master", [*command, "--spark-master", master]
    for prefix in PREFIXES:
        for command in (["replay", SHOP], ["connect", "--headless"], ["verify", "--database"],
                        ["record", "-o", "r"], ["schema", "check"]):  # fmt: skip
            yield "can't be part of a topic's name", [*command, "--topic-prefix", prefix]
    for place in PLACES:
        what = place and (
            f"{place} contains files that are not part of a recording"
            if place == "full"
            else "can't be written"
        )
        for command in (["demo", "--headless", "--record"], ["connect", "--headless", "--record"],
                        ["record", "-o"]):  # fmt: skip
            yield what, [*command, place]
    for folder in ("nope", "file"):
        yield folder, ["verify", SHOP, "--work-folder", folder]
    for only in ("nope.json", "file"):
        yield only, ["replay", SHOP, "--only-missing", only]
    yield "leave out --topic-prefix", ["replay", SHOP, "--only-missing", "file", "--topic-prefix", "x"]


@pytest.mark.parametrize(
    ("what", "command"), [*cases()], ids=lambda one: " ".join(one)[-40:] if isinstance(one, list) else ""
)
def test_what_is_wrong_is_said_before_anything_is_touched(
    what: str, command: list[str], asked: list[str], tmp_path: Path
) -> None:
    ran = CliRunner().invoke(cli, command, prog_name="bwtui")
    lines = ran.stderr.splitlines()
    assert ran.exit_code == 2, ran.stderr
    assert [line for line in lines if not line.startswith("bwtui: ") or "error" in line] == lines[-2:]
    assert lines[-2].startswith("bwtui: error: ") and lines[-1].startswith("hint: ")
    assert what in " ".join(lines[-2:])
    assert asked == []
    assert sorted(one.name for one in tmp_path.iterdir() if one.name != "state") == ["file", "full"]
    assert not [one for one in (tmp_path / "state").rglob("*") if one.name.endswith(".bwj")]
