"""Lines and texts of SVG, for the benchmarks' pictures."""

import math
from collections.abc import Iterator, Sequence
from html import escape

INK, FAINT, LINE, LIMIT, MARK = "#24292f", "#d0d7de", "#0969da", "#cf222e", "#8250df"


def canvas(width: float, height: float) -> str:
    """Return the beginning of a picture, which ends with ``</svg>``."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}"'
        f' height="{height}" font-family="sans-serif" font-size="12" fill="{INK}">\n'
        f'<rect width="{width}" height="{height}" fill="white"/>'
    )


def steps(low: float, high: float, about: int) -> Iterator[float]:
    """Yield round numbers from one to the other."""
    raw = (high - low) / about
    size = 10 ** math.floor(math.log10(raw))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= raw)
    number = math.ceil(low / step)
    while number * step <= high:
        yield round(number * step, 10)
        number += 1


def path(points: Sequence[tuple[float, float]], colour: str, width: float, dashes: str = "") -> str:
    """Return a line through points."""
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    return f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="{width:g}"{dashed}/>'


def text(x: float, y: float, words: str, anchor: str = "start", size: int = 12, colour: str = INK) -> str:
    """Return a text at a place."""
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="{colour}"'
    return f"<text {place}>{escape(words)}</text>"


def bar(x: float, y: float, width: float, height: float, colour: str) -> str:
    """Return a filled bar."""
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:g}" fill="{colour}"/>'
