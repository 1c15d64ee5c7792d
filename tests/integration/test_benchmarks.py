"""Every benchmark still runs: with 1,000 rows, which do not test its figures."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg2
import pytest
from confluent_kafka.admin import AdminClient

from bwtui.sandbox.sandbox import Sandbox, ServiceAddresses
from tests.fix_sandbox import drop_database

pytestmark = pytest.mark.services

_FOLDER = Path(__file__).parents[2] / "benchmarks"
_ALONE = ("encode", "hot_path")
#: Options of each benchmark for a small run on services.
_ON_SERVICES = {
    "relay": ["--rows", "1000", "--pairs", "1", "--with-ui"],
    "seal": ["--changes", "1000"],
    "replay": ["--messages", "1000", "--runs", "1"],
    "verify": ["--messages", "1000", "--runs", "1"],
    "compare": ["--rows", "1000", "--differences", "9", "--runs", "1"],
    "kafka_spark": ["--messages", "1000", "--runs", "1"],
    "bounds": ["--transaction", "1000", "--protocols", "1000"],
    "first_snapshot": ["--rows", "1000", "--pairs", "1"],
    "screens": ["--minutes", "0.02", "--seconds", "1", "--rounds", "1", "--starts", "1", "--keys", "12"],
}
#: The benchmarks that start Spark or terminals repeatedly.
_LONG = ("relay", "seal", "replay", "verify", "compare", "kafka_spark", "screens")


@pytest.fixture
def cleaned(services: ServiceAddresses) -> Iterator[None]:
    """Remove what a benchmark leaves in services that it did not start."""
    admin = AdminClient({"bootstrap.servers": services.broker})
    before = set(admin.list_topics(timeout=30).topics)
    yield
    made = [topic for topic in admin.list_topics(timeout=30).topics if topic not in before]
    for deleted in admin.delete_topics(made).values() if made else ():
        deleted.result(60)
    with closing(psycopg2.connect(services.postgres)) as connection:
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute("select from pg_database where datname = 'bench'")
            if cursor.fetchone() is not None:
                drop_database(connection, "bench")


def run(*command: str) -> str:
    """Run a benchmark as its docstring says.

    Check that every line of output is its own, and return the lines.
    """
    ran = subprocess.run(
        [sys.executable, *command], cwd=_FOLDER.parent, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert "Traceback" not in ran.stderr
    return ran.stdout


def test_every_benchmark_is_run() -> None:
    mains = {path.stem for path in _FOLDER.glob("*.py") if "__main__" in path.read_text()}
    assert mains == {*_ALONE, *_ON_SERVICES}


@pytest.mark.parametrize("name", _ALONE)
def test_a_benchmark_without_services(name: str) -> None:
    told = run("-m", f"benchmarks.{name}", "1000").splitlines()
    assert told
    assert all(any(character.isdigit() for character in line) for line in told)


@pytest.mark.usefixtures("cleaned")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long if name in _LONG else ()) for name in _ON_SERVICES]
)
@pytest.mark.variants(1)
def test_a_benchmark_on_services(name: str, sandbox: Sandbox) -> None:
    told = run(f"benchmarks/{name}.py", "--sandbox", str(sandbox.folder), *_ON_SERVICES[name])
    assert json.loads(told.splitlines()[-1])
