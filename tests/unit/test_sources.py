"""Rules that hold for every line of the sources, so that a careless new one can't break them.

The program writes to the terminal only through its two output modules, never parses data as markup, gives
each error a hint and each log line an event, and files, functions and folders stay small enough to read as a
whole. All rules are in one file, since parsing the sources takes longer than checking them.
"""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

from bwtui.errors import BwtuiError
from bwtui.model.events import EVENTS, OTHERS
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


#: Hints that would fit any error, and so do not help.
GENERIC = {
    "try again",
    "check the input",
    "see the log",
    "see the documentation",
    "contact support",
    "-",
    "?",
}


def error_classes() -> set[str]:
    """Return the names of our error classes, from the sources: importing everything would load Spark."""
    bases: dict[str, set[str]] = {}
    for node in (node for path in texts() for node in nodes(path)):
        if isinstance(node, ast.ClassDef):
            bases[node.name] = {base.id for base in node.bases if isinstance(base, ast.Name)}
    found = {BwtuiError.__name__}
    while more := {name for name, above in bases.items() if above & found} - found:
        found |= more
    return found


def error_calls() -> Iterator[tuple[str, ast.Call]]:
    classes = error_classes()
    for path in texts():
        for node in nodes(path):
            if isinstance(node, ast.Call):
                name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
                if name in classes or name in ("file_failed", "error_with_code"):
                    yield f"{path}:{node.lineno}", node


def constant_texts(call: ast.Call) -> Iterator[str]:
    """Yield the constant arguments after the message."""
    for argument in [*call.args[1:], *(word.value for word in call.keywords)]:
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
            yield argument.value


def test_no_hint_is_empty_or_generic() -> None:
    calls = list(error_calls())
    assert len(calls) > 300, "the walk sees what is raised"
    wrong = []
    for place, call in calls:
        for text in constant_texts(call):
            words = text.rstrip(".").lower()
            if not words or words in GENERIC:
                wrong.append(f"{place}: {text!r}")
        if any(isinstance(one, ast.Constant) and one.value is None for one in call.args[1:2]):
            wrong.append(f"{place}: None")
    assert not wrong


LEVELS = ("debug", "info", "warning", "error", "exception", "critical")


def calls_in_modules_with(name: str) -> Iterator[tuple[str, ast.Call]]:
    """Yield, in each of our modules that uses this name, the calls of it or of its methods."""
    for path, text in texts().items():
        if re.search(rf"\b_?{name}(ging)?[.(]", text):
            yield from ((path, node) for node in nodes(path) if isinstance(node, ast.Call))


def log_calls() -> Iterator[tuple[str, ast.Call]]:
    """Yield each call of our loggers, and its module."""
    for path, node in calls_in_modules_with("log"):
        if not isinstance(node.func, ast.Attribute):
            continue
        of, says = node.func.value, node.func.attr in LEVELS
        if says and isinstance(of, ast.Name) and of.id in ("_log", "log", "logging"):
            yield f"{path}:{node.lineno}", node


def test_each_line_of_ours_says_which_event_it_is() -> None:
    found = dict(log_calls())
    assert len(found) > 25
    assert [where for where, call in found.items() if "extra" not in {one.arg for one in call.keywords}] == []


def test_each_event_is_used_and_each_that_is_used_is_known() -> None:
    used = {
        node.args[0].value
        for _, node in calls_in_modules_with("event")
        if isinstance(node.func, ast.Name) and node.func.id == "event"
        if isinstance(node.args[0], ast.Constant)
    }
    assert used == set(EVENTS)
    assert OTHERS not in EVENTS


#: Maximum lines of a file and of a function, the size and share of short functions, and modules per folder.
FILE, FUNCTION, SHORT, MOST, SIDE_BY_SIDE = 1000, 60, 30, 0.9, 23


def functions() -> dict[str, int]:
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
    lines = functions()
    assert {name: count for name, count in lines.items() if count > FUNCTION} == {}
    assert sum(count <= SHORT for count in lines.values()) >= MOST * len(lines)


def test_no_folder_is_a_drawer() -> None:
    folders: dict[str, int] = {}
    for name in texts():
        folder = Path(name).parent.as_posix()
        folders[folder] = folders.get(folder, 0) + (not name.endswith("__init__.py"))
    assert {folder: count for folder, count in folders.items() if count > SIDE_BY_SIDE} == {}
