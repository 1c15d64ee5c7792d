"""The NAME of a relay: optional for attach, status and stop if only one relay runs; also for --relay."""

import time
from typing import TYPE_CHECKING, Any

import click

from bwtui.cli.options.value_completion import relays
from bwtui.console import say
from bwtui.errors import ConnectionFailed, UsageError
from bwtui.model.option_checks import check_name
from bwtui.options import nearest, split_advice

if TYPE_CHECKING:
    from collections.abc import Callable

    from bwtui.model.status import Status
    from bwtui.relay.process.outcome import RunOutcome


def _check(ctx: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    if value is not None:
        try:
            check_name(value)
        except ValueError as error:
            raise UsageError(*split_advice(error)) from error
    return value


def relay_option(help: str) -> "Callable[[Callable[..., Any]], Callable[..., Any]]":
    """Add --relay NAME to a command, which selects a running relay."""
    return click.option("--relay", metavar="NAME", shell_complete=relays, callback=_check, help=help)


name_argument = click.argument("name", required=False, shell_complete=relays, callback=_check)


def only_relay(name: str | None) -> str:
    """Return ``name``, or the name of the only running relay. Raises ConnectionFailed or UsageError."""
    if name is not None:
        return name
    running, _ = all_running()
    if len(running) > 1:
        names = ", ".join(status.name for status in running)
        raise UsageError(f"{len(running)} relays are running", f"choose one: {names}")
    return running[0].name


def all_running() -> "tuple[list[Status], list[str]]":
    """Return the status of every relay that answers, and the names of those that do not.

    The latter are reported on stderr. Raises ConnectionFailed if none answers.
    """
    from bwtui.relay.process.control import does_not_answer, running_relays

    silent: list[str] = []
    running = running_relays(silent=silent)
    errors = [does_not_answer(name) for name in silent]
    if errors and not running:
        raise errors[0]
    for error in errors:
        say(f"bwtui: {error.message}; {error.hint}", err=True)
    if not running:
        raise ConnectionFailed("no relay is running", _newest_end() or "start one with 'bwtui connect'")
    return running, silent


def _newest_end() -> str:
    """Describe the most recent end of a run that was not a stop; "" if there is none."""
    from bwtui.relay.process import last_status, outcome
    from bwtui.state_folder import relay_names

    ends = [
        (ended.time, f"of {name}: {_told(ended)}")
        for name in relay_names()
        if (ended := outcome.read(name)) is not None and ended.message is not None
    ]
    killed = last_status.newest()
    if killed is not None:
        ends.append((killed.time, f"of {killed.name}: {last_status.describe(killed)}"))
    return max(ends, default=(0, ""))[1]


def _told(ended: "RunOutcome") -> str:
    """Describe how a run failed."""
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(ended.time))
    hint = f"; {ended.hint}" if ended.hint else ""
    return f"its last run failed at {when}, with exit code {ended.exit_code}, on: {ended.message}{hint}"


def status_of(name: str) -> "Status":
    """Return the relay's status.

    Raises ConnectionFailed, whose hint says how its last run ended, and what has not been proven since.
    """
    from bwtui.model.gaps import unproven
    from bwtui.model.status import Status
    from bwtui.relay.process import last_status, outcome
    from bwtui.relay.process.control import RelayUnresponsive, request, running_relays
    from bwtui.state_folder import relay_names

    try:
        return Status.from_json(request(name, {"request": "status"}))
    except RelayUnresponsive:
        raise
    except ConnectionFailed as error:
        ended, last = outcome.read(name), last_status.of_ended(name)
        gap = unproven(last) if last is not None else None
        also = f"; {gap[0]}" if gap is not None else ""
        if ended is not None:
            how = "its last run stopped cleanly" if ended.message is None else _told(ended)
            raise ConnectionFailed(error.message, f"{how}{also}") from error
        if last is not None:
            raise ConnectionFailed(error.message, f"{last_status.describe(last)}{also}") from error
        if name not in relay_names():
            close = nearest(name, [s.name for s in running_relays()])
            raise ConnectionFailed(
                error.message, f"did you mean {close}?" if close else error.hint
            ) from error
        raise
