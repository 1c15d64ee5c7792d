"""The versions of a subject, as a real registry reports them and as a running relay serves them."""

import json
import time
from collections.abc import Iterator
from contextlib import closing

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient

from bwtui.encode.registry import SchemaRegistry
from bwtui.sandbox.sandbox import ServiceAddresses


def schema(*names: str) -> str:
    fields = [{"name": name, "type": ["null", "long"], "default": None} for name in names]
    return json.dumps({"type": "record", "name": "Value", "fields": fields})


@pytest.fixture
def subject() -> str:
    """A unique name that needs quoting in an URL."""
    return f"shop/ö rders%{time.monotonic_ns():x}-value"


@pytest.fixture
def registry(services: ServiceAddresses) -> Iterator[SchemaRegistry]:
    with closing(SchemaRegistry(services.schema_registry)) as found:
        yield found


def test_versions_texts_and_the_level_are_told(registry: SchemaRegistry, subject: str) -> None:
    assert registry.versions(subject) == {}
    ids = [registry.register_id(subject, schema(*names)) for names in ("a", "ab", "abc")]
    assert registry.versions(subject) == {1: False, 2: False, 3: False}
    assert registry.level(subject)
    found = [registry.version(subject, number) for number in (1, 2, 3)]
    assert [one.id for one in found if one] == ids
    assert [json.loads(one.schema) for one in found if one] == [
        json.loads(schema(*names)) for names in ("a", "ab", "abc")
    ]
    assert registry.version(subject, 4) is None


def test_a_softly_deleted_version_is_told_apart(
    registry: SchemaRegistry, services: ServiceAddresses, subject: str
) -> None:
    for names in ("a", "ab", "abc"):
        registry.register_id(subject, schema(*names))
    with closing(SchemaRegistryClient({"url": services.schema_registry})) as client:
        client.delete_version(subject, 2)
    assert registry.versions(subject) == {1: False, 2: True, 3: False}
    gone = registry.version(subject, 2)
    assert gone is not None
    assert json.loads(gone.schema) == json.loads(schema("a", "b"))
