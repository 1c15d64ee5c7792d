"""Free TCP ports on the loopback interface."""

import random
import socket
from collections.abc import Iterable

LOOPBACK = "127.0.0.1"

# Below the range that Linux uses for outgoing connections, one of which could otherwise take the port between
# the check and the service's start.
_FIRST, _LAST = 20_000, 32_000


def is_free(port: int) -> bool:
    """Return whether a server could listen on this port of the loopback interface now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True


def choose(names: Iterable[str], remembered: dict[str, int]) -> dict[str, int]:
    """Return a free port for each name: the remembered one if it is free, otherwise a new one."""
    chosen: dict[str, int] = {}
    for name in names:
        port = remembered.get(name)
        while port is None or port in chosen.values() or not is_free(port):
            port = random.randrange(_FIRST, _LAST)
        chosen[name] = port
    return chosen
