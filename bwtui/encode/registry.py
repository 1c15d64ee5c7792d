"""The schema registry's client: subjects to ids, with a refusal told apart from an outage.

Confluent's REST interface, through Confluent's own client. Every registration names its subject, so the
client's subject name strategy is never asked.
"""

from dataclasses import dataclass

from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.error import SchemaRegistryError

from bwtui.errors import BwtuiError, ConnectionFailed
from bwtui.settings import Pairs


class SchemaRefused(BwtuiError):
    """The registry answered, and will not take this schema; trying again does not help."""


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A subject's schema as the registry knows it; ``id`` goes into every message."""

    subject: str
    id: int
    version: int | None
    schema: str


class SchemaRegistry:
    """Registers Avro schemas."""

    def __init__(self, url: str, config: Pairs = ()) -> None:
        """``config``: further keys of Confluent's client. Raises BwtuiError when they are not valid."""
        #: The URL, without user and password.
        self.url_without_user = _without_user(url)
        try:
            self._client = SchemaRegistryClient({"url": url, "timeout": 10, "max.retries": 0, **dict(config)})
        except (ValueError, TypeError) as error:
            raise BwtuiError(f"the schema registry's settings are not valid: {error}") from error

    def check(self) -> None:
        """Ask the registry anything. Raises ConnectionFailed."""
        try:
            self._client.get_subjects()
        except Exception as error:
            raise self._unavailable(error) from error

    def register(self, subject: str, schema: str) -> RegisteredSchema:
        """Register ``schema`` (JSON text) under ``subject``, or find it there.

        Raises SchemaRefused when the registry says no (409 incompatible, 422 invalid), ConnectionFailed when
        it can't be reached or fails itself, which is worth another try.
        """
        wanted = Schema(schema, "AVRO")
        try:
            found = self._client.register_schema_full_response(subject, wanted)
            version = found.version
            if version is None:
                version = self._client.lookup_schema(subject, wanted).version
        except SchemaRegistryError as error:
            if error.http_status_code in (401, 403, 408, 429) or error.http_status_code >= 500:
                raise self._unavailable(error) from error
            raise _refused(subject, error) from error
        except Exception as error:
            raise self._unavailable(error) from error
        return RegisteredSchema(subject, int(found.schema_id or 0), version, schema)

    def _unavailable(self, error: Exception) -> ConnectionFailed:
        reason = " ".join(str(error).split()) or type(error).__name__
        return ConnectionFailed(
            f"can't reach the schema registry at {self.url_without_user}: {reason[:200]}",
            "check that it runs there, and -r/--schema-registry or BWTUI_SCHEMA_REGISTRY",
        )


def _refused(subject: str, error: SchemaRegistryError) -> SchemaRefused:
    reason = " ".join(str(error.error_message).split())
    if error.http_status_code == 409:
        hint = f"the change breaks the compatibility rule of {subject}: relax the rule or undo the change"
    else:
        hint = f"see what the registry holds under subject {subject}"
    return SchemaRefused(
        f"the schema registry refuses {subject} (HTTP {error.http_status_code}): {reason}", hint
    )


def _without_user(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}"
