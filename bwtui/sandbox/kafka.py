"""Kafka in KRaft mode, on loopback: one broker that is its own controller, or three of these."""

import contextlib
import logging
import os
import re
import socket
from pathlib import Path

from bwtui.errors import UsageError
from bwtui.packages.artifacts import ArtifactStore
from bwtui.packages.class_archive import ClassArchive
from bwtui.packages.java import java_binary
from bwtui.sandbox.layout import SandboxLayout, SandboxState
from bwtui.sandbox.ports import LOOPBACK
from bwtui.sandbox.service import Command, ServiceFailure, ServiceProcess

NAME = "kafka"
GROUP = "kafka"
#: With three brokers, each is also a controller: a smaller quorum would not survive the loss of any one of
#: them.
CHOICES = (1, 3)

# The defaults assume three brokers or more; also, a group would wait three seconds for further members.
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
    # A killed broker can rejoin only after the controller has fenced it: by default after 9 s.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "auto.create.topics.enable": "true",
    "num.partitions": "3",
}

#: Settings that differ with three brokers: any one of them may fail, and topics stay writable.
OF_THREE = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "share.coordinator.state.topic.replication.factor": "3",
    "share.coordinator.state.topic.min.isr": "2",
}

#: Enough for some thousand partitions, each of which takes memory in the broker; with three brokers, each
#: gets less.
HEAP_MB = 512
HEAP_MB_OF_THREE = 256
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


def heap_mb(brokers: int = 1) -> int:
    """Return the heap size of each broker in MiB: BWTUI_SANDBOX_KAFKA_HEAP, or 512, or 256 for three brokers.

    Raises UsageError.
    """
    text = os.environ.get(_HEAP)
    if not text:
        return HEAP_MB if brokers == 1 else HEAP_MB_OF_THREE
    match = re.fullmatch(r"([1-9]\d*)([mg])", text.lower())
    if match is None:
        raise UsageError(
            f"{_HEAP} is {text!r}, which is not a valid heap size", f"use Java's format: {_HEAP}=1g"
        )
    return int(match[1]) * (1024 if match[2] == "g" else 1)


def explain(log: str, brokers: int = 1) -> ServiceFailure | None:
    """Return why a broker ended, and what to do, if its log clearly says so."""
    # For other kinds of this error (Metaspace, a thread, a memory map), the heap is not the cause.
    if re.search(r"OutOfMemoryError: (Java heap space|GC overhead limit)", log) is None:
        errors = re.findall(r"^\S+ \S+ (?:ERROR|FATAL) (.+) \(\S+\)$", log, re.MULTILINE)
        return ServiceFailure(f"its last error is: {errors[-1][:300]}") if errors else None
    return ServiceFailure(
        f"its heap of {heap_mb(brokers)} MB is full",
        f"Each partition needs some of it. Stop a running sandbox with 'bwtui sandbox down', then start it "
        f"with {_HEAP}={2 * heap_mb(brokers)}m.",
    )


def names(brokers: int) -> tuple[str, ...]:
    """Return the names of the brokers, which their services, folders, logs and ports share."""
    return (NAME,) if brokers == 1 else tuple(f"{NAME}-{node}" for node in range(1, brokers + 1))


def ports(brokers: int) -> tuple[str, ...]:
    """Return the names of the ports that the brokers listen on."""
    return tuple(port for name in names(brokers) for port in (name, _controller(name)))


def addresses(memory: SandboxState, brokers: int) -> str:
    """Return the brokers' addresses for bootstrap.servers."""
    return ",".join(f"{LOOPBACK}:{memory.ports[name]}" for name in names(brokers))


def services(
    layout: SandboxLayout, memory: SandboxState, store: ArtifactStore, brokers: int
) -> list[ServiceProcess]:
    """Write the configuration of every broker, and return the services.

    One broker and three brokers have separate data.
    """
    return [_service(layout, memory, store, node, names(brokers)) for node in range(1, brokers + 1)]


def _controller(name: str) -> str:
    return f"{name}_controller"


def _service(
    layout: SandboxLayout, memory: SandboxState, store: ArtifactStore, node: int, every: tuple[str, ...]
) -> ServiceProcess:
    name, heap = every[node - 1], heap_mb(len(every))
    data = layout.data / name
    data.mkdir(parents=True, exist_ok=True)
    properties = _write_properties(data, memory, node, every)
    log4j = data / "log4j2.properties"
    log4j.write_text(_LOGGING)
    jars = store.jars(GROUP)
    classes = ClassArchive(java_binary(), NAME, jars, by_one=False)
    classes.prepare()
    java = (
        str(java_binary()),
        f"-Xms{min(128, heap)}m",
        f"-Xmx{heap}m",
        *JVM,
        f"-Djava.io.tmpdir={layout.temporary}",
        f"-Dlog4j2.configurationFile={log4j}",
        *("-cp", os.pathsep.join(map(str, jars))),
    )
    before: tuple[Command, ...] = ()
    if not (data / "log" / "meta.properties").exists():
        # The ports in controller.quorum.voters may change with each start; voters written into the log, as
        # with --standalone, could not change.
        tool = ("kafka.tools.StorageTool", "format", "-t", memory.cluster_id, "-c", str(properties))
        # The optimizing compiler does not pay off for a second of work.
        before = ((*java, *classes.used(), "-XX:TieredStopAtLevel=1", *tool),)
    return ServiceProcess(
        name=name,
        title="Kafka" if len(every) == 1 else f"Kafka {node}",
        before=before,
        command=(*java, "kafka.Kafka", str(properties)),
        classes=classes,
        log=layout.logs / f"{name}.log",
        folder=data,
        ready=lambda: answers(memory.ports[name], node),
        explain=lambda log: explain(log, len(every)),
        # When all three stop, the last one has no quorum for a controlled shutdown.
        stop_seconds=15.0 if len(every) == 1 else 6.0,
    )


def _write_properties(data: Path, memory: SandboxState, node: int, every: tuple[str, ...]) -> Path:
    broker, controller = memory.ports[every[node - 1]], memory.ports[_controller(every[node - 1])]
    voters = [f"{voter}@{LOOPBACK}:{memory.ports[_controller(name)]}" for voter, name in enumerate(every, 1)]
    settings = {
        **SETTINGS,
        **(OF_THREE if len(every) == 3 else {}),
        "node.id": str(node),
        "listeners": f"PLAINTEXT://{LOOPBACK}:{broker},CONTROLLER://{LOOPBACK}:{controller}",
        "advertised.listeners": f"PLAINTEXT://{LOOPBACK}:{broker}",
        "controller.quorum.voters": ",".join(voters),
        "log.dirs": str(data / "log"),
    }
    path = data / "server.properties"
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    return path


def answers(port: int, node: int) -> bool:
    """Return whether a broker answers that has joined its cluster; raises anything if not."""
    # Check the port first: librdkafka would retry and log every refused connection.
    with contextlib.closing(socket.create_connection((LOOPBACK, port), timeout=1)):
        pass
    from confluent_kafka.admin import AdminClient

    admin = AdminClient(
        {"bootstrap.servers": f"{LOOPBACK}:{port}"}, logger=logging.getLogger("bwtui.sandbox")
    )
    # It may know the other brokers before it has joined itself.
    return node in admin.list_topics(timeout=2).brokers
