"""Where to look when one of the demo's services does not do its part."""

from typing import TYPE_CHECKING

from bwtui.sandbox.layout import Layout, demo_folder

if TYPE_CHECKING:
    from bwtui.sandbox.supervisor import ServiceName


def look_at_log(service: "ServiceName") -> str:
    """Return a hint that names the log of a service, which stays when the demo has ended."""
    return f"look at {Layout(demo_folder()).logs / service}.log"
