"""What all samples share: their shape, and texts of others as values of labels."""

from collections.abc import Iterator

from bwtui.shown import is_plain, shown

#: The metric's name, the values of its labels, and its value.
Sample = tuple[str, tuple[str, ...], float]


def label(text: str) -> str:
    r"""Return a text that others wrote as the value of a label: nothing in it is hidden or moves a cursor.

    Two texts never become one: a backslash is doubled.
    """
    return text if is_plain(text) and "\\" not in text else shown(text.replace("\\", r"\\"))


def known(name: str, value: float | None, *labels: str) -> Iterator[Sample]:
    """Yield the sample of a value that is known."""
    if value is not None:
        yield name, labels, value
