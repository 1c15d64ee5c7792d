"""The programs and settings of docs/consumers.md: files in docs/consumers, and blocks that begin so."""

import re
from collections.abc import Mapping
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "consumers.md"
FILES = PAGE.with_suffix("")
_BLOCK = re.compile(r"^```\w+\n(?:#|//|--) (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def snippets() -> dict[str, str]:
    """Return every snippet by its name."""
    return {path.name: path.read_text() for path in FILES.iterdir()} | dict(_BLOCK.findall(PAGE.read_text()))


def snippet(name: str, given: Mapping[str, str]) -> str:
    """Return a snippet in which each text of the page is replaced by what stands for it here."""
    text = snippets()[name]
    for written, here in given.items():
        text = text.replace(written, here)
    return text


def properties(name: str, given: Mapping[str, str]) -> dict[str, str]:
    """Return a snippet's properties."""
    lines = snippet(name, given).splitlines()
    pairs = [line.partition("=") for line in lines if line and not line.startswith("#")]
    return {key.strip(): value.strip() for key, _, value in pairs}
