"""The programs of docs/consumers.md read every record of topics with all types, as the tables have it."""

import sys
from pathlib import Path

import pytest

from tests.consumers.conftest import Topics
from tests.consumers.jars import filled
from tests.consumers.programs import check, said, schema_files, written

pytestmark = pytest.mark.services

#: Timeout of Rust's compiler for all of librdkafka, in seconds, on two busy cores.
_COMPILER_SECONDS = 1_800.0


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
def test_go_with_classes(topics: Topics, tmp_path: Path) -> None:
    """A command of the page makes avrogen generate structs for the schemas of all topics.

    They compile together.
    """
    schema_files(tmp_path, topics)
    for name in ("go.mod", "typed.go"):
        written(tmp_path, name, topics)
    said(["sh", "-e", str(written(tmp_path, "generate.sh", topics))], tmp_path)
    said(["go", "mod", "tidy"], tmp_path)
    check(said(["go", "run", "."], tmp_path), topics)


@pytest.mark.long
@pytest.mark.timeout(_COMPILER_SECONDS + 120)
def test_rust(topics: Topics, tmp_path: Path) -> None:
    for name in ("Cargo.toml", "consume.rs"):
        written(tmp_path, name, topics)
    # The build includes librdkafka: it is compiled once, and not at every run.
    with filled("rust") as (folder, _):
        build = ["cargo", "build", "--quiet", "--target-dir", str(folder)]
        said(build, tmp_path, {"CARGO_PROFILE_DEV_DEBUG": "0"}, _COMPILER_SECONDS)
        lines = said([str(folder / "debug" / "consume")], tmp_path)
    check(lines, topics)


@pytest.mark.long
def test_node(gzip_topics: Topics, tmp_path: Path) -> None:
    for name in ("package.json", "consume.js"):
        written(tmp_path, name, gzip_topics)
    said(["npm", "install", "--no-audit", "--no-fund", "--silent"], tmp_path)
    check(said(["node", "consume.js"], tmp_path), gzip_topics)
