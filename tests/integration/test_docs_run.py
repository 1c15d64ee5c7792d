"""What the task pages tell to type, typed: each command of these blocks ends with 0, on real services."""

import os
import re
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bwtui.sandbox.supervisor import Services
from tests.command_lines import blocks
from tests.database import session

DOCS = Path(__file__).parents[2] / "docs"
pytestmark = pytest.mark.long
#: The places that the pages give to a reader's own services.
THEIRS = '-d "host=db dbname=shop user=cdc"', "-b kafka:9092", "-r http://registry:8081", "-p new"


class Shell:
    """Runs the lines of a block, as somebody who has pasted them."""

    def __init__(self, services: Services, database: str, folder: Path) -> None:
        self.database = database
        #: Topics are this test's own, whatever others have left in Kafka.
        self.prefix = f"docs_{secrets.token_hex(4)}"
        self._folder = folder
        self._environment = {k: v for k, v in os.environ.items() if not k.startswith(("BWTUI_", "PG"))} | {
            "BWTUI_POSTGRES": database,
            "BWTUI_BROKER": services.broker,
            "BWTUI_SCHEMA_REGISTRY": services.schema_registry,
            "BWTUI_TOPIC_PREFIX": self.prefix,
            "BWTUI_STATE_HOME": str(folder / "state"),
            "XDG_CONFIG_HOME": str(folder),
        }

    def run(self, line: str) -> str:
        """Run one line; the test fails if it ends on another code than 0."""
        for theirs in THEIRS:
            line = line.replace(theirs, "")
        if line.startswith("psql"):
            # It comes with PostgreSQL, which nothing here needs on this machine.
            match = re.search(r'-c "(.*)"$', line)
            assert match is not None
            with session(self.database) as connection:
                connection.run(match[1])
            return ""
        if line.startswith("bwtui slots drop"):
            # On a terminal it asks for the slot's name.
            line += " --yes"
        command = re.sub(r"^bwtui\b", f"{sys.executable} -m bwtui", line.replace("…", "-s shop"))
        # A relay in the background must not hold what is read here.
        with (self._folder / "out").open("wb") as out:
            ran = subprocess.run(
                ["/bin/sh", "-c", command],
                check=False,
                cwd=self._folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                timeout=200,
            )
        said = (self._folder / "out").read_text()
        assert ran.returncode == 0, f"{line}: exit code {ran.returncode}\n{said}"
        return said


@pytest.fixture
def shell(services: Services, database: str, tmp_path: Path) -> Iterator[Shell]:
    """A shell whose relay ends with the test."""
    shell = Shell(services, database, tmp_path)
    yield shell
    state = tmp_path / "state"
    if (state / "shop" / "engine.sock").exists():
        shell.run("bwtui stop shop")


def lines(page: str, heading: str = "") -> list[str]:
    """Return the lines of all blocks of a page, or of what stands below one of its headings."""
    text = (DOCS / page).read_text()
    if heading:
        text = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return [line for block in blocks(text) for line in block]


def test_five_minutes(shell: Shell) -> None:
    told = {line: shell.run(line) for line in lines("index.md", "Five minutes") if " sandbox " not in line}
    assert len(told) > 8
    assert "clean: 1 rows in the tables" in told["bwtui verify --database --relay shop"]
    assert "streaming" in told["bwtui status shop"]
    assert '"state":"new"' in told["bwtui recording export ./shop --format jsonl"].replace(" ", "")


def test_heal(shell: Shell) -> None:
    shell.run('psql -c "create table orders (id int primary key); insert into orders values (1), (2)"')
    given = lines("heal.md")
    # The relay of the page: in the background, with --heal.
    [begin] = [line for line in given if line.startswith("bwtui connect")]
    shell.run(begin)
    told = {line: shell.run(line) for line in given if line != begin}
    assert len(told) > 7
    assert "clean" in told["bwtui verify --database --relay shop"]


def test_moving_from_debezium(shell: Shell) -> None:
    shell.run('psql -c "create table orders (id int primary key); insert into orders values (1)"')
    shell.run("psql -c \"select pg_create_logical_replication_slot('debezium', 'pgoutput')\"")
    told = {line: shell.run(line) for line in lines("debezium.md")}
    assert len(told) == 5
    [listed] = [text for line, text in told.items() if line.startswith("bwtui slots list")]
    assert "debezium" in listed
    assert "shop" in listed
