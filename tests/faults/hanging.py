"""A hanging service: its process is suspended, and its connections stay open."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from bwtui.sandbox.sandbox import Sandbox, ServiceName


@contextmanager
def hanging(sandbox: Sandbox, service: ServiceName = "kafka") -> Iterator[None]:
    """Suspend a service during the block."""
    status = sandbox.status()
    assert status is not None
    pid = status.services[service].pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)
