"""The type of every option that takes a number: within bounds, and neither infinite nor NaN."""

from typing import Any

import click


class NumberType(click.ParamType[float]):
    """A number from ``low`` to ``high``; `nan` and `inf` are invalid."""

    name = "number"

    def __init__(self, low: float, high: float, *, whole: bool = False) -> None:
        self._low = low
        self._high = high
        self._whole = whole

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        kind: type[int] | type[float] = int if self._whole else float
        try:
            number = kind(value)
        except (ValueError, OverflowError):
            number = kind(-1) if self._low >= 0 else kind(self._low - 1)
        # Comparisons with NaN are false.
        if not self._low <= number <= self._high:
            what = "a whole number" if self._whole else "a number"
            self.fail(f"{value!r} is not {what} from {self._low:,} to {self._high:,}", param, ctx)
        return number
