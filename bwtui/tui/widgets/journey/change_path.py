"""A drawing of the path of one change, stretch by stretch from its COMMIT, and the facts about it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import RenderableType

from bwtui.tui import figures
from bwtui.tui.assessment import MARKS, Tone
from bwtui.tui.journey.audit_result import AuditResult
from bwtui.tui.journey.change_path import ChangePath
from bwtui.tui.plain import Group, Table, Text

_COLOURS: Mapping[Tone, str] = {
    "good": "success",
    "warn": "warning",
    "bad": "error",
    "muted": "quiet",
    "plain": "foreground",
}
#: Cells of the names before the facts, and of the figures before the bars.
_NAME, _FIGURE = 14, 12
#: Minimum cells for bars.
_LEAST_BARS = 16


@dataclass(frozen=True, slots=True)
class Fact:
    """A fact about a change: its name, its text, and whether it is good or bad."""

    name: str
    words: str
    tone: Tone = "plain"

    @classmethod
    def of(cls, name: str, said: AuditResult) -> "Fact":
        """Return the result of a comparison as a fact."""
        return cls(name, said.words, said.tone)


def way_content(
    way: ChangePath, facts: Sequence[Fact], colours: Mapping[str, str], *, width: int, is_tall: bool
) -> RenderableType:
    """Return the drawing: if there is space, one line per stretch, to scale; otherwise a single line."""
    bars = width - _NAME - _FIGURE - 1
    drawn = (
        _bars(way, colours, bars) if is_tall and bars >= _LEAST_BARS and way.legs else [_line(way, colours)]
    )
    told = Table(box=None, padding=0, show_header=False, show_edge=False, pad_edge=False)
    told.add_column(width=_NAME)
    told.add_column(overflow="fold")
    for fact in facts:
        told.add_row(Text(fact.name, colours["quiet"]), _words(fact, colours))
    remarks = [Text(f"· {remark}", colours["quiet"]) for remark in way.remarks]
    return Group(*drawn, told, *remarks)


def _line(way: ChangePath, colours: Mapping[str, str]) -> Text:
    parts: list[str | tuple[str, str]] = [(way.begin, "bold")]
    for leg in way.legs:
        took = "?" if leg.seconds is None else _took(leg.seconds)
        parts += [(f" ─{took}▶ ", colours["primary"]), leg.name]
    if way.total is not None:
        parts.append((f"  {_took(way.total)}", f"bold {colours['success']}"))
    return Text.assemble(*parts)


def _bars(way: ChangePath, colours: Mapping[str, str], cells: int) -> list[Text]:
    """Return a line for each stretch; its bar begins where the previous one ends."""
    quiet = colours["quiet"]
    whole = sum(max(leg.seconds or 0.0, 0.0) for leg in way.legs)
    lines = [Text.assemble((f"{way.begin:<{_NAME}}", "bold"), (figures.moment(way.time), quiet),
                           (f".{int(way.time * 1000) % 1000:03}", quiet))]  # fmt: skip
    past = 0.0
    for leg in way.legs:
        name = f"{leg.name:<{_NAME}}"
        if leg.seconds is None:
            lines.append(Text.assemble((name, "bold"), ("not known", quiet)))
            continue
        length = max(leg.seconds, 0.0)
        start = round(past / whole * (cells - 1)) if whole else 0
        end = round((past + length) / whole * (cells - 1)) if whole else 0
        past += length
        bar = "━" * max(end - start, 1)
        figure = f"{'+' if leg.seconds >= 0 else ''}{_took(leg.seconds)}".rjust(_FIGURE - 1)
        lines.append(
            Text.assemble((name, "bold"), figure, f" {' ' * start}", (bar, f"bold {colours['primary']}"))
        )
    if way.total is not None and len(way.legs) > 1:
        lines.append(
            Text.assemble(
                (f"{'':<{_NAME}}", ""), (_took(way.total).rjust(_FIGURE - 1), f"bold {colours['success']}"),
                (" in all", quiet),
            )
        )  # fmt: skip
    return lines


def _took(seconds: float) -> str:
    """Return a duration, in milliseconds up to ten seconds."""
    if abs(seconds) >= 10:
        return ("-" if seconds < 0 else "") + figures.duration(abs(seconds))
    return f"{figures.milliseconds(seconds)} ms"


def _words(fact: Fact, colours: Mapping[str, str]) -> Text:
    mark = "" if fact.tone == "plain" else f"{MARKS[fact.tone]} "
    style = colours[_COLOURS[fact.tone]]
    return Text.assemble((mark, f"bold {style}"), (fact.words, style))
