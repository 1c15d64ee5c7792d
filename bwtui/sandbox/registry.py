"""Apicurio's schema registry with Confluent's API, on loopback, with its schemas in a file."""

import urllib.request
from pathlib import Path

from bwtui.packages.artifacts import ArtifactStore
from bwtui.packages.class_archive import ClassArchive
from bwtui.packages.java import java_binary
from bwtui.sandbox.layout import SandboxLayout, SandboxState
from bwtui.sandbox.ports import LOOPBACK
from bwtui.sandbox.service import ServiceProcess

NAME = "registry"
GROUP = "registry"
PORTS = ("registry", "registry_management")

# Start-up time matters more here than maximum speed: so use only the first compiler tier.
JVM = ("-Xms64m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.awt.headless=true")


def url(memory: SandboxState) -> str:
    """Return the base URL of Confluent's API."""
    return f"http://{LOOPBACK}:{memory.ports['registry']}/apis/ccompat/v7"


def programs(store: ArtifactStore) -> Path:
    """Unpack the registry if necessary, and return its folder."""
    return store.unpacked(GROUP)


def service(layout: SandboxLayout, memory: SandboxState, store: ArtifactStore) -> ServiceProcess:
    """Unpack the registry if necessary, and return the service."""
    data = layout.data / "registry"
    data.mkdir(parents=True, exist_ok=True)
    settings = {
        "quarkus.http.host": LOOPBACK,
        "quarkus.http.port": str(memory.ports["registry"]),
        # By default, this one listens on every address.
        "quarkus.management.host": LOOPBACK,
        "quarkus.management.port": str(memory.ports["registry_management"]),
        "quarkus.log.level": "WARN",
        "quarkus.banner.enabled": "false",
        "quarkus.http.access-log.enabled": "false",
        'quarkus.log.category."io.apicurio".level': "WARN",
        "apicurio.storage.kind": "sql",
        "apicurio.storage.sql.kind": "h2",
        # Use a file, so that ids survive a restart, as do the topics that contain them.
        "apicurio.datasource.url": f"jdbc:h2:file:{data / 'registry'}",
    }
    program = programs(store) / "quarkus-run.jar"
    classes = ClassArchive(java_binary(), NAME, [program], by_one=False)
    classes.prepare()
    return ServiceProcess(
        name=NAME,
        title="schema registry",
        before=(),
        command=(
            str(java_binary()),
            *JVM,
            f"-Djava.io.tmpdir={layout.temporary}",
            *(f"-D{key}={value}" for key, value in settings.items()),
            *("-jar", str(program)),
        ),
        classes=classes,
        log=layout.logs / "registry.log",
        folder=data,
        ready=lambda: answers(url(memory)),
    )


def answers(base: str) -> bool:
    """Return whether the registry answers; raises OSError if not."""
    # Do not use a proxy from the environment for loopback.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"{base}/subjects", timeout=2) as answer:
        return bool(answer.status == 200)
