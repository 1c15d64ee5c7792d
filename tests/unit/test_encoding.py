"""Conversion from a multibyte encoding."""

import tracemalloc

from bwtui.source.encoding import decoder


def asked(sql: str) -> list[tuple[str, str]]:
    """Answer as PostgreSQL would if EUC_JP had four characters; one of them has two code points."""
    table = {"a4a2": "あ", "8eb1": "ｱ", "8fb0a1": "丂", "a4f7": "か゚", "abda": "゚"}
    return [(",".join(f"{raw} {text.encode().hex()}" for raw, text in table.items()), "")]


def test_characters_of_different_lengths() -> None:
    decode = decoder("EUC_JP", "of this test", asked)
    assert decode is not None
    assert decode(b"a\xa4\xa2\x8e\xb1\x8f\xb0\xa1\xa4\xf7b") == "aあｱ丂か゚b".encode()
    for raw in (b"\xa4", b"\xa4\xa2\xa4", b"\xa4a", b"\xff\xff", b"\x8f\xb0", b"\xab\xda"):
        assert decode(raw) is decode(b"x" * 20_000 + raw) is None


def test_a_large_text_takes_memory_in_proportion() -> None:
    """The limit is 12 bytes per byte; no split of the text breaks a character."""
    decode = decoder("EUC_JP", "of this test", asked)
    assert decode is not None
    part, text = b"\xa4\xa2" * 3 + b"\x8f\xb0\xa1" + b"-", "あ" * 3 + "丂" + "-"
    raw = part * 100_000
    tracemalloc.start()
    try:
        found = decode(raw)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found == (text * 100_000).encode()
    assert peak < 12 * len(raw)
