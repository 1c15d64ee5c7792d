"""The files for containers and Kubernetes match the program's paths, ports, options and times."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from bwtui import config
from bwtui.cli.connect import connect
from bwtui.option_checks import parse_address
from bwtui.relay.serving.http_server import HttpServer
from bwtui.relay.state.activity_clock import MainThreadActivity
from bwtui.relay.stream import session
from bwtui.sandbox.ports import choose
from bwtui.settings import RelaySettings
from tests.unit.relay_double import DoubleEngine

PACKAGING = Path(__file__).parents[2] / "packaging"
#: Seconds for a stop: the end of the open transaction, Kafka's acknowledgements, and the remaining work.
STOP_SECONDS = 2 * session._STOP_SECONDS + 10


@pytest.fixture
def manifests() -> dict[str, Any]:
    """The manifests by kind, as kubectl applies them."""
    documents = yaml.safe_load_all((PACKAGING / "kubernetes" / "relay.yaml").read_text())
    return {one["kind"]: one for one in documents}


@pytest.fixture
def pod(manifests: dict[str, Any]) -> Any:
    return manifests["Deployment"]["spec"]["template"]["spec"]


@pytest.fixture
def instructions() -> list[tuple[str, str]]:
    """The Containerfile's instructions, without comments, one per line."""
    text = (PACKAGING / "container" / "Containerfile").read_text()
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in joined.splitlines() if line)]


def variables(instructions: list[tuple[str, str]]) -> dict[str, str]:
    """Return the environment variables of the images."""
    [told] = [rest for name, rest in instructions if name == "ENV" and "BWTUI_LISTEN" in rest]
    return dict(pair.split("=", 1) for pair in told.split())


def test_a_slot_has_one_reader(manifests: dict[str, Any]) -> None:
    deployment = manifests["Deployment"]["spec"]
    assert (deployment["replicas"], deployment["strategy"]) == (1, {"type": "Recreate"})
    assert manifests["PersistentVolumeClaim"]["spec"]["accessModes"] == ["ReadWriteOncePod"]


def test_a_stop_has_the_time_that_it_takes(pod: Any) -> None:
    assert pod["terminationGracePeriodSeconds"] > STOP_SECONDS
    unit = (PACKAGING / "systemd" / "bwtui@.service").read_text()
    match = re.search(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)
    assert match is not None
    assert int(match[1]) > STOP_SECONDS


def test_the_pod_may_do_nothing_that_it_need_not(pod: Any, instructions: list[tuple[str, str]]) -> None:
    [container] = pod["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert pod["securityContext"]["runAsNonRoot"]
    user = pod["securityContext"]["runAsUser"]
    # The user is a number: Kubernetes can't tell whether a name is root.
    assert ("USER", f"{user}:{user}") in instructions
    written = {mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")}
    assert written == {variables(instructions)["BWTUI_STATE_HOME"], "/tmp"}


def test_probes_ask_what_there_is(pod: Any) -> None:
    [container] = pod["containers"]
    [port] = container["ports"]
    listen = {one["name"]: one["value"] for one in container["env"]}["BWTUI_LISTEN"]
    assert parse_address(listen) == ("0.0.0.0", port["containerPort"])
    paths = {name: container[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")}
    assert {probe["port"] for probe in paths.values()} == {port["name"]}
    assert [probe["path"] for probe in paths.values()] == ["/healthz", "/healthz", "/readyz"]


def test_settings_and_passwords_are_read_from_two_files(
    manifests: dict[str, Any],
    pod: Any,
    instructions: list[tuple[str, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    [container] = pod["containers"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    there = variables(instructions)
    assert mounts["secrets"] == f"{there['XDG_CONFIG_HOME']}/bwtui"
    assert ("WORKDIR", mounts["settings"]) in instructions
    settings, secrets = tmp_path / "etc", tmp_path / "secrets" / "bwtui"
    settings.mkdir()
    secrets.mkdir(parents=True)
    (settings / "bwtui.toml").write_text(manifests["ConfigMap"]["data"]["bwtui.toml"])
    passwords = (PACKAGING / "kubernetes" / "passwords.toml").read_text()
    # The commented-out example lines are valid, too.
    (secrets / "bwtui.toml").write_text(passwords.replace('# "', '"'))
    (secrets / "bwtui.toml").chmod(0o440)
    monkeypatch.chdir(settings)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(secrets.parent))
    read = config.load(environ={}).settings()
    assert "password=CHANGE-ME" in read.postgres
    assert dict(read.kafka_config)["sasl.password"] == "CHANGE-ME"
    assert dict(read.registry_config)["basic.auth.user.info"] == "relay:CHANGE-ME"
    assert (read.name, read.slot, read.broker) == ("shop", "shop", "kafka:9092")
    told = subprocess.run(
        [sys.executable, "-m", "bwtui", "config", "show"],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "XDG_CONFIG_HOME": str(secrets.parent)},
    )
    assert "CHANGE-ME" not in told.stdout + told.stderr


def test_what_is_started_exists(pod: Any, instructions: list[tuple[str, str]]) -> None:
    known = {option for parameter in connect.params for option in parameter.opts}
    [command] = [json.loads(rest) for name, rest in instructions if name == "CMD"]
    for words in (pod["containers"][0]["args"], command):
        assert words[0] == "connect"
        assert set(words[1:]) <= known


@pytest.mark.parametrize(("idle", "code"), [(0.0, 0), (1_000.0, 1)])
def test_the_health_check_is_that_of_the_relay(
    instructions: list[tuple[str, str]], idle: float, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    [line] = [rest for name, rest in instructions if name == "HEALTHCHECK"]
    command = json.loads(line.partition("CMD ")[2])
    listen = variables(instructions)["BWTUI_LISTEN"]
    assert listen.replace(":", "', ") in command[-1]
    port = choose(["http"], {})["http"]
    engine = DoubleEngine(RelaySettings(name="shop"))
    monkeypatch.setattr(engine, "turn", lambda: MainThreadActivity("work", idle))
    asked = [sys.executable, *command[1:-1], command[-1].replace("9847", str(port))]
    assert subprocess.run(asked, check=False, stderr=subprocess.DEVNULL).returncode == 1
    with HttpServer(str(port), engine):
        # The probe must ignore a proxy in the environment.
        ran = subprocess.run(asked, check=False, env={**os.environ, "http_proxy": "http://127.0.0.1:1"})
    assert ran.returncode == code
