"""Files, functions and folders stay small enough to be read as a whole."""

import ast
from pathlib import Path

from tests.package_sources import nodes, texts

#: Maximum lines of a file and of a function, the size and share of short functions, and modules per folder.
FILE, FUNCTION, SHORT, MOST, SIDE_BY_SIDE = 1000, 60, 30, 0.9, 23


def _functions() -> dict[str, int]:
    return {
        f"{name}:{node.lineno} {node.name}": (node.end_lineno or node.lineno) - node.lineno + 1
        for name in texts()
        for node in nodes(name)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def test_no_file_is_long() -> None:
    lines = {name: len(text.splitlines()) for name, text in texts().items()}
    assert {name: count for name, count in lines.items() if count > FILE} == {}


def test_no_function_is_long_and_nearly_all_are_short() -> None:
    lines = _functions()
    assert {name: count for name, count in lines.items() if count > FUNCTION} == {}
    assert sum(count <= SHORT for count in lines.values()) >= MOST * len(lines)


def test_no_folder_is_a_drawer() -> None:
    folders: dict[str, int] = {}
    for name in texts():
        folder = Path(name).parent.as_posix()
        folders[folder] = folders.get(folder, 0) + (not name.endswith("__init__.py"))
    assert {folder: count for folder, count in folders.items() if count > SIDE_BY_SIDE} == {}
