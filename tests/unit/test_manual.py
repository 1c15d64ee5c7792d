"""Man pages and completions in packaging/share: they say what the program says, and roff that is right."""

import re
import subprocess
from pathlib import Path

import click
import pytest

from bwtui.cli.main import COMMANDS, cli
from bwtui.cli.output.manual import pages, shared

SHARE = Path(__file__).parents[2] / "packaging" / "share"


def test_what_is_installed_is_what_the_program_says() -> None:
    there = {path.relative_to(SHARE).as_posix(): path for path in SHARE.rglob("*") if path.is_file()}
    made = shared()
    assert sorted(there) == sorted(made), "make man"
    for name, text in made.items():
        assert there[name].read_text(encoding="ascii") == text, f"{name}: make man"


def test_every_command_and_every_option_has_its_place() -> None:
    made = pages()
    assert {f"bwtui-{name}.1" for name in COMMANDS} | {"bwtui.1"} <= set(made)
    context = click.Context(cli, info_name="bwtui")
    connect = cli.get_command(context, "connect")
    assert connect is not None
    for parameter in connect.params:
        if isinstance(parameter, click.Option) and not parameter.hidden:
            assert parameter.opts[-1].replace("-", r"\-") in made["bwtui-connect.1"], parameter.name
    # A page that is named is there.
    for name, text in made.items():
        for other in re.findall(r"\\fB(\S+)\\fR\(1\)", text):
            assert other.replace(r"\-", "-") + ".1" in made, name


def test_examples_keep_their_lines_and_can_be_copied() -> None:
    page = pages()["bwtui-connect.1"]
    examples = page.partition(".SH EXAMPLES")[2]
    assert r'bwtui connect \-d "host=db dbname=shop user=cdc"          with the screens' in examples
    assert "--" not in page.replace(r"\-", "")
    assert r"(orders|items)\(aq" in examples
    assert not [line for line in page.splitlines() if line.startswith("'")]


@pytest.mark.long
def test_man_itself_has_nothing_to_say() -> None:
    for page in sorted((SHARE / "man" / "man1").glob("*.1")):
        # Of a line that is too long for the page, too.
        command = ["groff", "-man", "-Tutf8", "-ww", "-z", "-rLL=100n", str(page)]
        ran = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
        assert ran.stderr == "", page.name
