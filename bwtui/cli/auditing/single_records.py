"""Readers of single records for the screens, from a relay's or the command's own settings."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bwtui.settings import RelaySettings
    from bwtui.tui.audit.kafka_records import SingleRecordReader


def records_by(settings: "RelaySettings") -> "SingleRecordReader":
    """Return a reader of the Kafka and the registry in ``settings``."""
    from bwtui.cli.auditing.registry import ask_registry
    from bwtui.kafka.config import client_config
    from bwtui.tui.audit.kafka_records import SingleRecordReader

    return SingleRecordReader(client_config(settings), ask_registry(settings))


def records_of(relay: str) -> "SingleRecordReader":
    """Return a reader of the topics of the running relay ``relay``. Raises ConnectionFailed."""
    from bwtui.relay.process.control import settings_of

    return records_by(settings_of(relay))
