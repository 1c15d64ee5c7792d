"""Where a recording comes from."""

from importlib.metadata import version
from typing import Any

from bwtui.model.status import Status
from bwtui.settings import RelaySettings
from bwtui.source.preflight import Findings


def recording_source(
    status: Status, findings: Findings, settings: RelaySettings, cluster: str
) -> dict[str, Any]:
    """Return where a recording comes from, for the HEAD of its segments; no passwords."""
    return {
        "database": findings.database,
        "server": status.database,
        "system_identifier": findings.system_identifier,
        "server_version": findings.server_version,
        "slot": settings.slot,
        "publication": settings.publication_name,
        "broker": status.broker,
        "cluster": cluster,
        "registry": status.registry,
        "output_format": settings.output_format,
        "topic_prefix": settings.topic_prefix,
        "headers": settings.headers,
        "bwtui": version("bwtui"),
    }
