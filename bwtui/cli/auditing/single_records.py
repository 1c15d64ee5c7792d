"""Readers of single records for the screens, from a relay's or the command's own settings."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bwtui.settings import RelaySettings
    from bwtui.tui.audit.kafka import KafkaSide


def records_by(settings: "RelaySettings") -> "KafkaSide":
    """Return a reader of the Kafka and the registry in ``settings``."""
    from bwtui.cli.auditing.registry import ask_registry
    from bwtui.kafka.config import client_config
    from bwtui.tui.audit.kafka import KafkaSide

    return KafkaSide(client_config(settings), ask_registry(settings))


def records_of(relay: str) -> "KafkaSide":
    """Return a reader of the topics of the running relay ``relay``. Raises ConnectionFailed."""
    from bwtui.relay.process.control import settings_of

    return records_by(settings_of(relay))
