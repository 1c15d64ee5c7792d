"""The command line's entry point: commands that are loaded on demand, and errors as plain lines.

No large module is imported here, so ``bwtui --help`` stays fast; each command imports what it needs.
"""

import contextlib
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import click

from bwtui import __version__
from bwtui.cli.inputs.relay_options import ARGUMENTS
from bwtui.cli.lazy import LazyGroup, Table
from bwtui.cli.output import streams
from bwtui.console import say
from bwtui.crash import crash
from bwtui.errors import BwtuiError, Interrupted, UsageError
from bwtui.masking import mask_connection
from bwtui.options import nearest

COMMANDS: Table = {
    "demo": ("bwtui.cli.demo", "Run it all: a sandbox, a sample shop, the relay, its screens."),
    "sandbox": ("bwtui.cli.sandbox", "Run PostgreSQL, Kafka and a schema registry on this machine."),
    "connect": ("bwtui.cli.connect", "Relay a database's changes to Kafka, with live screens."),
    "record": ("bwtui.cli.record", "Record a database's changes into files, without Kafka."),
    "attach": ("bwtui.cli.attach", "Open the screens of a running relay."),
    "snapshot": ("bwtui.cli.snapshot", "Have a relay send tables, or some of their rows, again."),
    "dead-letters": (
        "bwtui.cli.dead_letters",
        "List dropped rows, and have them sent.",
    ),
    "status": ("bwtui.cli.status", "Show the state of the running relays."),
    "stop": ("bwtui.cli.stop", "Stop a relay cleanly."),
    "open": ("bwtui.cli.open", "Open the screens for a recording."),
    "replay": ("bwtui.cli.replay", "Write a recording's messages into topics again."),
    "doctor": ("bwtui.cli.doctor", "Check prerequisites and suggest fixes."),
    "slots": ("bwtui.cli.slots", "List and drop replication slots."),
    "schema": ("bwtui.cli.schema", "Check tables against the schema registry, also after a DDL."),
    "recording": ("bwtui.cli.recording", "Inspect, check, recover, seal and export recordings."),
    "verify": ("bwtui.cli.verify", "Verify that Kafka contains what was sent; list anomalies."),
    "repair": ("bwtui.cli.repair", "Send only the keys that differ between tables and topics."),
    "config": ("bwtui.cli.config", "Show every setting and its origin; check configuration files."),
    "completion": ("bwtui.cli.completion", "Print the shell completion script."),
}
CONTEXT: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


#: The end of click's message for a path whose mode denies reading.
_NOT_READABLE = " is not readable."
_DENIED = "grant the user that runs bwtui access to every folder of the path, and the right to read it"
#: click's message for one argument too many.
_EXTRA = re.compile(r"Got unexpected extra argument \((.*)\)")
_PATH = "check the path; a relative path starts at the working directory"


class _Program(LazyGroup):
    """The whole program: errors of every command are two plain lines."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Parse the arguments; --help and --version write their text here."""
        with _plain_ends():
            typed = list(args)
            context = super().make_context(info_name, args, parent, **extra)
            context.meta[ARGUMENTS] = typed
            return context

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; handle Ctrl-C and a closed pipe."""
        with _plain_ends():
            try:
                return super().invoke(ctx)
            except click.BadOptionUsage as error:
                # click raises it without a context.
                error.ctx = error.ctx or _context_of_command(ctx)
                raise

    def main(  # type: ignore[override]  # click's own overloads differ in standalone_mode only.
        self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any
    ) -> Any:
        """Run a command and end the process with its exit code; errors go to stderr."""
        run = super().main
        code = guarded(lambda: run(args, prog_name, standalone_mode=False, **extra))
        problem = streams.finish() if sys.stdout is not None else None
        if problem is not None and code == 0:
            code = tell(problem)
        sys.exit(code)


def _context_of_command(context: click.Context) -> click.Context:
    """Return a context for the command that the arguments begin with."""
    for argument in context.meta[ARGUMENTS]:
        if not isinstance(context.command, click.Group):
            break
        command = context.command.get_command(context, argument)
        if command is None:
            break
        context = click.Context(command, context, argument)
    return context


@contextlib.contextmanager
def _plain_ends() -> Iterator[None]:
    """Handle Ctrl-C and a closed pipe before click does."""
    try:
        yield
    except KeyboardInterrupt as error:
        raise Interrupted() from error
    except streams.StdoutClosed as error:
        # The reader of the output has closed it.
        raise click.exceptions.Exit(0) from error
    except BrokenPipeError as error:
        raise crash(error) from error


def guarded(command: Callable[[], Any]) -> int:
    """Run ``command`` and return the exit code; an exception becomes one line and a hint."""
    try:
        result = command()
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except (KeyboardInterrupt, click.Abort):
        return tell(Interrupted())
    except click.exceptions.NoArgsIsHelpError as error:
        # Not an error to show in one line: a user who names no command wants to see the list.
        say(*error.format_message().split("\n"), err=True)
        return error.exit_code
    except click.ClickException as error:
        return tell(_from_click(error))
    except BwtuiError as error:
        return tell(error)
    except Exception as error:
        if os.environ.get("BWTUI_DEBUG"):
            raise
        return tell(crash(error))
    return result if isinstance(result, int) else 0


def tell(error: BwtuiError) -> int:
    """Write the error's line, and its hint if there is one, to stderr; return its exit code."""
    with contextlib.suppress(OSError):
        say(f"bwtui: error: {_line(error.message)}", err=True)
        if error.hint:
            say(f"hint: {_line(error.hint)}", err=True)
    return error.exit_code


def _line(text: str) -> str:
    # One line, whatever a server put into its message, and no password, even if it was not masked before.
    return mask_connection(" ".join(text.split())).rstrip(".")


def _from_click(error: click.ClickException) -> UsageError:
    hint = _advice(error)
    if isinstance(error, click.NoSuchOption):
        close = error.possibilities or []
        suggestion = nearest(error.option_name, close) or (close[0] if close else None)
        return UsageError(
            f"no such option {error.option_name}", f"did you mean {suggestion}?" if suggestion else hint
        )
    text = error.format_message()
    if isinstance(error, click.BadParameter) and error.message.endswith(_NOT_READABLE):
        # It names the path; click's prefix may add only a placeholder, such as '[FILE]...'.
        text = error.message
    message, _, suggestion = text.partition(" Did you mean ")
    return UsageError(message[:1].lower() + message[1:], f"did you mean {suggestion}" if suggestion else hint)


def _advice(error: click.ClickException) -> str:
    """Return the hint for an error raised by click."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    path = context.command_path if context else "bwtui"
    if isinstance(error, click.BadParameter) and error.param is not None:
        kind = error.param.type
        if isinstance(kind, click.Choice):
            return f"give one of {', '.join(map(str, kind.choices))}"
        if not isinstance(error, click.MissingParameter):
            if isinstance(kind, click.File | click.Path):
                return _DENIED if error.message.endswith(_NOT_READABLE) else _PATH
            return f"'{path} --help' describes {'/'.join(error.param.opts)}"
    if context is not None and not isinstance(error, click.NoSuchOption | click.BadOptionUsage):
        if isinstance(context.command, click.Group):
            return f"choose one of {', '.join(context.command.list_commands(context))}"
        extra = _EXTRA.fullmatch(error.message)
        if extra and any("--table" in parameter.opts for parameter in context.command.params):
            return f"use --table {extra[1]} to select a table"
        return f"usage: {context.get_usage().removeprefix('Usage: ')}"
    return f"'{path} --help' lists the options"


@click.group(
    cls=_Program,
    table=COMMANDS,
    context_settings=CONTEXT,
    epilog="""\b
Examples:
  bwtui demo                                  everything at once, nothing to install
  bwtui connect -d "dbname=shop" -b kafka:9092 -r http://registry:8081
  bwtui connect -d "dbname=shop" --detach     in the background; then: bwtui attach
  bwtui status --json

\b
Exit codes:
  0 fine · 1 differences found · 2 usage or error · 3 indeterminate
  4 connection or authentication · 5 slot lost · 6 damaged or unfinished recording
  130 interrupted""",
)
@click.version_option(__version__, "-V", "--version", prog_name="bwtui")
def cli() -> None:
    """Relay PostgreSQL changes to Kafka, and show every one of them."""


def main() -> None:
    """Entry point of the ``bwtui`` script."""
    if os.environ.get("NO_COLOR"):
        cli.context_settings["color"] = False
    streams.prepare()
    try:
        cli.main(prog_name="bwtui")
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        # A late Ctrl-C changes nothing, and prints no traceback of the interpreter's own end.
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, lambda *_: os._exit(code))
        # Most commands have made no call to a service, and did not import this.
        if (blocking := sys.modules.get("bwtui.blocking")) is not None:
            blocking.leave(code)
        raise
