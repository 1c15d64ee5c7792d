"""Leftover keys of an interrupted snapshot: those whose last record belongs to it."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from bwtui.relay.snapshot.initial_setup import Leftovers
from bwtui.relay.state.run_state import RunState
from bwtui.sink import topics
from bwtui.sink.destination import KeyRecord, Offsets
from tests.relay_context import relay_context

CUT_OFF, OTHER = b"cut off", b"another's"
records = st.lists(
    st.builds(
        KeyRecord,
        st.sampled_from([b"", b"1", b"2", b"3", b"\xff"]),
        st.booleans(),
        st.sampled_from([CUT_OFF, OTHER, None]),
    ),
    max_size=30,
)


@given(before=records, since=records, at_once=st.integers(1, 5))
def test_the_last_record_of_each_key_counts(
    before: list[KeyRecord], since: list[KeyRecord], at_once: int
) -> None:
    def keys(topic: str, start: Offsets, end: Offsets, on_wait: Callable[[], None]) -> Iterator[KeyRecord]:
        on_wait()
        yield from (before, since)[start[0]]

    destination = SimpleNamespace(readback=SimpleNamespace(keys=keys))
    context = relay_context(destination=destination, report=RunState())
    earlier, late = (
        {key for key, is_left in last.items() if is_left}
        for last in (
            {record.key: record.session == CUT_OFF and not record.is_tombstone for record in records}
            for records in (before, since)
        )
    )
    sent = {record.key for record in since if record.session != CUT_OFF}
    normal, topics.BATCH = topics.BATCH, at_once
    try:
        with closing(sqlite3.connect(":memory:")) as database:
            for table in ("left_over", "late"):
                database.execute(f"create table {table} (key blob primary key) without rowid")
            found = Leftovers(context, lambda seconds: None, lambda topic: {0: 2})
            found._collect(database, "t", {0: 0}, ({0: 1}, {0: 2}), {CUT_OFF})
            left, again = (
                {key for (key,) in database.execute(f"select key from {table}")}
                for table in ("left_over", "late")
            )
    finally:
        topics.BATCH = normal
    assert left == (earlier | late) - sent
    assert again == late & sent
