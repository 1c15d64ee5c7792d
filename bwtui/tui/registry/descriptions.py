"""Descriptions of schema versions and their differences."""

from collections.abc import Sequence

from bwtui.encode.schema_differences import SchemaDifference, directions
from bwtui.tui import figures
from bwtui.tui.plain import Content
from bwtui.tui.registry.versions import SubjectVersion
from bwtui.tui.widgets.columns import Cell

#: Shown if it is unknown when a version was registered.
UNKNOWN = "not known"
_RANK = {"bad": 0, "warn": 1}


def rule_cell(difference: SchemaDifference, level: str) -> Cell:
    """Return which compatibility rule a difference breaks, or that it keeps the rule in force."""
    rule, breaks = level.removesuffix("_TRANSITIVE"), " and ".join(sorted(difference.breaks))
    if not level:
        return Cell(f"breaks {breaks}", "warn") if breaks else Cell("breaks neither rule", "muted")
    if rule == "NONE":
        return Cell(f"unchecked, breaks {breaks}", "warn") if breaks else Cell("unchecked", "muted")
    if difference.breaks & directions(level):
        return Cell(f"✗ breaks {rule}", "bad")
    return Cell(f"✓ keeps {rule}", "good")


def rank(cell: Cell) -> int:
    """Return a sort key that puts broken rules first."""
    return _RANK.get(cell.tone, 2)


def outcome(found: Sequence[SchemaDifference], level: str) -> Content:
    """Return in a few words how two versions differ, and whether the rule holds between them."""
    if not found:
        return Content.styled("no difference but in how they are written", "$quiet")
    kinds = [one.kind for one in found]
    other = [kind for kind in kinds if kind not in ("added", "removed", "type", "default")]
    numbers = (
        (kinds.count("added"), "added"),
        (kinds.count("removed"), "removed"),
        (kinds.count("type"), "of another type"),
        (kinds.count("default"), "with a changed default"),
        (len(other), "other"),
    )
    counted = ", ".join(f"{number:,} {what}" for number, what in numbers if number)
    return Content.assemble(f"{counted}: ", verdict(found, level))


def verdict(found: Sequence[SchemaDifference], level: str) -> tuple[str, str]:
    """Return whether the rule holds, and the style of that text."""
    rule, breaks = level.removesuffix("_TRANSITIVE"), sorted({one for it in found for one in it.breaks})
    broken = " and ".join(breaks)
    if not level:
        return (f"▲ breaks {broken}", "bold $warning") if broken else ("✓ breaks neither rule", "$success")
    if rule == "NONE":
        return (
            (f"NONE checks nothing; breaks {broken}", "$warning") if broken else ("NONE checks nothing", "")
        )
    bad = sum(bool(one.breaks & directions(level)) for one in found)
    if bad:
        return f"✗ breaks {rule} in {bad:,}", "bold $error"
    return f"✓ keeps {rule}", "$success"


def unchecked(found: Sequence[SubjectVersion], old: SubjectVersion, new: SubjectVersion, level: str) -> str:
    """Return why the registry does not compare these two versions, or an empty string."""
    gone = [one for one in (old, new) if not one.is_compared]
    if gone:
        how = "softly deleted" if gone[0].is_deleted else "not in the registry"
        return f"{gone[0].name} is {how}, so that nothing is checked against it"
    between = [one for one in found[found.index(old) + 1 : found.index(new)] if one.is_compared]
    if level and between and not level.endswith("_TRANSITIVE") and level != "NONE":
        return f"{level} compares neighbours only, and between these are {len(between):,}"
    return ""


def when(version: SubjectVersion, now: float) -> str:
    """Return when a version was registered, or else since when it has been used."""
    if version.registered is not None:
        return f"registered {_moment(version.registered, now)}"
    return UNKNOWN if version.used is None else f"used since {_moment(version.used, now)}"


def _moment(seconds: float, now: float) -> str:
    """Return the time of day, or date and time if it is not today."""
    whole = figures.moment(seconds)
    return whole[11:] if whole[:10] == figures.moment(now)[:10] else whole[:16]


def changes(version: SubjectVersion) -> str:
    """Return the numbers of fields that were added, removed and changed."""
    if version.added is None or version.removed is None or version.changed is None:
        return ""
    parts = [f"{sign}{number:,}" for sign, number in _signed(version) if number]
    return " ".join(parts) or "no field"


def _signed(version: SubjectVersion) -> tuple[tuple[str, int], ...]:
    return ("+", version.added or 0), ("−", version.removed or 0), ("~", version.changed or 0)
