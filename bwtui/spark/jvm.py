"""Spark's Java process: started by us, not by Spark's scripts, so that it is ours to end.

It runs in a session of its own, so a terminal's Ctrl-C reaches only us. It ends with its standard input,
which is a pipe from us: however we end, it does not stay. What it writes goes into a file.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pyspark
from py4j.java_gateway import JavaGateway
from pyspark.java_gateway import launch_gateway
from pyspark.serializers import UTF8Deserializer, read_int

from bwtui.errors import BwtuiError
from bwtui.spark.environment import environment
from bwtui.spark.java import class_archive

_HOME = Path(pyspark.__file__).parent
_START_SECONDS = 120.0
_POLL_SECONDS = 0.01
#: Seconds until a process that was asked to end is killed.
_END_SECONDS = 10.0

#: Packages that Spark reaches into by reflection; its launcher would pass the same.
_OPEN = (
    *(f"java.base/java.{name}" for name in ("lang", "lang.invoke", "lang.reflect", "io", "net", "nio")),
    *(f"java.base/java.util{name}" for name in ("", ".concurrent", ".concurrent.atomic")),
    "java.base/jdk.internal.ref",
    *(f"java.base/sun.{name}" for name in ("nio.ch", "nio.cs", "security.action", "util.calendar")),
    "java.security.jgss/sun.security.krb5",
)
_LOG4J = """status = fatal
rootLogger.level = error
rootLogger.appenderRef.file.ref = file
appender.file.type = Console
appender.file.name = file
appender.file.target = SYSTEM_ERR
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
"""


class Jvm:
    """One Java process with Spark's gateway in it."""

    def __init__(
        self, java: Path, folder: Path, memory: str, settings: Sequence[tuple[str, str]], *, loopback: bool
    ) -> None:
        """Start it and wait until it listens. Raises BwtuiError when it does not start."""
        self._archive = class_archive(java)
        self.log = folder / "spark.log"
        self._place = folder / "gateway"
        (folder / "log4j2.properties").write_text(_LOG4J)
        extra = {"SPARK_CONNECT_MODE": "0", "_PYSPARK_DRIVER_CONN_INFO_PATH": str(self._place)}
        extra |= {"SPARK_LOCAL_IP": "127.0.0.1"} if loopback else {}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                _command([str(java), *self._archive.options()], folder, memory, settings),
                env=_environment(dict(settings)["spark.master"]) | extra,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            self.gateway: JavaGateway = self._connect()
        except BaseException:
            self.kill()
            raise

    def ended(self) -> int | None:
        """Return how the process ended by itself, or None while it runs."""
        return self.process.poll()

    def close(self) -> None:
        """Let the process end by itself; kill it if it does not."""
        with contextlib.suppress(Exception):
            self.gateway.shutdown()
        self._let_go()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._archive.keep(self.process.wait(_END_SECONDS + self._archive.exit_seconds))
        self.kill()

    @property
    def exit_leaves_something(self) -> bool:
        """Whether the process makes the archive of Spark's classes as it exits by itself."""
        return self._archive.exit_seconds > 0

    def kill(self, *, at_once: bool = False) -> None:
        """End the process now. Its Python workers end with it: they read from it."""
        if at_once:
            self.process.kill()
        self._let_go()
        self._archive.forget()
        for signal_number in (signal.SIGTERM, signal.SIGKILL):
            if self.process.poll() is not None:
                return
            self.process.send_signal(signal_number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(_END_SECONDS)

    def _let_go(self) -> None:
        if self.process.stdin is not None:
            with contextlib.suppress(OSError):
                self.process.stdin.close()

    def _connect(self) -> JavaGateway:
        deadline = time.monotonic() + _START_SECONDS
        while not self._place.exists():
            if self.ended() is not None or time.monotonic() > deadline:
                message = f"Spark's Java process did not start: {self._last_words()}"
                raise BwtuiError(message, "check JAVA_HOME, and that memory and a port of 127.0.0.1 are free")
            time.sleep(_POLL_SECONDS)
        with self._place.open("rb") as place:
            port = read_int(place)
            secret = UTF8Deserializer().loads(place)
        self._place.unlink()
        # launch_gateway then only connects.
        with environment(PYSPARK_GATEWAY_PORT=str(port), PYSPARK_GATEWAY_SECRET=secret):
            return launch_gateway()

    def _last_words(self) -> str:
        lines = [line.strip() for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        errors = [line for line in lines if "Error" in line or "Exception" in line]
        return (errors or lines or ["it said nothing"])[0]


def class_path() -> str:
    """Return Spark's class path, in the order that Spark's own launcher gives it."""
    first = sorted((_HOME / "jars").glob("slf4j-api-*.jar"))
    configured = os.environ.get("SPARK_CONF_DIR")
    return ":".join([*([configured] if configured else []), *map(str, first), f"{_HOME}/jars/*"])


def java_options() -> list[str]:
    """Return the options without which Spark does not run on a modern Java."""
    return [
        "-XX:+IgnoreUnrecognizedVMOptions",
        "--add-modules=jdk.incubator.vector",
        *(f"--add-opens={package}=ALL-UNNAMED" for package in _OPEN),
        "--sun-misc-unsafe-memory-access=allow",
        "--enable-native-access=ALL-UNNAMED",
        "-Dio.netty.tryReflectionSetAccessible=true",
        "-Dio.netty.allocator.type=pooled",
    ]


def _environment(master: str) -> dict[str, str]:
    """Return our environment with the SPARK_HOME that the session needs, and nobody else's."""
    kept = {name: value for name, value in os.environ.items() if name != "SPARK_HOME"}
    if sys.flags.ignore_environment:
        # The workers do not have the flags of our interpreter, and must find the same packages.
        kept.pop("PYTHONPATH", None)
    # Spark starts the workers with -m: a random.py in the user's folder would be run for Python's.
    kept["PYTHONSAFEPATH"] = "1"
    # With a SPARK_HOME, local tasks import PySpark from the archive in it, which has no compiled files: the
    # first job takes 0.8 s more. Without, from where our own interpreter has it. YARN sends what is in it.
    return kept if master.startswith("local") else kept | {"SPARK_HOME": str(_HOME)}


def _command(java: list[str], folder: Path, memory: str, settings: Sequence[tuple[str, str]]) -> list[str]:
    return [
        *java,
        f"-Xmx{memory}",
        # Of the collectors the one with the least work for a small heap: it starts a second sooner than G1.
        "-XX:+UseParallelGC",
        # Rows stay in the tasks' Python, and Java only hands out tasks for some seconds: its second compiler
        # costs as much CPU as all else that Java does, and takes it from the tasks.
        "-XX:TieredStopAtLevel=1",
        # Figures for others to read, in a file that would stay when the process is killed.
        "-XX:-UsePerfData",
        f"-Djava.io.tmpdir={folder}",
        f"-Dlog4j2.configurationFile={(folder / 'log4j2.properties').as_uri()}",
        *java_options(),
        *("-cp", class_path(), "org.apache.spark.deploy.SparkSubmit"),
        *(part for name, value in settings for part in ("--conf", f"{name}={value}")),
        "pyspark-shell",
    ]
