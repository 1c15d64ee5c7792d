"""The two themes: calm on dark, and calm on light."""

from collections.abc import Mapping

from textual.theme import Theme

from bwtui.tui.judgement import Tone

#: The theme's variable for each tone.
TONES: Mapping[Tone, str] = {
    "good": "$success",
    "warn": "$warning",
    "bad": "$error",
    "muted": "$quiet",
    "plain": "$foreground",
}

DARK = Theme(
    name="bwtui-dark",
    primary="#6cb6ff",
    secondary="#8b949e",
    accent="#e3b341",
    warning="#e3b341",
    error="#ff7b72",
    success="#56d364",
    foreground="#d0d7de",
    background="#0d1117",
    surface="#0d1117",
    panel="#21262d",
    dark=True,
    variables={
        "border": "#6cb6ff",
        "border-blurred": "#30363d",
        "footer-background": "#161b22",
        "footer-key-foreground": "#6cb6ff",
        "footer-description-foreground": "#8b949e",
        "input-selection-background": "#6cb6ff 35%",
        "quiet": "#8b949e",
        "line": "#30363d",
        "cursor": "#1f3a5f",
        "bar": "#161b22",
    },
)

LIGHT = Theme(
    name="bwtui-light",
    primary="#0550ae",
    secondary="#57606a",
    accent="#8a4600",
    warning="#8a4600",
    error="#b3131d",
    success="#116329",
    foreground="#1f2328",
    background="#ffffff",
    surface="#ffffff",
    panel="#eaeef2",
    dark=False,
    variables={
        "border": "#0550ae",
        "border-blurred": "#d0d7de",
        "footer-background": "#f3f5f7",
        "footer-key-foreground": "#0550ae",
        "footer-description-foreground": "#57606a",
        "input-selection-background": "#0550ae 25%",
        "quiet": "#57606a",
        "line": "#d0d7de",
        "cursor": "#cfe4ff",
        "bar": "#f3f5f7",
    },
)

THEMES = (DARK, LIGHT)
