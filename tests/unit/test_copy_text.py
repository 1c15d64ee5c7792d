"""Rows of COPY's text format."""

import pytest

from bwtui.pgoutput.copy_text import unescape_copy_line


@pytest.mark.parametrize(
    ("line", "fields"),
    [
        (b"1\tabc\n", [b"1", b"abc"]),
        (b"\t\n", [b"", b""]),
        (b"\\N\tx\n", [None, b"x"]),
        (b"\\\\N\t\\N\n", [b"\\N", None]),
        (b"a\\tb\\nc\\\\d\\re\\bf\\fg\\vh\n", [b"a\tb\nc\\d\re\bf\fg\vh"]),
        (b"\\\\x00ff\n", [b"\\x00ff"]),
        (b"\\\\\\\\t\n", [b"\\\\t"]),
        ("größe\t😀\n".encode(), ["größe".encode(), "😀".encode()]),
        (b"no newline", [b"no newline"]),
    ],
)
def test_fields(line: bytes, fields: list[bytes | None]) -> None:
    assert unescape_copy_line(line) == fields
