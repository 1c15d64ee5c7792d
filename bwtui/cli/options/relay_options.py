"""The click options that say what a relay does; they are shared by the commands that take them.

Each has the name of its entry in bwtui/options.py. None has a default here: what is not given on the command
line comes from the environment, from bwtui.toml, or from the defaults of `RelaySettings`.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from bwtui import config
from bwtui.cli.options.completing import one_of, profiles
from bwtui.errors import UsageError

#: The key of a context's meta under which the arguments stand, as they were typed.
ARGUMENTS = "bwtui.arguments"

Command = TypeVar("Command", bound=Callable[..., Any])
Decorator = Callable[[Command], Command]

_POSTGRES = click.option(
    "-d",
    "--postgres",
    metavar="DSN",
    help="Connection string or URI, given to libpq as it is; PG* variables, ~/.pgpass and services work.",
)
_BROKER = click.option(
    "-b", "--broker", metavar="HOST:PORT,…", help="Kafka brokers.  [default: localhost:9092]"
)
_REGISTRY = click.option(
    "-r", "--schema-registry", metavar="URL", help="Schema registry.  [default: http://localhost:8081]"
)
_PROFILE = click.option(
    "--profile",
    metavar="NAME",
    shell_complete=profiles,
    help="Take [profile.NAME] of bwtui.toml into account.",
)


def _switch(*names: str, help: str) -> Decorator[Any]:
    # The negative form overrules bwtui.toml and the environment.
    positive = names[-1]
    decorator: Decorator[Any] = click.option(
        *names[:-1], f"{positive}/--no-{positive.removeprefix('--')}", default=None, help=help, cls=_Switch
    )
    return decorator


class _Switch(click.Option):
    """A switch whose negative form works without taking room in the help."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Return the help of the positive form only."""
        return ", ".join(self.opts), self.help or ""


_RELAY: tuple[Decorator[Any], ...] = (
    _POSTGRES,
    click.option("-s", "--slot", metavar="NAME", help="Replication slot.  [default: bottledwater]"),
    _BROKER,
    _REGISTRY,
    click.option(
        "-f",
        "--output-format",
        metavar="FORMAT",
        shell_complete=one_of("avro", "json"),
        help="avro or json.  [default: avro]",
    ),
    _switch("-u", "--allow-unkeyed", help="Relay tables without a key too, with a null key."),
    click.option("-p", "--topic-prefix", metavar="P", help="Put P and a dot before the name of every topic."),
    click.option(
        "-e",
        "--on-error",
        metavar="POLICY",
        shell_complete=one_of("exit", "log"),
        help="A row can't be relayed: 'exit' stops before its transaction, so that it comes again; 'log' "
        "keeps the row in the dead letters and goes on.  [default: exit]",
    ),
    _switch("-x", "--skip-snapshot", help="Make the slot without copying what the tables hold already."),
    _switch(
        "--accept-divergence",
        help="Go on where the server's history lacks what was relayed (an older copy, a standby promoted too "
        "soon): topics keep what it lacks.",
    ),
    click.option(
        "-C", "--kafka-config", metavar="K=V", multiple=True, help="A property of librdkafka; repeatable."
    ),
    click.option(
        "-T",
        "--topic-config",
        metavar="K=V",
        multiple=True,
        help="A topic property; repeatable.",
    ),
    click.option("--publication", metavar="NAME", help="Publication to read.  [default: bwtui_SLOT]"),
    click.option(
        "--table",
        metavar="REGEX",
        multiple=True,
        help="Only tables whose schema.table matches REGEX as a whole; repeatable.",
    ),
    click.option("--exclude-table", metavar="REGEX", multiple=True, help="Not these tables; repeatable."),
    _switch("--headers", help="Add Kafka headers: commit LSN, ordinal, operation, xid."),
    click.option(
        "--dead-letter-topic", metavar="TOPIC", help="Send rows that can't be relayed to TOPIC as well."
    ),
    click.option(
        "--toast",
        metavar="MODE",
        shell_complete=one_of("fetch", "error", "placeholder"),
        help="A large value that an UPDATE did not touch is not in the stream: 'fetch' reads the row's "
        "present one, 'error' follows --on-error, 'placeholder' sends null and names the column in "
        "__escaped.  [default: fetch]",
    ),
    click.option(
        "--truncate-topic", metavar="TOPIC", help="Send a JSON message to TOPIC for every TRUNCATE."
    ),
    click.option(
        "--record",
        metavar="DIR",
        help="Record what is read and sent into DIR as well; nothing is confirmed that is not recorded.",
    ),
    click.option(
        "--on-record-error",
        metavar="POLICY",
        shell_complete=one_of("stop", "stop-recording"),
        help="The recording can't be written: 'stop' ends the relay, 'stop-recording' goes on without.  "
        "[default: stop]",
    ),
    click.option(
        "--segment-bytes",
        metavar="N",
        help="Begin a new file of the recording after N bytes.  [default: 64M]",
    ),
    click.option("--segment-seconds", metavar="N", help="… or after N seconds.  [default: 300]"),
    click.option("--endpos", metavar="LSN", help="End when everything up to LSN is confirmed."),
    _switch("--until-caught-up", help="End when everything committed before the start is confirmed."),
    click.option(
        "--name", metavar="NAME", help="The relay's name for attach, status and stop.  [default: the slot's]"
    ),
    _PROFILE,
)


def _all(options: tuple[Decorator[Any], ...]) -> Decorator[Any]:
    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


#: Every option of a relay.
relay_options: Decorator[Any] = _all(_RELAY)
#: What doctor needs: the three ends.
endpoint_options: Decorator[Any] = _all((_POSTGRES, _BROKER, _REGISTRY, _PROFILE))
#: What a command needs that speaks to PostgreSQL only.
postgres_options: Decorator[Any] = _all((_POSTGRES, _PROFILE))
profile_option: Decorator[Any] = _PROFILE


def hide(command: click.Command, name: str) -> None:
    """Leave an option out of the help of ``command``, which refuses what it could say."""
    for parameter in command.params:
        if isinstance(parameter, click.Option) and parameter.name == name:
            parameter.hidden = True


def without(command: click.Command, *names: str) -> None:
    """Take options away from a command that has all of a relay's."""
    command.params = [parameter for parameter in command.params if parameter.name not in names]


def load(given: dict[str, Any], *, alone: bool = False) -> config.Config:
    """Return the merged settings, with what click parsed on top; or that ``alone``. Raises UsageError."""
    if given.get("record") == "":
        raise UsageError("--record names no folder", "name the folder of the recording: --record DIR")
    if given.get("record"):
        # The relay may be a process of its own, in another folder.
        given = {**given, "record": str(Path(given["record"]).absolute())}
    values = {key.replace("_", "-"): value for key, value in given.items()}
    profile = values.pop("profile", None)
    typed = typed_options()
    if alone:
        return config.of_command_line(values, typed)
    return config.load(values, profile, typed=typed)


def typed_options() -> dict[str, str]:
    """Return the options of this command as they were typed, by name: ``-s`` or ``--slot``."""
    context = click.get_current_context(silent=True)
    if context is None:
        return {}
    given: list[str] = context.meta.get(ARGUMENTS, [])
    found: dict[str, str] = {}
    for parameter in context.command.params:
        for name in (*parameter.opts, *parameter.secondary_opts):
            if parameter.name and any(_is_option(name, argument) for argument in given):
                found[parameter.name.replace("_", "-")] = name
    return found


def _is_option(name: str, argument: str) -> bool:
    if name.startswith("--"):
        return argument.partition("=")[0] == name
    return argument.startswith(name) and not argument.startswith("--")
