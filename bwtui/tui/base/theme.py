"""The themes: calm on dark, calm on light, high contrast, and those made from other colours."""

from collections.abc import Mapping
from functools import lru_cache

from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.filter import LineFilter
from textual.theme import BUILTIN_THEMES, Theme

from bwtui.tui.base.assessment import Tone

#: The theme's variable for each tone.
TONES: Mapping[Tone, str] = {
    "good": "$success",
    "warn": "$warning",
    "bad": "$error",
    "muted": "$quiet",
    "plain": "$foreground",
}
#: Textual's colours, those of Textual's colours that are grounds or plain text, and this project's own.
BASIC = ("primary", "secondary", "accent", "warning", "error", "success")
GROUNDS = ("foreground", "background", "surface", "panel")
OURS = ("quiet", "line", "cursor", "bar")
#: Minimum WCAG contrast of readable text: on the background, and on the row under the cursor.
READABLE, READABLE_AT_CURSOR = 4.5, 3.0
#: Minimum difference in luminance at which a background counts as distinct where there are no colours.
_APART = 0.3


def make(name: str, colours: Mapping[str, str]) -> Theme:
    """Return the theme of these colours, which include all of `BASIC`, `GROUNDS` and `OURS`."""
    of_textual = {key: colours[key] for key in (*BASIC, *GROUNDS)}
    dark = luminance(Color.parse(colours["background"])) < 0.5
    variables = {
        **{ours: colours[ours] for ours in OURS},
        "border": colours["primary"],
        "border-blurred": colours["line"],
        "footer-background": colours["bar"],
        "footer-key-foreground": colours["primary"],
        "footer-description-foreground": colours["quiet"],
        "input-selection-background": f"{colours['primary']} {35 if dark else 25}%",
    }
    return Theme(name=name, dark=dark, variables=variables, **of_textual)  # type: ignore[arg-type]


def colours_of(theme: Theme) -> dict[str, str]:
    """Return a theme's colours as `make` takes them; those that Textual's themes lack are derived."""
    key = theme.to_color_system().generate()
    colours = {name: Color.parse(key[name]).hex6 for name in (*BASIC, *GROUNDS)}
    ours = {name: theme.variables[name] for name in OURS if name in theme.variables}
    return {**colours, **derived(colours), **ours}


def derived(colours: Mapping[str, str]) -> dict[str, str]:
    """Return this project's own colours, derived from the background, foreground and primary colours."""
    background, foreground, primary = (
        Color.parse(colours[name]) for name in ("background", "foreground", "primary")
    )
    return {
        "quiet": foreground.blend(background, 0.25).hex6,
        "line": background.blend(foreground, 0.25).hex6,
        "cursor": background.blend(primary, 0.2).hex6,
        "bar": background.blend(foreground, 0.05).hex6,
    }


def readable(colours: Mapping[str, str]) -> dict[str, str]:
    """Return the colours, with unreadable text colours made brighter or darker."""
    grounds = [Color.parse(colours[name]) for name in ("background", "bar", "surface")]
    cursor = Color.parse(colours["cursor"])
    away = Color.parse("#ffffff" if luminance(grounds[0]) < 0.5 else "#000000")
    mended = dict(colours)
    for name in (*BASIC, "foreground", "quiet"):
        colour = Color.parse(colours[name])
        for _ in range(20):
            at_cursor = contrast(colour, cursor) >= READABLE_AT_CURSOR
            if at_cursor and all(contrast(colour, ground) >= READABLE for ground in grounds):
                break
            colour = colour.blend(away, 0.1)
        mended[name] = colour.hex6
    return mended


def contrast(one: Color, second: Color) -> float:
    """Return the contrast of two colours, 1 to 21, as WCAG defines it."""
    low, high = sorted((luminance(one), luminance(second)))
    return (high + 0.05) / (low + 0.05)


def luminance(colour: Color) -> float:
    """Return the relative luminance of a colour, 0 to 1, as WCAG defines it."""
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in colour.normalized
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


DARK = make(
    "bwtui-dark",
    {
        "primary": "#6cb6ff",
        "secondary": "#8b949e",
        "accent": "#e3b341",
        "warning": "#e3b341",
        "error": "#ff7b72",
        "success": "#56d364",
        "foreground": "#d0d7de",
        "background": "#0d1117",
        "surface": "#0d1117",
        "panel": "#21262d",
        "quiet": "#8b949e",
        "line": "#30363d",
        "cursor": "#1f3a5f",
        "bar": "#161b22",
    },
)
LIGHT = make(
    "bwtui-light",
    {
        "primary": "#0550ae",
        "secondary": "#57606a",
        "accent": "#8a4600",
        "warning": "#8a4600",
        "error": "#b3131d",
        "success": "#116329",
        "foreground": "#1f2328",
        "background": "#ffffff",
        "surface": "#ffffff",
        "panel": "#eaeef2",
        "quiet": "#57606a",
        "line": "#c0c8d0",
        "cursor": "#cfe4ff",
        "bar": "#f3f5f7",
    },
)
HIGH_CONTRAST = make(
    "bwtui-high-contrast",
    {
        "primary": "#5cd6ff",
        "secondary": "#d8d8d8",
        "accent": "#ffd700",
        "warning": "#ffd700",
        "error": "#ff9e9e",
        "success": "#4dff88",
        "foreground": "#ffffff",
        "background": "#000000",
        "surface": "#000000",
        "panel": "#1a1a1a",
        "quiet": "#d8d8d8",
        "line": "#a0a0a0",
        "cursor": "#00205c",
        "bar": "#101010",
    },
)
THEMES = (DARK, LIGHT, HIGH_CONTRAST)
#: All names of themes; this project's without their prefix, Textual's unchanged.
NAMES = (
    *(theme.name.removeprefix("bwtui-") for theme in THEMES),
    *(name for name, theme in BUILTIN_THEMES.items() if not theme.ansi),
)


def named(name: str) -> Theme:
    """Return one of `NAMES`; Textual's themes are made readable and get this project's own colours."""
    ours = next((theme for theme in THEMES if theme.name == f"bwtui-{name.removeprefix('bwtui-')}"), None)
    return ours or make(name, readable(colours_of(BUILTIN_THEMES[name])))


class NoColourFilter(LineFilter):
    """Removes all colours, for NO_COLOR; text on a distinct background is reversed instead."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        ground = luminance(background)
        return [
            segment if segment.style is None else segment._replace(style=_colourless(segment.style, ground))
            for segment in segments
        ]


@lru_cache(1024)
def _colourless(style: Style, ground: float) -> Style:
    plain = style.without_color
    if style.bgcolor is None or style.reverse:
        return plain
    apart = abs(luminance(Color.from_rich_color(style.bgcolor)) - ground) > _APART
    return plain + Style(reverse=True) if apart else plain
