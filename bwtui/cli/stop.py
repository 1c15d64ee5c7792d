"""``bwtui stop``: ask a relay to stop, and wait until it has ended."""

import click

from bwtui.cli.options.number_type import NumberType
from bwtui.cli.options.relay_name import name_argument, only_relay, status_of
from bwtui.console import say
from bwtui.errors import BwtuiError

_EPILOG = """\b
Examples:
  bwtui stop                the only relay that runs
  bwtui stop shop --timeout 10
"""


@click.command(epilog=_EPILOG)
@name_argument
@click.option(
    "--timeout",
    metavar="SECONDS",
    type=NumberType(0, 10**6),
    default=60.0,
    show_default=True,
    help="How long to wait until the relay is gone.",
)
def stop(name: str | None, timeout: float) -> None:
    """Stop the relay NAME cleanly.

    It waits until Kafka has acknowledged what is under way, and confirms that to PostgreSQL. The slot stays,
    so the next start goes on from there.
    """
    from bwtui.relay.process.control import request
    from bwtui.relay.process.lock import wait_until_free

    name = only_relay(name)
    status = status_of(name)
    request(name, {"request": "stop"})
    if not wait_until_free(name, timeout):
        raise BwtuiError(
            f"relay {name} has not stopped within {timeout:g} seconds",
            f"it may wait for Kafka or PostgreSQL; 'kill -9 {status.pid}' ends it, and what was not "
            "confirmed comes again",
        )
    say(f"relay {name} has stopped")
