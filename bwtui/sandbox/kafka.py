"""One Kafka broker in KRaft mode, which is its own controller, on loopback."""

import contextlib
import logging
import os
import re
import socket
from pathlib import Path

from bwtui.errors import UsageError
from bwtui.packages.artifacts import ArtifactStore
from bwtui.packages.java import java_binary
from bwtui.sandbox.layout import Layout, Memory
from bwtui.sandbox.ports import LOOPBACK
from bwtui.sandbox.service import Command, Death, Service

NAME = "kafka"
GROUP = "kafka"
PORTS = ("kafka", "kafka_controller")

# The defaults suppose three brokers or more; a group also would wait three seconds for further members.
SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "inter.broker.listener.name": "PLAINTEXT",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "4",
    "group.initial.rebalance.delay.ms": "0",
    # A broker that was killed may come back only when the controller has given it up: by default after 9 s.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "auto.create.topics.enable": "true",
    "num.partitions": "3",
}

#: Enough for some thousand partitions, of each of which the broker keeps something.
HEAP_MB = 512
_HEAP = "BWTUI_SANDBOX_KAFKA_HEAP"
JVM = ("-XX:+UseSerialGC", "-XX:+ExitOnOutOfMemoryError", "-Djava.awt.headless=true")

_LOGGING = """
status = error
rootLogger.level = warn
rootLogger.appenderRef.out.ref = out
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d %p %m (%c)%n
"""


def heap_mb() -> int:
    """Return the size of the broker's heap in MiB: BWTUI_SANDBOX_KAFKA_HEAP, or 512. Raises UsageError."""
    given = os.environ.get(_HEAP)
    if not given:
        return HEAP_MB
    match = re.fullmatch(r"([1-9]\d*)([mg])", given.lower())
    if match is None:
        raise UsageError(
            f"{_HEAP} is {given!r}, which is no size of a heap", f"say it as Java does: {_HEAP}=1g"
        )
    return int(match[1]) * (1024 if match[2] == "g" else 1)


def explain(log: str) -> Death | None:
    """Return why the broker ended, and what helps, where its log says so plainly."""
    # Of the other kinds of this error (Metaspace, a thread, a memory map) the heap is not the cause.
    if re.search(r"OutOfMemoryError: (Java heap space|GC overhead limit)", log) is None:
        errors = re.findall(r"^\S+ \S+ (?:ERROR|FATAL) (.+) \(\S+\)$", log, re.MULTILINE)
        return Death(f"it ended, and said last: {errors[-1][:300]}") if errors else None
    return Death(
        f"its heap of {heap_mb()} MB is full",
        f"Each partition takes some of it. Set {_HEAP}={2 * heap_mb()}m and start the sandbox again; "
        "one that runs has to go down first (`bwtui sandbox down`).",
    )


def address(memory: Memory) -> str:
    """Return the broker's address, for bootstrap.servers."""
    return f"{LOOPBACK}:{memory.ports['kafka']}"


def service(layout: Layout, memory: Memory, store: ArtifactStore) -> Service:
    """Write the broker's configuration and return how to run it."""
    data = layout.data / "kafka"
    data.mkdir(parents=True, exist_ok=True)
    properties = _write_properties(data, memory)
    log4j = data / "log4j2.properties"
    log4j.write_text(_LOGGING)
    heap = heap_mb()
    java = (
        str(java_binary()),
        f"-Xms{min(128, heap)}m",
        f"-Xmx{heap}m",
        *JVM,
        f"-Djava.io.tmpdir={layout.temporary}",
        f"-Dlog4j2.configurationFile={log4j}",
        *("-cp", os.pathsep.join(map(str, store.jars(GROUP)))),
    )
    before: tuple[Command, ...] = ()
    if not (data / "log" / "meta.properties").exists():
        # The port in controller.quorum.voters may change from start to start; a voter that is written
        # into the log, as with --standalone, could not.
        tool = ("kafka.tools.StorageTool", "format", "-t", memory.cluster_id, "-c", str(properties))
        # A second of work is not worth the optimizing compiler.
        before = ((*java, "-XX:TieredStopAtLevel=1", *tool),)
    return Service(
        name=NAME,
        title="Kafka",
        before=before,
        command=(*java, "kafka.Kafka", str(properties)),
        log=layout.logs / "kafka.log",
        folder=data,
        ready=lambda: _answers(memory.ports["kafka"]),
        explain=explain,
    )


def _write_properties(data: Path, memory: Memory) -> Path:
    broker, controller = memory.ports["kafka"], memory.ports["kafka_controller"]
    settings = {
        **SETTINGS,
        "listeners": f"PLAINTEXT://{LOOPBACK}:{broker},CONTROLLER://{LOOPBACK}:{controller}",
        "advertised.listeners": f"PLAINTEXT://{LOOPBACK}:{broker}",
        "controller.quorum.voters": f"1@{LOOPBACK}:{controller}",
        "log.dirs": str(data / "log"),
    }
    path = data / "server.properties"
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    return path


def _answers(port: int) -> bool:
    # A look at the port first: librdkafka would retry and log for every refused connection.
    with contextlib.closing(socket.create_connection((LOOPBACK, port), timeout=1)):
        pass
    from confluent_kafka.admin import AdminClient

    admin = AdminClient(
        {"bootstrap.servers": f"{LOOPBACK}:{port}"}, logger=logging.getLogger("bwtui.sandbox")
    )
    return bool(admin.list_topics(timeout=2).brokers)
