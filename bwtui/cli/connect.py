"""``bwtui connect``: start a relay, in this process (--headless) or in one of its own."""

import os
from typing import TYPE_CHECKING, Any

import click

from bwtui.cli.inputs import relay_options
from bwtui.cli.inputs.relay_options import json_option
from bwtui.console import say, say_json
from bwtui.crash import crash
from bwtui.errors import BwtuiError, ConnectionFailed, Interrupted, UsageError, mutually_exclusive
from bwtui.settings import RelaySettings
from bwtui.terminal import need_screens

if TYPE_CHECKING:
    from bwtui.model.status import Status
    from bwtui.relay.process.launch import EngineProcess
    from bwtui.tui.base.choices import Choices
    from bwtui.tui.sources.model import Fleet

#: Timeout for an engine that is about to end, once the screens are closed (seconds).
_STOP_TIMEOUT = 10.0

#: The hint if the screens failed and the relay has ended, too.
_SCREENS = (
    "the relay does not need the screens: start it with --headless, and watch it with 'bwtui status {name}'"
)

_EPILOG = """\b
Examples:
  bwtui connect -d "host=db dbname=shop user=cdc"          with the screens
  bwtui connect -d postgresql://cdc@db/shop --detach       in the background
  bwtui connect -d service=shop --headless --json          one status object per second on stdout
  bwtui connect -d service=shop --headless --until-caught-up
  bwtui connect -d service=shop -p shop --table 'public\\.(orders|items)'
  bwtui connect -d service=shop --record /var/lib/cdc/shop
  bwtui connect -d service=shop -C compression.type=zstd -C linger.ms=20

\b
Every option is also a key of bwtui.toml (./ or the user's config folder) and a
variable BWTUI_…, except --headless, --json, --detach, --config-help and --profile,
which has a variable only. 'bwtui config show' shows each value and its origin. Put
passwords into ~/.pgpass and bwtui.toml ([kafka], [registry]), not on the command line.
"""


def _show_config_help(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    if not value or ctx.resilient_parsing:
        return
    from bwtui.cli.inputs.librdkafka import config_help

    say(*config_help().split("\n"))
    ctx.exit()


@click.command(epilog=_EPILOG)
@relay_options.takes(*relay_options.ALL, "readonly")
@click.option("--headless", is_flag=True, help="Run the relay in this process, without screens.")
@json_option("With --headless, write one status object per second to stdout.")
@click.option("--detach", is_flag=True, help="Start the relay in the background and print its name.")
@click.option(
    "--config-help",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_config_help,
    help="List the properties for -C and -T.",
)
def connect(headless: bool, as_json: bool, detach: bool, **options: Any) -> None:
    """Relay a database's changes to Kafka.

    Creates the publication and the replication slot if they are missing, copies the tables, then streams
    their changes. The relay confirms to PostgreSQL only what Kafka has acknowledged, so it can be stopped or
    killed at any time. It runs in a separate process, which can continue after the screens are closed; with
    --readonly, the screens can't stop it.
    """
    _check_modes(headless, as_json, detach)
    if options["readonly"] and (headless or detach):
        raise UsageError(
            "--readonly applies to the screens, which --headless and --detach do not show", "omit it"
        )
    settings = relay_settings(options)
    relay_options.need_packages(settings)
    if not (headless or detach):
        need_screens("add --headless or --detach")
    if headless:
        run_headless(settings, as_json)
    elif detach:
        _run_detached(settings, as_json)
    else:
        _run_with_screens(settings, options)


def relay_settings(options: dict[str, Any]) -> RelaySettings:
    """Return the settings of all layers, checked as far as possible without any I/O."""
    config = relay_options.load(options)
    settings = config.settings()
    relay_options.check_properties(settings, config.property_place)
    return settings


def _check_modes(headless: bool, as_json: bool, detach: bool) -> None:
    if headless and detach:
        raise mutually_exclusive("--headless", "--detach")
    if as_json and not (headless or detach):
        raise UsageError("--json requires --headless or --detach", "add one of them")


def run_headless(settings: RelaySettings, as_json: bool) -> None:
    """Relay in this process. Raises the relay's error, or OutputFailed if its last status can't be
    written.
    """
    from bwtui.cli.output.headless import say_failed

    try:
        _run_headless(settings, as_json)
    except Interrupted as ended:
        # The line about the relay's state already says that it stopped.
        raise click.exceptions.Exit(ended.exit_code) from ended
    except BwtuiError as error:
        if settings.log_format == "text":
            raise
        # With JSON logs, stderr has only JSON.
        say_failed(settings.relay_name, error)
        raise click.exceptions.Exit(error.exit_code) from error


def _run_headless(settings: RelaySettings, as_json: bool) -> None:
    from bwtui.cli.output.headless import StatusStream, line_listener, status_listener
    from bwtui.relay.main import log_failure, run
    from bwtui.relay.process.lock import RelayLock
    from bwtui.relay.process.log import log_to_file
    from bwtui.relay.serving.systemd_notifier import supervisor_of

    name = settings.relay_name
    lock = RelayLock.acquire(name)
    # stderr is for bwtui's own lines; messages of libraries go to the log.
    log_to_file(name, settings.log_format)
    statuses = StatusStream(settings.log_format)
    listener = status_listener(statuses) if as_json else line_listener(settings.log_format)
    ended = run(settings, lock, listener, supervisor=supervisor_of(os.environ))
    if settings.log_format == "text":
        # The reason is in the command's error only, and has to be in the log.
        log_failure(ended)
    error = ended.error() or statuses.failure
    if error is not None:
        raise error


def _run_detached(settings: RelaySettings, as_json: bool) -> None:
    engine, status = _start(settings)
    if status is None or status.state == "starting":
        detail = f", {status.detail}" if status is not None and status.detail else ""
        message = (
            f"relay {engine.name} is still starting{detail}; 'bwtui status {engine.name}' shows its progress"
        )
        say(f"bwtui: {message}", err=True)
    if not as_json:
        say(engine.name)
    elif status is not None:
        say_json(status.to_json())
    else:
        say_json({"name": engine.name, "state": "starting", "pid": engine.process.pid})


def _run_with_screens(settings: RelaySettings, options: dict[str, Any]) -> None:
    from bwtui.tui.base.choices import chosen

    # An invalid key is reported before anything is started.
    choices = chosen(relay_options.load(options))
    say(f"bwtui: starting relay {settings.relay_name}…", err=True)
    engine, _ = _start(settings)
    if engine.process.poll() is not None:
        say(f"bwtui: relay {engine.name} has finished and ended", err=True)
        return
    show(engine.name, owned=True, choices=choices)


def show(name: str, owned: bool, fleet: "Fleet" = "no", choices: "Choices | None" = None) -> bool:
    """Open the screens for a running relay; the relay continues whatever happens to them.

    Return whether the user goes to the list of all relays. Raises the error that ended the relay while they
    were open.
    """
    from bwtui.cli.inputs.audit_sources import records_of
    from bwtui.relay.process import outcome
    from bwtui.relay.process.log import log_path
    from bwtui.tui.app import run

    crashed: BwtuiError | None = None
    try:
        code = run(name, owned=owned, fleet=fleet, kafka=lambda: records_of(name), choices=choices)
        if code is None:
            return True
        if code != 0:
            crashed = BwtuiError("the screens failed", _SCREENS.format(name=name))
    except BwtuiError:
        raise
    except Exception as error:
        if os.environ.get("BWTUI_DEBUG"):
            raise
        problem = f"the screens failed: {crash(error).message}"
        crashed = BwtuiError(problem, _SCREENS.format(name=name))
    if _runs_on(name):
        if crashed is not None:
            crashed.hint = (
                f"the relay is still running: 'bwtui attach {name}' shows it, 'bwtui stop {name}' stops it"
            )
            raise crashed
        return False
    ended = outcome.read(name)
    if ended is None:
        raise BwtuiError(
            f"relay {name} was killed, or ended without reporting a reason", f"see {log_path(name)}"
        )
    # Whoever only attached has not interrupted the relay, which stopped cleanly.
    failed = (ended.error() if owned or ended.is_failure else None) or crashed
    if failed is not None:
        raise failed
    return False


def _runs_on(name: str) -> bool:
    """Return whether the relay runs; wait for one that has already closed its socket."""
    from bwtui.relay.process.control import request
    from bwtui.relay.process.lock import wait_until_free

    try:
        request(name, {"request": "status"})
    except ConnectionFailed:
        return not wait_until_free(name, _STOP_TIMEOUT)
    return True


def _start(settings: RelaySettings) -> tuple["EngineProcess", "Status | None"]:
    from bwtui.relay.process import launch

    engine = launch.start(settings)
    try:
        return engine, engine.wait_ready()
    except KeyboardInterrupt:
        engine.stop()
        raise
