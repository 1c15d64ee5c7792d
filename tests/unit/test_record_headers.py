"""A record's headers, with any names."""

from typing import Any

import pytest

from bwtui.kafka.client import UNREADABLE, headers_of


class _Message:
    """A record whose headers the client can't return; confluent_kafka's own class can't be instantiated."""

    def __init__(self, found: Any) -> None:
        self.found = found

    def headers(self) -> Any:
        if isinstance(self.found, Exception):
            raise self.found
        return self.found


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (None, []),
        ([("a", b"1"), ("a", None)], [("a", b"1"), ("a", None)]),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"), UNREADABLE),
        (SystemError("returned a result with an exception set"), UNREADABLE),
    ],
)
def test_headers(found: Any, expected: Any) -> None:
    message: Any = _Message(found)
    assert headers_of(message) == expected
