"""The shape of samples, and label values from texts of other programs."""

from collections.abc import Iterator

from bwtui.escaping import escape, is_plain

#: The metric's name, the values of its labels, and its value.
Sample = tuple[str, tuple[str, ...], float]


def label(text: str) -> str:
    r"""Return a foreign text as a label value: nothing in it is invisible or moves a cursor.

    Different texts stay different: a backslash is doubled.
    """
    return text if is_plain(text) and "\\" not in text else escape(text.replace("\\", r"\\"))


def known(name: str, value: float | None, *labels: str) -> Iterator[Sample]:
    """Yield a sample, unless the value is unknown."""
    if value is not None:
        yield name, labels, value
