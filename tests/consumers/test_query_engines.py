"""Spark, DuckDB and kcat read every record of the topics, as the tables have it."""

import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.consumers.conftest import Topics
from tests.consumers.jars import SPARK, maven_jars
from tests.consumers.programs import check, said, written
from tests.debian import unpacked

pytestmark = [pytest.mark.services, pytest.mark.long]

#: Spark would choose its own listening address, and its second compiler would take most of the CPU time.
_SPARK = {"SPARK_LOCAL_IP": "127.0.0.1", "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1"}
#: Timeout of Spark, in seconds, on two busy cores.
_SPARK_SECONDS = 900.0
_BIN = f"{Path(sys.executable).parent}:{os.environ['PATH']}"


def test_duckdb(topics: Topics, tmp_path: Path) -> None:
    check(said([sys.executable, str(written(tmp_path, "on_duckdb.py", topics))], tmp_path), topics)


@pytest.mark.timeout(_SPARK_SECONDS + 120)
def test_spark(topics: Topics, tmp_path: Path) -> None:
    jars = ",".join(map(str, maven_jars("spark", SPARK)))
    submit = [str(Path(sys.executable).parent / "spark-submit"), "--master", "local[1]", "--jars", jars]
    quiet = ["--conf", "spark.ui.enabled=false", "--conf", "spark.log.level=ERROR"]
    program = str(written(tmp_path, "on_spark.py", topics))
    check(said([*submit, *quiet, program], tmp_path, {**_SPARK, "PATH": _BIN}, _SPARK_SECONDS), topics)


def kcat() -> dict[str, str]:
    """Return an environment with kcat: this machine's, or Debian's."""
    if shutil.which("kcat") is not None:
        return {"PATH": _BIN}
    programs = unpacked("kcat", "librdkafka1", "libyajl2", "libsasl2-2")
    (library,) = programs.glob("usr/lib/*/librdkafka.so.1")
    return {"PATH": f"{programs / 'usr' / 'bin'}:{_BIN}", "LD_LIBRARY_PATH": str(library.parent)}


def test_kcat(topics: Topics, tmp_path: Path) -> None:
    """kcat passes keys and values on unchanged."""
    written(tmp_path, "decode.py", topics)
    check(said(["sh", "-e", str(written(tmp_path, "read.sh", topics))], tmp_path, kcat()), topics)
