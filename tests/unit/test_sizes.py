"""Files, functions and folders stay small enough to be read as a whole."""

import ast
from pathlib import Path

import bwtui

PACKAGE = Path(bwtui.__file__).parent
#: Lines of a file and of a function, the share of functions that are short, and modules side by side.
FILE, FUNCTION, SHORT, MOST, SIDE_BY_SIDE = 1000, 60, 30, 0.9, 20


def _modules() -> dict[str, str]:
    return {path.relative_to(PACKAGE).as_posix(): path.read_text() for path in PACKAGE.rglob("*.py")}


def _functions() -> dict[str, int]:
    return {
        f"{name}:{node.lineno} {node.name}": (node.end_lineno or node.lineno) - node.lineno + 1
        for name, text in _modules().items()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def test_no_file_is_long() -> None:
    lines = {name: len(text.splitlines()) for name, text in _modules().items()}
    assert {name: count for name, count in lines.items() if count > FILE} == {}


def test_no_function_is_long_and_nearly_all_are_short() -> None:
    lines = _functions()
    assert {name: count for name, count in lines.items() if count > FUNCTION} == {}
    assert sum(count <= SHORT for count in lines.values()) >= MOST * len(lines)


def test_no_folder_is_a_drawer() -> None:
    folders: dict[str, int] = {}
    for name in _modules():
        folder = Path(name).parent.as_posix()
        folders[folder] = folders.get(folder, 0) + (not name.endswith("__init__.py"))
    assert {folder: count for folder, count in folders.items() if count > SIDE_BY_SIDE} == {}
