"""Nothing in the program writes past the one way out, and no text from data is ever markup.

This looks at the sources: what isn't there today may be tomorrow, by a line that nobody thinks about.
"""

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import bwtui

PACKAGE = Path(bwtui.__file__).parent
#: The modules that are the way out.
OUT = {"console.py", "cli/streams.py"}
#: Calls that write to a terminal.
WRITES = {"print", "click.echo", "click.secho", "click.prompt", "click.confirm", "click.echo_via_pager"}
#: They also parse markup, or let through what `console.terminal` does not.
CONSOLES = {"Console", "rich.print", "rich.console.Console", "Text.from_markup", "Text.from_ansi"}


@functools.cache
def sources(under: str = "") -> tuple[tuple[str, ast.Module], ...]:
    """Return every module's name and syntax tree."""
    paths = sorted((PACKAGE / under).rglob("*.py"))
    return tuple((path.relative_to(PACKAGE).as_posix(), ast.parse(path.read_text())) for path in paths)


def name_of(node: ast.expr) -> str:
    """Return a dotted name, or what of it is one."""
    if isinstance(node, ast.Attribute):
        return f"{name_of(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def calls(tree: ast.Module) -> Iterator[tuple[str, ast.Call]]:
    """Return every call, and what is called."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield name_of(node.func), node


def test_only_the_console_writes() -> None:
    found = [
        f"{path}:{call.lineno}: {name}"
        for path, tree in sources()
        if path not in OUT
        for name, call in calls(tree)
        if name in WRITES | CONSOLES or name in ("sys.stdout.write", "sys.stderr.write", "os.write.1")
    ]
    assert found == []


def test_only_an_export_writes_bytes_to_stdout() -> None:
    found = {
        path
        for path, tree in sources()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and name_of(node) in ("sys.stdout.buffer", "sys.stderr.buffer")
    }
    assert found == {"recording/export_target.py"}


def test_columns_of_bars_are_no_markup() -> None:
    found = [
        f"{path}:{call.lineno}"
        for path, tree in sources()
        for name, call in calls(tree)
        if name.endswith("TextColumn") and not has(call, "markup", False)
    ]
    assert found == []


def has(call: ast.Call, keyword: str, value: object) -> bool:
    """Tell whether a call has a keyword with a constant."""
    return any(
        one.arg == keyword and isinstance(one.value, ast.Constant) and one.value.value is value
        for one in call.keywords
    )
