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
OUT = {"console.py", "cli/output/streams.py"}
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


def test_no_handler_of_messages_calls_that_of_its_base_class() -> None:
    """Textual calls the handlers of all classes itself: the base class's would run twice."""
    found = [
        f"{path}:{call.lineno}: {call.func.attr}"
        for path, tree in sources("tui")
        for _, call in calls(tree)
        if isinstance(call.func, ast.Attribute)
        and call.func.attr.startswith(("on_", "_on_"))
        and isinstance(call.func.value, ast.Call)
        and name_of(call.func.value.func) == "super"
    ]
    assert found == []


def test_only_an_export_writes_bytes_to_stdout() -> None:
    found = {
        path
        for path, tree in sources()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and name_of(node) in ("sys.stdout.buffer", "sys.stderr.buffer")
    }
    assert found == {"recording/export/target.py"}


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


#: What parses markup, or takes texts raw, and what the screens have in its place.
RAW = {"rich.text": "Text", "rich.table": "Table", "textual.content": "Content"}
PLAIN = "tui/plain.py"


def test_screens_make_texts_of_their_own_kind_only() -> None:
    found = []
    for path, tree in sources():
        if not path.startswith("tui/") or path == PLAIN:
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                names = {one.name for one in node.names}
                if node.module in RAW or (node.module == "rich.console" and names != {"RenderableType"}):
                    found.append(f"{path}:{node.lineno}: {node.module}")
            elif isinstance(node, ast.Attribute) and node.attr in ("from_markup", "from_ansi"):
                found.append(f"{path}:{node.lineno}: {node.attr}")
    assert found == []


def test_widgets_are_given_no_text_that_they_could_take_for_markup() -> None:
    found = []
    for path, tree in sources():
        if not path.startswith("tui/"):
            continue
        for name, call in calls(tree):
            if name in ("Static", "Label", "Button", "Checkbox") and not has(call, "markup", False):
                found += [f"{path}:{call.lineno}: {name}" for one in call.args[:1] if not is_safe(one)]
    assert found == []


def test_titles_are_no_markup() -> None:
    names = ("border_title", "border_subtitle", "tooltip", "title", "sub_title")
    found = [
        f"{path}:{node.lineno}: {target.attr}"
        for path, tree in sources()
        if path.startswith("tui/")
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Attribute) and target.attr in names and not is_safe(node.value)
    ]
    assert found == []


def is_safe(node: ast.expr) -> bool:
    """Tell whether a text is a constant of the program, of numbers at most, or `plain.Content`."""
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
    """Tell whether a part of an f-string is written as a number."""
    spec = node.format_spec if isinstance(node, ast.FormattedValue) else None
    return isinstance(spec, ast.JoinedStr) and ast.unparse(spec) in ("f','", "f'd'")
