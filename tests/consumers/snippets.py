"""The programs and settings described in docs/consumers.md: the files in docs/consumers."""

from collections.abc import Mapping
from pathlib import Path

FILES = Path(__file__).parents[2] / "docs" / "consumers"


def snippets() -> dict[str, str]:
    """Return every snippet by its name."""
    return {path.name: path.read_text() for path in FILES.iterdir()}


def snippet(name: str, given: Mapping[str, str]) -> str:
    """Return a snippet with each text of the page replaced by the test's value."""
    text = snippets()[name]
    for written, here in given.items():
        text = text.replace(written, here)
    return text


def properties(name: str, given: Mapping[str, str]) -> dict[str, str]:
    """Return a snippet's properties."""
    lines = snippet(name, given).splitlines()
    pairs = [line.partition("=") for line in lines if line and not line.startswith("#")]
    return {key.strip(): value.strip() for key, _, value in pairs}
