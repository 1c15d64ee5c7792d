"""Man pages and completions in packaging/share match the program, and are valid roff."""

import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from bwtui.cli.main import COMMANDS, cli

SHARE = Path(__file__).parents[2] / "packaging" / "share"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Output of make man, by path. It runs in a separate process because click caches its first lookups."""
    folder = tmp_path_factory.mktemp("share")
    subprocess.run([sys.executable, "-m", "bwtui.cli.man_pages", folder], check=True, timeout=120)
    return texts(folder)


def texts(folder: Path) -> dict[str, str]:
    """Return the files of a folder by their relative paths."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_text(encoding="ascii") for path in files}


def test_what_is_installed_is_what_the_program_says(made: dict[str, str]) -> None:
    there = texts(SHARE)
    assert sorted(there) == sorted(made), "make man"
    assert [name for name, text in made.items() if there[name] != text] == [], "make man"


def test_every_command_and_every_option_has_its_place(made: dict[str, str]) -> None:
    made = {name.removeprefix("man/man1/"): text for name, text in made.items() if name.endswith(".1")}
    assert {f"bwtui-{name}.1" for name in COMMANDS} | {"bwtui.1"} <= set(made)
    context = click.Context(cli, info_name="bwtui")
    connect = cli.get_command(context, "connect")
    assert connect is not None
    for parameter in connect.params:
        if isinstance(parameter, click.Option) and not parameter.hidden:
            assert parameter.opts[-1].replace("-", r"\-") in made["bwtui-connect.1"], parameter.name
    # Every referenced page exists.
    for name, text in made.items():
        for other in re.findall(r"\\fB(\S+)\\fR\(1\)", text):
            assert other.replace(r"\-", "-") + ".1" in made, name


def test_examples_keep_their_lines_and_can_be_copied(made: dict[str, str]) -> None:
    page = made["man/man1/bwtui-connect.1"]
    examples = page.partition(".SH EXAMPLES")[2]
    assert r'bwtui connect \-d "host=db dbname=shop user=cdc"          with the screens' in examples
    assert "--" not in page.replace(r"\-", "")
    assert r"(orders|items)\(aq" in examples
    assert not [line for line in page.splitlines() if line.startswith("'")]


@pytest.mark.long
def test_man_itself_has_nothing_to_say() -> None:
    for page in sorted((SHARE / "man" / "man1").glob("*.1")):
        # This also warns about lines that are too long for the page.
        command = ["groff", "-man", "-Tutf8", "-ww", "-z", "-rLL=100n", str(page)]
        ran = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
        assert ran.stderr == "", page.name
