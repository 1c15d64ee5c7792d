"""Who takes the messages of the stream, by their tags."""

from collections.abc import Callable
from typing import NoReturn

from bwtui.errors import RefusedError


class Handlers(dict[int, Callable[[bytes], bool | None]]):
    """What takes a message, by its tag."""

    def __missing__(self, tag: int) -> NoReturn:
        raise RefusedError(
            f"PostgreSQL sends a message that the relay did not ask for: {chr(tag)!r}",
            "the slot may have been altered, such as to two_phase; 'bwtui doctor' checks it",
        )
