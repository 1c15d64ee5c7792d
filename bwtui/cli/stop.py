"""``bwtui stop``: ask a relay to stop, and wait until it has ended."""

import click

from bwtui.cli.inputs.relay_options import NumberType, name_argument, only_relay, status_of
from bwtui.console import say
from bwtui.errors import BwtuiError

_EPILOG = """\b
Examples:
  bwtui stop                the running relay, if it is the only one
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
    help="Maximum wait for the relay to stop.",
)
def stop(name: str | None, timeout: float) -> None:
    """Stop the relay NAME cleanly.

    The relay waits until Kafka has acknowledged all sent messages, and confirms them to PostgreSQL. The slot
    is kept, and the next start continues from there.
    """
    from bwtui.relay.process.control import request
    from bwtui.relay.process.lock import wait_until_free

    name = only_relay(name)
    status = status_of(name)
    request(name, {"request": "stop"})
    if not wait_until_free(name, timeout):
        raise BwtuiError(
            f"relay {name} has not stopped within {timeout:g} seconds",
            f"it may be waiting for Kafka or PostgreSQL; 'kill -9 {status.pid}' ends it, and its "
            "next start repeats whatever was not confirmed",
        )
    say(f"relay {name} has stopped")
