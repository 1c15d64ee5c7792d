"""Spark's Java process, started directly rather than by Spark's scripts, so that bwtui can end it.

It runs in its own session, so that a terminal's Ctrl-C does not reach it. It exits when its standard input, a
pipe from this process, is closed: however this process ends, Java does not stay. Its output goes to a file.
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
#: Seconds to wait for a process that was asked to end, before it is killed.
_END_SECONDS = 10.0

#: Packages that Spark accesses by reflection; its own launcher passes the same.
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
        """Return the process's exit status, or None while it runs."""
        return self.process.poll()

    def close(self) -> None:
        """Ask the process to exit; kill it if it does not."""
        with contextlib.suppress(Exception):
            self.gateway.shutdown()
        self._let_go()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._archive.keep(self.process.wait(_END_SECONDS + self._archive.exit_seconds))
        self.kill()

    @property
    def exit_leaves_something(self) -> bool:
        """Return whether the process writes the archive of Spark's classes during a regular exit."""
        return self._archive.exit_seconds > 0

    def kill(self, *, at_once: bool = False) -> None:
        """End the process now. Its Python workers end with it, since they read from it."""
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
                raise BwtuiError(
                    message, "check JAVA_HOME, the free memory, and that a port of 127.0.0.1 is free"
                )
            time.sleep(_POLL_SECONDS)
        with self._place.open("rb") as place:
            port = read_int(place)
            secret = UTF8Deserializer().loads(place)
        self._place.unlink()
        # With these variables, launch_gateway only connects.
        with environment(PYSPARK_GATEWAY_PORT=str(port), PYSPARK_GATEWAY_SECRET=secret):
            return launch_gateway()

    def _last_words(self) -> str:
        lines = [line.strip() for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        errors = [line for line in lines if "Error" in line or "Exception" in line]
        return (errors or lines or ["it printed nothing"])[0]


def class_path() -> str:
    """Return Spark's class path in the order of Spark's own launcher."""
    first = sorted((_HOME / "jars").glob("slf4j-api-*.jar"))
    configured = os.environ.get("SPARK_CONF_DIR")
    return ":".join([*([configured] if configured else []), *map(str, first), f"{_HOME}/jars/*"])


def java_options() -> list[str]:
    """Return the options that Spark requires on a modern Java."""
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
    """Return this process's environment with the right SPARK_HOME for the session."""
    environment = {name: value for name, value in os.environ.items() if name != "SPARK_HOME"}
    if sys.flags.ignore_environment:
        # Workers do not inherit this interpreter's flags, but must find the same packages.
        environment.pop("PYTHONPATH", None)
    # Spark starts workers with -m, so a random.py in the current folder would shadow Python's own.
    environment["PYTHONSAFEPATH"] = "1"
    # With a SPARK_HOME, local tasks import PySpark from its zip archive, which has no compiled files: the
    # first job takes 0.8 s longer. Without it, they import it from this interpreter's packages. YARN needs
    # SPARK_HOME to send its contents.
    return environment if master.startswith("local") else environment | {"SPARK_HOME": str(_HOME)}


def _command(java: list[str], folder: Path, memory: str, settings: Sequence[tuple[str, str]]) -> list[str]:
    return [
        *java,
        f"-Xmx{memory}",
        # The collector with the least overhead for a small heap: it starts a second sooner than with G1.
        "-XX:+UseParallelGC",
        # Rows stay in the tasks' Python, and Java only distributes tasks for some seconds: its optimizing
        # compiler would cost as much CPU as everything else in Java, and take it from the tasks.
        "-XX:TieredStopAtLevel=1",
        # Do not write performance counters to a file, which would remain if the process is killed.
        "-XX:-UsePerfData",
        f"-Djava.io.tmpdir={folder}",
        f"-Dlog4j2.configurationFile={(folder / 'log4j2.properties').as_uri()}",
        *java_options(),
        *("-cp", class_path(), "org.apache.spark.deploy.SparkSubmit"),
        *(part for name, value in settings for part in ("--conf", f"{name}={value}")),
        "pyspark-shell",
    ]
