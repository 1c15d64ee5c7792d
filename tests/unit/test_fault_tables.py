"""Every test in the tables of docs/ exists, and Bottled Water's flags are accepted."""

import re
from pathlib import Path

import pytest

from bwtui.cli.connect import connect
from bwtui.settings import RelaySettings
from tests.consumers.snippets import snippets

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("page", ["faults.md", "bottledwater.md", "consumers.md"])
def test_each_named_test_is_there(page: str) -> None:
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs" / page).read_text()))
    there = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"def (test_\w+)", path.read_text())
    }
    assert named
    assert named <= there, named - there


def test_each_line_on_bottled_water_names_a_test() -> None:
    lines = (ROOT / "docs" / "bottledwater.md").read_text().splitlines()
    rows = [
        line for line in lines if line.startswith("|") and not line.startswith(("|---", "| Bottled Water |"))
    ]
    assert len(rows) > 8
    assert [row for row in rows if "`test_" not in row] == []


def test_each_consumer_has_a_test_and_each_snippet_is_run() -> None:
    page = (ROOT / "docs" / "consumers.md").read_text()
    first = page.partition("| Consumer |")[2].partition("\n\n")[0].splitlines()[2:]
    assert len(first) >= 6
    assert [row for row in first if "`test_" not in row] == []
    tests = "".join(path.read_text() for path in (ROOT / "tests" / "consumers").glob("*.py"))
    named = snippets()
    assert len(named) >= 8
    assert [name for name in named if f'"{name}"' not in tests] == []


#: Bottled Water's flags from its usage text, with their defaults.
FLAGS = {
    ("-d", "--postgres"): None,
    ("-s", "--slot"): "bottledwater",
    ("-b", "--broker"): "localhost:9092",
    ("-r", "--schema-registry"): "http://localhost:8081",
    ("-f", "--output-format"): "avro",
    ("-u", "--allow-unkeyed"): False,
    ("-p", "--topic-prefix"): "",
    ("-e", "--on-error"): "exit",
    ("-x", "--skip-snapshot"): False,
    ("-C", "--kafka-config"): None,
    ("-T", "--topic-config"): None,
    ("--config-help",): None,
}


def test_each_flag_of_bottled_water_is_taken() -> None:
    page = (ROOT / "docs" / "bottledwater.md").read_text()
    taken = {tuple(parameter.opts): parameter for parameter in connect.params}
    for flag, default in FLAGS.items():
        assert flag in taken
        assert flag[-1] in page
        if default is not None:
            assert getattr(RelaySettings(), flag[-1][2:].replace("-", "_")) == default
    switches = ("-u", "-x")
    assert all(
        getattr(taken[flag], "is_flag", False) == (flag[0] in switches) for flag in FLAGS if len(flag) > 1
    )
