"""The program's sources as syntax trees, parsed once per process."""

import ast
import functools
import gc
from pathlib import Path

import bwtui

PACKAGE = Path(bwtui.__file__).parent


@functools.cache
def texts() -> dict[str, str]:
    """Return each module's text by its path in the package."""
    return {path.relative_to(PACKAGE).as_posix(): path.read_text() for path in sorted(PACKAGE.rglob("*.py"))}


def nodes(path: str) -> tuple[ast.AST, ...]:
    """Return all nodes of a module's tree."""
    return _nodes()[path]


@functools.cache
def _nodes() -> dict[str, tuple[ast.AST, ...]]:
    # They are a million objects without cycles, which the collector would scan repeatedly.
    gc.disable()
    try:
        return {path: tuple(ast.walk(ast.parse(text))) for path, text in texts().items()}
    finally:
        gc.freeze()
        gc.enable()
