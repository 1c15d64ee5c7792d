"""Write and run the programs of docs/consumers.md, and check their output."""

import os
import subprocess
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from types import MappingProxyType

from confluent_kafka.schema_registry import SchemaRegistryClient

from tests.consumers.conftest import Topics
from tests.consumers.snippets import snippet

#: Timeout of a program, in seconds: compilers and package registries are slow on a busy machine.
_SECONDS = 300.0


def written(folder: Path, name: str, topics: Topics) -> Path:
    """Write a program of the page, configured for the topics of the test."""
    path = folder / name
    path.write_text(snippet(name, topics.given))
    return path


def schema_files(folder: Path, topics: Topics) -> list[str]:
    """Write the newest schemas of the registry, and return the files."""
    files = []
    with closing(SchemaRegistryClient({"url": topics.services.schema_registry})) as registry:
        for name in (f"{table}-{part}" for table in topics.counts for part in ("key", "value")):
            newest = registry.get_latest_version(f"{topics.prefix}.{name}").schema.schema_str
            files.append(folder / f"{name}.avsc")
            files[-1].write_text(newest or "")
    return [str(path) for path in files]


def said(
    command: list[str],
    folder: Path,
    more: Mapping[str, str] = MappingProxyType({}),
    seconds: float = _SECONDS,
) -> list[str]:
    """Return the lines that a command prints; it must succeed within the timeout.

    ``more`` is added to its environment.
    """
    ended = subprocess.run(
        command, check=False, cwd=folder, stdin=subprocess.DEVNULL, env={**os.environ, **more},
        capture_output=True, text=True, timeout=seconds,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-4000:] + ended.stdout[-2000:]
    return ended.stdout.splitlines()


def check(lines: list[str], topics: Topics) -> None:
    """Check that a program printed all records, with the latest of each key as in the table.

    A line is topic, id, name, price and time separated by spaces, or topic, id and "deleted".
    """
    counts = dict.fromkeys(topics.counts, 0)
    latest: dict[str, list[str]] = {}
    for line in lines:
        topic, key, *rest = line.removeprefix(f"{topics.prefix}.").split("\t")
        counts[topic] += 1
        if topic == "orders":
            latest[key] = rest
    assert counts == topics.counts
    there = {key: rest for key, rest in latest.items() if rest != ["deleted"]}
    assert there == {key: [name or "-", price, at] for key, name, price, at in topics.orders}
