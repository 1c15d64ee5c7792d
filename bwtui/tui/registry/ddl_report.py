"""The result of ``bwtui schema check --json`` as text for the screens."""

from typing import Any

from rich.console import RenderableType

from bwtui.tui.plain import Group, Table, Text

#: Maximum tables listed one by one; those that would stop the relay come first.
_LISTED = 300


def trial_content(answer: dict[str, Any], script: str, colours: dict[str, str]) -> RenderableType:
    """Return the registry's answer for every table; ``script`` is the DDL file, or empty."""
    tables: dict[str, dict[str, Any]] = answer.get("tables", {})
    bad = sorted(name for name, table in tables.items() if not table.get("ok"))
    good = sorted(tables.keys() - set(bad))
    lines: list[RenderableType] = [_verdict(len(tables), len(bad), script, colours)]
    for name in bad[:_LISTED]:
        lines += ["", Text(f"✗ {name}", f"bold {colours['error']}"), *_reasons(tables[name], colours)]
    if good:
        lines += ["", _compatible(tables, good[: max(_LISTED - len(bad), 0)], colours)]
    left_out = len(tables) - _LISTED
    if left_out > 0:
        lines.append(Text(f"and {left_out:,} more; 'bwtui schema check' lists all", colours["quiet"]))
    lines += [
        "",
        Text(
            "Nothing was changed: the script was rolled back, and no schema was registered.", colours["quiet"]
        ),
    ]
    return Group(*lines)


def _verdict(number: int, bad: int, script: str, colours: dict[str, str]) -> Text:
    after = f"after {script}" if script else "as the tables are now"
    if not number:
        return Text(f"▲ no table of this relay is there {after}", f"bold {colours['warning']}")
    if bad:
        verb = "would stop the relay" if script else "stop the relay"
        return Text(f"✗ {bad:,} of {number:,} tables {verb} {after}", f"bold {colours['error']}")
    return Text(f"✓ all {number:,} tables are compatible {after}", f"bold {colours['success']}")


def _reasons(table: dict[str, Any], colours: dict[str, str]) -> list[Text]:
    lines = [Text(f"  {table['error']}")] if table.get("error") else []
    for part in ("key", "value"):
        said = table.get(part)
        if said and said.get("result") == "incompatible":
            lines.append(Text(f"  {said['subject']}, held to {said['rule']}", colours["quiet"]))
            reasons = said.get("reasons") or ["incompatible; the registry does not say in which field"]
            lines += [Text(f"    {reason}") for reason in reasons]
    return lines


def _compatible(tables: dict[str, dict[str, Any]], names: list[str], colours: dict[str, str]) -> Table:
    listed = Table(box=None, padding=(0, 2, 0, 0), show_edge=False, header_style=f"bold {colours['quiet']}")
    listed.add_column("Table", overflow="fold")
    for title in ("Key", "Value", "Rule"):
        listed.add_column(title)
    for name in names:
        table = tables[name]
        key, value = table.get("key") or {}, table.get("value") or {}
        listed.add_row(name, key.get("result", "–"), value.get("result", "–"), value.get("rule", "–"))
    return listed
