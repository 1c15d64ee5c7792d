"""Measure the structure of bwtui/: ``make house`` prints size, imports and how objects are connected."""

import ast
import sys
from collections import defaultdict
from pathlib import Path

from tests.package_sources import nodes, texts

#: Layers of their own above all folders, although they are in the package's own folder.
_ENTRY_POINTS = {"__main__.py", "entry.py"}


def imports() -> dict[str, set[str]]:
    """Return the modules of bwtui that each module imports, by path."""
    paths = set(texts()) - _ENTRY_POINTS
    found: dict[str, set[str]] = {}
    for path in paths:
        names: set[str] = set()
        for node in nodes(path):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
        candidates = {
            name.removeprefix("bwtui.").replace(".", "/") for name in names if name.startswith("bwtui.")
        }
        found[path] = {f"{one}.py" for one in candidates if f"{one}.py" in paths} - {path}
    return found


def _is_lone(path: str, importers: set[str]) -> bool:
    return len(importers) == 1 and path.partition("/")[0] == next(iter(importers)).partition("/")[0]


def only_importers(of: dict[str, set[str]]) -> dict[str, str]:
    """Return the modules that only one module of the same area imports, with that module."""
    importers: dict[str, set[str]] = defaultdict(set)
    for path, imported in of.items():
        for one in imported:
            importers[one].add(path)
    return {one: next(iter(by)) for one, by in sorted(importers.items()) if _is_lone(one, by)}


def _folder(path: str) -> str:
    return path.rpartition("/")[0]


def circles(of: dict[str, set[str]]) -> list[tuple[str, str]]:
    """Return the pairs of folders that import each other; a folder and its subfolder count."""
    arrows = {
        (_folder(a), _folder(b)) for a, imported in of.items() for b in imported if _folder(a) != _folder(b)
    }
    return sorted((a, b) for a, b in arrows if a < b and (b, a) in arrows)


def _declared_data() -> set[str]:
    """Return the names of attributes that are annotated, and nowhere as callables."""
    annotations: dict[str, list[str]] = defaultdict(list)
    for path in texts():
        for node in nodes(path):
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name | ast.Attribute):
                name = ast.unparse(node.target).rpartition(".")[2]
                annotations[name].append(ast.unparse(node.annotation))
    return {name for name, given in annotations.items() if not any("Callable" in one for one in given)}


def assigned_callables() -> list[str]:
    """Return where a function or method is assigned to an attribute of another object."""
    data = _declared_data()
    functions = {node.name for path in texts() for node in nodes(path) if isinstance(node, ast.FunctionDef)}
    found = []
    for path in texts():
        for node in nodes(path):
            if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Attribute | ast.Lambda):
                continue
            is_function = isinstance(node.value, ast.Lambda) or (
                node.value.attr in functions and isinstance(node.value.value, ast.Name | ast.Attribute)
            )
            for target in node.targets:
                is_own = not isinstance(target, ast.Attribute) or ast.unparse(target.value) == "self"
                if is_function and not is_own and ast.unparse(target).rpartition(".")[2] not in data:
                    found.append(f"{path}:{node.lineno} {ast.unparse(node)}")
    return found


def checks_of_none(attribute: str) -> int:
    """Return the number of comparisons of an ``attribute`` or name with None."""
    return sum(
        isinstance(node, ast.Compare)
        and ast.unparse(node.left).rpartition(".")[2].lstrip("_") == attribute
        and isinstance(node.comparators[0], ast.Constant)
        and node.comparators[0].value is None
        for path in texts()
        for node in nodes(path)
    )


def main() -> None:
    """Print the measures, and with ``--list`` what they count."""
    of = imports()
    lone, pairs, assigned = only_importers(of), circles(of), assigned_callables()
    own = sum(len(text.splitlines()) for text in texts().values())
    tests = sum(len(path.read_text().splitlines()) for path in Path(__file__).parent.rglob("*.py"))
    print(f"lines in bwtui/                {own:,}")
    print(f"modules in bwtui/              {len(texts())}")
    print(f"lines in tests/                {tests:,}")
    print(f"modules with one importer      {len(lone)}")
    print(f"pairs of folders in a circle   {len(pairs)}")
    print(f"callables assigned to others   {len(assigned)}")
    print(f"checks whether recorder is None {checks_of_none('recorder')}")
    if "--list" in sys.argv:
        sizes = {path: len(text.splitlines()) for path, text in texts().items()}
        print(*(f"{sizes[one]:5} {one}  <- {by}" for one, by in lone.items()), sep="\n")
        print(*(f"{a} <-> {b}" for a, b in pairs), sep="\n")
        print(*assigned, sep="\n")


if __name__ == "__main__":
    main()
