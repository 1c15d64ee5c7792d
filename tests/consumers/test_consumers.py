"""The programs of docs/consumers.md read every record of topics with all types, as the tables have it."""

import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient

from tests.consumers.conftest import Topics
from tests.consumers.jars import AVRO_TOOLS, confluent_jars, maven_jars
from tests.consumers.snippets import snippet

pytestmark = pytest.mark.services

#: So long a program may take: compilers and package registries are slow on a busy machine.
_SECONDS = 300.0


def written(folder: Path, name: str, topics: Topics) -> Path:
    """Write a program of the page, which reads the topics of the test."""
    path = folder / name
    path.write_text(snippet(name, topics.given))
    return path


def said(command: list[str], folder: Path) -> list[str]:
    """Return the lines that a command prints; it must end well, and soon enough."""
    ended = subprocess.run(
        command, check=False, cwd=folder, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=_SECONDS,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-4000:] + ended.stdout[-2000:]
    return ended.stdout.splitlines()


def check(lines: list[str], topics: Topics) -> None:
    """See that the lines of a program are all records, the latest of each key as in the table.

    A line is topic, id, name, price and time with blanks between, or topic, id and "deleted".
    """
    counts = dict.fromkeys(topics.counts, 0)
    latest: dict[str, list[str]] = {}
    for line in lines:
        topic, key, *rest = line.removeprefix(f"{topics.prefix}.").split("\t")
        counts[topic] += 1
        if topic == "orders":
            latest[key] = rest
    assert counts == topics.counts
    there = {key: rest for key, rest in latest.items() if rest != ["deleted"]}
    assert there == {key: [name or "-", price, at] for key, name, price, at in topics.orders}


def test_python(topics: Topics, tmp_path: Path) -> None:
    check(said([sys.executable, str(written(tmp_path, "consume.py", topics))], tmp_path), topics)


@pytest.mark.long
def test_go(topics: Topics, tmp_path: Path) -> None:
    for name in ("go.mod", "consume.go"):
        written(tmp_path, name, topics)
    said(["go", "mod", "tidy"], tmp_path)
    lines = said(["go", "run", "."], tmp_path)
    for library in ("hamba", "goavro"):
        check([line.partition("\t")[2] for line in lines if line.startswith(library)], topics)


@pytest.mark.long
def test_node(gzip_topics: Topics, tmp_path: Path) -> None:
    for name in ("package.json", "consume.js"):
        written(tmp_path, name, gzip_topics)
    said(["npm", "install", "--no-audit", "--no-fund", "--silent"], tmp_path)
    check(said(["node", "consume.js"], tmp_path), gzip_topics)


@pytest.mark.long
def test_java(topics: Topics, tmp_path: Path) -> None:
    """Classes that avro-tools makes of the schemas of all topics compile together."""
    schemas = []
    with closing(SchemaRegistryClient({"url": topics.services.schema_registry})) as registry:
        for name in (f"{table}-{part}" for table in topics.counts for part in ("key", "value")):
            newest = registry.get_latest_version(f"{topics.prefix}.{name}").schema.schema_str
            schemas.append(tmp_path / f"{name}.avsc")
            schemas[-1].write_text(newest or "")
    jars = ":".join(map(str, confluent_jars()))
    tools = ":".join(map(str, maven_jars("avro-tools", AVRO_TOOLS)))
    generate = [
        "java",
        "-cp",
        tools,
        "org.apache.avro.tool.Main",
        "compile",
        "-bigDecimal",
        "-string",
        "schema",
    ]
    said([*generate, *map(str, schemas), "."], tmp_path)
    written(tmp_path, "Consume.java", topics)
    sources = [str(path) for path in tmp_path.rglob("*.java")]
    assert len(sources) == 5
    said(["javac", "-cp", jars, "-d", "classes", *sources], tmp_path)
    check(said(["java", "-cp", f"{jars}:classes", "Consume"], tmp_path), topics)
