"""Queries of an audit to the schema registry."""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bwtui.errors import ConnectionFailed

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import SchemaRegistryClient

    from bwtui.settings import RelaySettings


@functools.cache
def _client(config: tuple[tuple[str, Any], ...]) -> "SchemaRegistryClient":
    """Return the client for a configuration: creating one loads all certificates, 45 ms of CPU."""
    from confluent_kafka.schema_registry import SchemaRegistryClient

    return SchemaRegistryClient(dict(config))


def ask_registry(settings: "RelaySettings") -> Callable[[int], str | None]:
    """Return a function that fetches a schema by ID from the registry."""
    from bwtui.encode.registry_config import registry_config

    configured = registry_config(settings.schema_registry, settings.registry_config)

    def ask(number: int) -> str | None:
        # Few audits find a schema that the recording lacks, and these imports take 0.3 s.
        from confluent_kafka.schema_registry.error import SchemaRegistryError

        from bwtui.encode.registry import MISSING

        try:
            client = _client(tuple(configured.items()))
            # The registry may have been replaced since the last query.
            client.clear_caches()
            return client.get_schema(number).schema_str
        except SchemaRegistryError as error:
            # A missing path, or a proxy's response, is a plain 404.
            if error.error_code in MISSING:
                return None
            problem = f"the schema registry refused schema {number}: {error}"
            hint = (
                "check the permissions of the user, and that -r/--schema-registry is the registry that "
                "the relay used"
            )
            raise ConnectionFailed(problem, hint) from error
        except Exception as error:
            raise ConnectionFailed("can't reach the schema registry", "check -r/--schema-registry") from error

    return ask
