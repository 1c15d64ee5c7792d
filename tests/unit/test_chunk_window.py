"""A chunk's window: rows that it leaves out, events that break it, and possibly invisible transactions."""

from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from bwtui.relay.rows.chunk_window import ChunkWindow, SentTransactions, StreamOrigin

SERVER = StreamOrigin("server", 1, False)
XIDS = st.integers(min_value=3, max_value=(1 << 32) - 1)


def route(*keys: bytes | None, table: str = "public.t", schema: int = 1, oid: int = 20) -> Any:
    """Return a route with messages of these keys."""
    columns = [SimpleNamespace(type_oid=oid)]
    return SimpleNamespace(
        relation=SimpleNamespace(qualified_name=table, columns=columns),
        messages=[(key, b"", 0, None) for key in keys],
        key_columns=("id",),
        key_indexes=[0],
        key_schema_id=schema,
    )


def test_keys_of_the_table_are_collected_and_of_no_other() -> None:
    window = ChunkWindow("public.t")
    window.note_batch([route(b"1", b"2"), route(b"3", table="public.other")])
    assert (b"1" in window, b"2" in window, b"3" in window) == (True, True, False)
    window.narrow([b"2", b"4"])
    window.note_batch([route(b"4", b"5")])
    assert [key in window for key in (b"1", b"2", b"4", b"5")] == [False, True, True, False]


def test_keys_of_another_form_can_not_be_compared() -> None:
    window = ChunkWindow("public.t")
    assert window.fits(route())
    window.note_batch([route(b"1")])
    assert window.fits(route())
    assert not window.fits(route(schema=2))
    assert not window.fits(route(oid=25))


def test_a_truncation_of_the_table_breaks_it() -> None:
    window = ChunkWindow("public.t")
    window.truncate(["public.other"])
    assert not window.broken
    window.truncate(["public.other", "public.t"])
    assert window.broken == "the table was truncated"


def test_too_many_keys_break_it_until_those_of_the_chunk_are_known(monkeypatch: Any) -> None:
    monkeypatch.setattr("bwtui.relay.rows.chunk_window._MOST_KEYS", 3)
    window = ChunkWindow("public.t")
    window.note_batch([route(b"1", b"2", b"3")])
    window.narrow([b"1"])
    window.note_batch([route(*(bytes([n]) for n in range(9)))])
    assert not window.broken
    window = ChunkWindow("public.t")
    window.note_batch([route(b"1", b"2", b"3", b"4")])
    assert window.broken


@given(st.lists(XIDS, max_size=200), st.lists(XIDS, max_size=20), st.sets(st.integers(0, 199)))
def test_what_was_sent_is_known_until_all_can_see_it(
    sent: list[int], others: list[int], tidied: set[int]
) -> None:
    streamed = SentTransactions()
    streamed.begin(SERVER, ())
    for number, xid in enumerate(sent):
        streamed.note(xid)
        if number in tidied:
            streamed.tidy()
    assert streamed.among([*sent, *others]) == set(sent)


@given(XIDS, st.integers(0, 1_000), st.booleans())
def test_numbers_go_round(oldest: int, distance: int, packed: bool) -> None:
    streamed = SentTransactions()
    streamed.begin(SERVER, ())
    before, after = (oldest - 1 - distance) & 0xFFFFFFFF, (oldest + distance) & 0xFFFFFFFF
    for xid in (before, after):
        streamed.note(xid)
    if packed:
        for _ in range(20_000):
            streamed.note(after)
        streamed.tidy()
    streamed.oldest = oldest
    streamed.tidy()
    assert after in streamed.among([before, after])
    if not packed:
        assert streamed.among([before, after]) == {after}


def test_who_ran_before_the_relay_may_have_been_sent() -> None:
    streamed = SentTransactions()
    streamed.begin(SERVER, [7, 8])
    streamed.note(9)
    assert streamed.among([7, 8, 9, 10]) == {7, 8, 9}
    assert not streamed.is_certain(7)
    streamed.begin(SERVER, [50])
    # Another relay may have sent it, while this one was suspended.
    assert streamed.among([7, 9, 50]) == {7, 9, 50}
    # Transaction ids of a different server do not apply here.
    streamed.begin(SERVER._replace(timeline=2), [50])
    assert streamed.among([7, 9, 50]) == {50}


def test_a_look_that_began_before_a_promotion_forgets_nothing() -> None:
    streamed = SentTransactions()
    streamed.begin(SERVER, ())
    streamed.begin(SERVER._replace(timeline=2), ())
    streamed.note(5)
    streamed.note_oldest(SERVER, 1_000)
    streamed.tidy()
    assert streamed.among([5]) == {5}
    streamed.note_oldest(SERVER._replace(timeline=2), 1_000)
    streamed.tidy()
    assert not streamed.among([5])
