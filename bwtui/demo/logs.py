"""Hints on the log of a service of the demo that has failed."""

from typing import TYPE_CHECKING

from bwtui.sandbox.layout import SandboxLayout, demo_folder

if TYPE_CHECKING:
    from bwtui.sandbox.sandbox import ServiceName


def log_hint(service: "ServiceName") -> str:
    """Return a hint with the path of a service's log, which stays after the demo has ended."""
    return f"look at {SandboxLayout(demo_folder()).logs / service}.log"
