"""Java's clients, with classes that avro-tools makes: they read every record, as the tables have it."""

from pathlib import Path

import pytest

from tests.consumers.conftest import Topics
from tests.consumers.jars import APICURIO, AVRO_TOOLS, STREAMS, confluent_jars, maven_jars
from tests.consumers.programs import check, said, schema_files, written

pytestmark = [pytest.mark.services, pytest.mark.long]

#: Of the little that they do Java's second compiler takes more CPU than all else.
_JAVA = ("java", "-XX:TieredStopAtLevel=1")


def lines_of(program: str, jars: list[Path], topics: Topics, folder: Path) -> list[str]:
    """Return what a program of the page prints, which is compiled with the classes of all topics."""
    tools = ":".join(map(str, maven_jars("avro-tools", AVRO_TOOLS)))
    generate = [*_JAVA, "-cp", tools, "org.apache.avro.tool.Main", "compile", "-bigDecimal", "-string"]
    said([*generate, "schema", *schema_files(folder, topics), "."], folder)
    written(folder, program, topics)
    sources = [str(path) for path in folder.rglob("*.java")]
    assert len(sources) == 5
    path = ":".join(map(str, jars))
    said(["javac", "-cp", path, "-d", "classes", *sources], folder)
    return said([*_JAVA, "-cp", f"{path}:classes", Path(program).stem], folder)


def test_java(topics: Topics, tmp_path: Path) -> None:
    """Classes that avro-tools makes of the schemas of all topics compile together."""
    check(lines_of("Consume.java", confluent_jars(), topics, tmp_path), topics)


def test_streams(topics: Topics, tmp_path: Path) -> None:
    jars = [*confluent_jars(), *maven_jars("streams", STREAMS)]
    check(lines_of("Table.java", jars, topics, tmp_path), topics)


def test_apicurio(topics: Topics, tmp_path: Path) -> None:
    """The tests' registry is Apicurio's: the relay speaks Confluent's API with it, this program its own."""
    check(lines_of("ConsumeApicurio.java", maven_jars("apicurio", APICURIO), topics, tmp_path), topics)
