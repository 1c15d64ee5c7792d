"""The ``/`` filter: a regex, its inverse with ``!``, or letters in order if the text is not a valid regex."""

import re
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

Mode = Literal["off", "regex", "fuzzy"]
_PLAIN = re.compile(r"[\w.]+")


@dataclass(frozen=True)
class Filter:
    """A filter over lines of text; the empty filter matches every line."""

    text: str = ""
    mode: Mode = "off"
    inverse: bool = False
    #: Why the text is not a valid regex; set only if the mode is "fuzzy".
    complaint: str = ""
    _pattern: re.Pattern[str] | None = field(default=None, repr=False)

    @classmethod
    def parse(cls, text: str) -> "Filter":
        """Parse the typed text: a leading ``!`` inverts; case matters only if it has a capital letter."""
        inverse = text.startswith("!")
        body = text[1:] if inverse else text
        if not body:
            return cls(text)
        flags = re.IGNORECASE if body.islower() or not any(c.isalpha() for c in body) else 0
        try:
            with warnings.catch_warnings():
                # Ignore warnings that a later Python may read a pattern such as [[ differently: the user
                # can't act on them.
                warnings.simplefilter("ignore", FutureWarning)
                return cls(text, "regex", inverse, "", re.compile(body, flags))
        except re.error as error:
            letters = ".*?".join(re.escape(letter) for letter in body if not letter.isspace())
            complaint = f"no regex ({error.msg}), so letters in order"
            return cls(text, "fuzzy", inverse, complaint, re.compile(letters, re.IGNORECASE))

    def __bool__(self) -> bool:
        return self._pattern is not None

    def passes(self, line: str) -> bool:
        """Return whether a line matches."""
        if self._pattern is None:
            return True
        return (self._pattern.search(line) is None) == self.inverse

    def describe(self) -> str:
        """Describe the filter in a few words, for a panel's border."""
        if self._pattern is None:
            return ""
        return f"/{self.text}" + (" (letters in order)" if self.mode == "fuzzy" else "")


def completed(text: str, names: Iterable[str]) -> str | None:
    """Return the filter completed to one of ``names``, or None; skip names that are not plain words."""
    inverse, typed = ("!", text[1:]) if text.startswith("!") else ("", text)
    for name in names:
        # A table's name also completes without its schema.
        for part in (name, name.rpartition(".")[2]):
            if typed and len(part) > len(typed) and part.startswith(typed) and _PLAIN.fullmatch(part):
                return inverse + part
    return None
