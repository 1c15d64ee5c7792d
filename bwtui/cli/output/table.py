"""Plain text tables and numbers for people; JSON has the same numbers unformatted."""

from collections.abc import Sequence

from bwtui.escaping import escape

_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def columns(
    head: Sequence[str], rows: Sequence[Sequence[str]], right: frozenset[int] = frozenset()
) -> list[str]:
    """Return rows under a head as lines, in columns as wide as their widest cell."""
    table = [[escape(cell) for cell in row] for row in (head, *rows)]
    widths = [max(len(row[i]) for row in table) for i in range(len(head))]
    lines = []
    for row in table:
        cells = [
            c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def size(count: int | None) -> str:
    """Return a number of bytes in PostgreSQL's units (powers of 1024), like the screens; a dash for None."""
    if count is None:
        return "-"
    amount = float(count)
    for unit in _UNITS:
        if abs(amount) < 1024 or unit == _UNITS[-1]:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    raise AssertionError("unreachable")


def plural(count: int, noun: str) -> str:
    """Return a count with its noun: ``1 segment``, ``2 segments``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
