"""The program writes to the terminal only through its two output modules, and never parses data as markup.

These tests check the sources, so that a careless new line can't break this.
"""

import ast
import functools
from collections.abc import Iterator

from tests.package_sources import nodes, texts

#: The modules that may write to a terminal.
OUT = {"console.py", "cli/output/streams.py"}
#: Calls that write to a terminal.
WRITES = {"print", "click.echo", "click.secho", "click.prompt", "click.confirm", "click.echo_via_pager"}
#: They also parse markup, or let through characters that `console.terminal` does not.
CONSOLES = {"Console", "rich.print", "rich.console.Console", "Text.from_markup", "Text.from_ansi"}


def name_of(node: ast.expr) -> str:
    """Return a dotted name, or the part of it that is one."""
    if isinstance(node, ast.Attribute):
        return f"{name_of(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


@functools.cache
def calls(path: str) -> tuple[tuple[str, ast.Call], ...]:
    """Return every call of a module with the name of the called function."""
    return tuple((name_of(node.func), node) for node in nodes(path) if isinstance(node, ast.Call))


def screens() -> Iterator[str]:
    """Yield the modules of the screens."""
    yield from (path for path in texts() if path.startswith("tui/"))


def test_only_the_console_writes() -> None:
    found = [
        f"{path}:{call.lineno}: {name}"
        for path in texts()
        if path not in OUT
        for name, call in calls(path)
        if name in WRITES | CONSOLES or name in ("sys.stdout.write", "sys.stderr.write", "os.write.1")
    ]
    assert found == []


def test_no_handler_of_messages_calls_that_of_its_base_class() -> None:
    """Textual calls the handlers of all classes itself, so the base class's would run twice."""
    found = [
        f"{path}:{call.lineno}: {call.func.attr}"
        for path in screens()
        for _, call in calls(path)
        if isinstance(call.func, ast.Attribute)
        and call.func.attr.startswith(("on_", "_on_"))
        # This is the method that calls the handlers.
        and call.func.attr != "on_event"
        and isinstance(call.func.value, ast.Call)
        and name_of(call.func.value.func) == "super"
    ]
    assert found == []


def test_only_an_export_writes_bytes_to_stdout() -> None:
    found = {
        path
        for path in texts()
        for node in nodes(path)
        if isinstance(node, ast.Attribute)
        and node.attr == "buffer"
        and name_of(node) in ("sys.stdout.buffer", "sys.stderr.buffer")
    }
    assert found == {"recording/export.py"}


def test_columns_of_bars_are_no_markup() -> None:
    found = [
        f"{path}:{call.lineno}"
        for path in texts()
        for name, call in calls(path)
        if name.endswith("TextColumn") and not has(call, "markup", False)
    ]
    assert found == []


def has(call: ast.Call, keyword: str, value: object) -> bool:
    """Return whether a call has a keyword with a constant value."""
    return any(
        one.arg == keyword and isinstance(one.value, ast.Constant) and one.value.value is value
        for one in call.keywords
    )


#: Classes that parse markup or accept raw text; the screens use their replacements.
RAW = {"rich.text": "Text", "rich.table": "Table", "textual.content": "Content"}
PLAIN = "tui/base/plain.py"


def test_screens_make_texts_of_their_own_kind_only() -> None:
    found = []
    for path in screens():
        if path == PLAIN:
            continue
        for node in nodes(path):
            if isinstance(node, ast.ImportFrom):
                names = {one.name for one in node.names}
                if node.module in RAW or (node.module == "rich.console" and names != {"RenderableType"}):
                    found.append(f"{path}:{node.lineno}: {node.module}")
            elif isinstance(node, ast.Attribute) and node.attr in ("from_markup", "from_ansi"):
                found.append(f"{path}:{node.lineno}: {node.attr}")
    assert found == []


def test_widgets_are_given_no_text_that_they_could_take_for_markup() -> None:
    found = []
    for path in screens():
        for name, call in calls(path):
            if name in ("Static", "Label", "Button", "Checkbox") and not has(call, "markup", False):
                found += [f"{path}:{call.lineno}: {name}" for one in call.args[:1] if not is_safe(one)]
    assert found == []


def test_titles_are_no_markup() -> None:
    names = ("border_title", "border_subtitle", "tooltip", "title", "sub_title")
    found = [
        f"{path}:{node.lineno}: {target.attr}"
        for path in screens()
        for node in nodes(path)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Attribute) and target.attr in names and not is_safe(node.value)
    ]
    assert found == []


def is_safe(node: ast.expr) -> bool:
    """Return whether a text is a constant, built from numbers at most, or `plain.Content`."""
    match node:
        case ast.Constant():
            return "[" not in str(node.value)
        case ast.IfExp():
            return is_safe(node.body) and is_safe(node.orelse)
        case ast.JoinedStr():
            return all(isinstance(one, ast.Constant) or is_number(one) for one in node.values)
        case ast.Call():
            return name_of(node.func).split(".")[0] == "Content"
    return False


def is_number(node: ast.expr) -> bool:
    """Return whether a part of an f-string is formatted as a number."""
    spec = node.format_spec if isinstance(node, ast.FormattedValue) else None
    return isinstance(spec, ast.JoinedStr) and ast.unparse(spec) in ("f','", "f'd'")
